"""The rows of a run on disk: kinds, checked reading and writing, steps, operations and counters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from leakscope.memory_snapshot import DeviceLayout
from leakscope.originals import signal

ORPHAN_STATUS = 128 + signal.SIGTERM
"""Exit status of a rank that is ended because leakscope's own process is gone."""


class MadeBy(StrEnum):
    """What recorded a run."""

    COMMAND = "run"
    """`leakscope run`: there is a command to run again, and an exit status."""
    PROFILER = "profiler"
    CHECK = "check"
    BLOCK = "watch"


class Occasion(StrEnum):
    """Why a look was taken."""

    STEP = "step"
    LAST = "last"
    """The end of a --steps run."""
    END = "end"
    """After the script's main code: listed, never judged."""
    PEER = "peer"
    """A rank without an optimizer, when its peers stepped or stopped."""
    BLOCK = "block"
    """The end of a block under `watch`."""
    PEAK = "peak"
    """In the middle of a watched step, where most was alive."""
    MEMORY = "memory"
    """A limit of the host came near, or an allocation failed there."""
    OOM = "oom"
    """An allocation failed on the device."""
    ASKED = "asked"
    """Somebody asked, and the step did not end: in the middle of it, on the watchdog's thread."""


class EndKind(StrEnum):
    """How a rank ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """By leakscope, at the end of a --steps run."""
    RAISED = "raised"
    HUNG = "hung"
    """Ended by `--hang-timeout`; it raised nothing."""
    EXITED = "exited"
    KILLED = "killed"
    """By a signal."""
    LOST = "lost"
    """It left no word."""
    RUNNING = "running"
    """It has not ended: it was read while it ran, and no file says so."""
    UNKNOWN = "unknown"
    """What it left of that is damaged; in files it is lost."""


class ClockKind(StrEnum):
    """What ends a step."""

    MARK = "mark"
    """The program's own marks, through `leakscope.Profiler`."""
    FUNCTION = "function"
    """A return of the function of `--step-function`."""
    OPTIMIZER = "optimizer"
    """A step of an optimizer."""
    BACKWARD = "backward"
    """The end of an outermost backward, where no optimizer steps."""
    CALL = "call"
    """The end of an outermost call of a module, where there is no backward."""


class Direction(StrEnum):
    """What a P2P operation does; a collective is named as torch names it."""

    SEND = "send"
    RECV = "recv"


class OperationState(StrEnum):
    """What a rank was doing with its last operation."""

    ISSUED = "issued"
    WAITS = "waits"
    WAITED = "waited"
    FAILED = "failed"


class Phase(StrEnum):
    """The part of a step in which a tensor operation ran."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    NONE = ""
    """No operation of the watched steps."""


class RowTag(StrEnum):
    """Tells the rows of one file apart."""

    STEP = "step"
    IDLE = "idle"
    UNTOUCHED = "untouched"
    ALIKE = "alike"
    DRAG = "drag"
    UNJUDGED = "unjudged"
    NEAR = "near"
    PEER = "peer"
    STARTED = "started"
    READ = "read"
    INSIDE = "inside"


Read = Callable[[Any], Any]
"""From a value of JSON to a field's; raises ValueError for one of another type."""
Write = Callable[[Any], Any]

_LEFT_OUT = "left out"
_SIGNED = "signed"
_EITHER = (UnionType, Union)

Signed = Annotated[int, _SIGNED]
"""A number of 64 bits, with its sign or without; a plain `int` counts something that is there, up to `LARGEST`."""
LARGEST = 1 << 60
"""More than anything counted here: an exbibyte, and of seconds the age of the universe."""
LONGEST = 1 << 16
"""Characters of a text, chosen; what is longer is cut off there."""


class Row:
    """One line of `<FILE>.jsonl`; where a file has rows of several kinds, their `TAG` is written as `kind`."""

    FILE: ClassVar[str]
    TAG: ClassVar[RowTag | None] = None


T = TypeVar("T")
R = TypeVar("R", bound=Row)


def rare(default: Any) -> Any:
    """A field that is written only where it differs from its default."""
    return field(default=default, metadata={_LEFT_OUT: True})


@dataclass(frozen=True)
class _Column:
    """One field of a dataclass on its way to JSON and back."""

    name: str
    read: Read
    write: Write | None
    """None where JSON takes the value as it is."""
    needed: bool
    default: Any
    rare: bool


def to_json(item: Any) -> dict[str, Any]:
    """A dataclass as an object of JSON, in the order of its fields."""
    data: dict[str, Any] = {}
    for column in _columns(type(item)):
        value = getattr(item, column.name)
        if not (column.rare and value == column.default):
            data[column.name] = value if column.write is None else column.write(value)
    return data


def from_json(kind: type[T], data: Any, names: Mapping[str, Any] | None = None) -> T:
    """The dataclass that `to_json` made `data` of; keys of a newer leakscope, which it does not know, are passed over.

    `names` are types that the module of `kind` imports for type checkers alone. Raises ValueError where `data` is no
    object, lacks a field that has no default, or has one of another type or out of its range.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{_shown(data)} is no object")
    values = {}
    for column in _columns(kind, names):
        if column.name in data:
            try:
                values[column.name] = column.read(data[column.name])
            except ValueError as error:
                raise ValueError(f"{column.name}: {error}") from None
        elif column.needed:
            raise ValueError(f"{column.name} is missing")
    return kind(**values)


def to_line(row: Row) -> dict[str, Any]:
    """A row as one line of its file."""
    return to_json(row) if row.TAG is None else {"kind": row.TAG, **to_json(row)}


def from_line(kinds: Sequence[type[R]], data: Any) -> R | None:
    """The row that a line of a file with rows of these kinds is; None for a kind that only a newer leakscope knows.

    Raises ValueError as `from_json` does.
    """
    if kinds[0].TAG is None:
        return from_json(kinds[0], data)
    tag = data.get("kind", "") if isinstance(data, Mapping) else ""
    kind = next((kind for kind in kinds if tag == kind.TAG), None if tag else kinds[0])
    return None if kind is None else from_json(kind, data)


_columns_of: dict[type[Any], tuple[_Column, ...]] = {}


def _columns(kind: type[Any], names: Mapping[str, Any] | None = None) -> tuple[_Column, ...]:
    known = _columns_of.get(kind)
    if known is None:
        types = get_type_hints(kind, localns=dict(names or {}), include_extras=True)
        known = _columns_of[kind] = tuple(_column(entry, types[entry.name]) for entry in fields(kind))
    return known


def _column(entry: Field[Any], kind: Any) -> _Column:
    needed = entry.default is MISSING and entry.default_factory is MISSING
    return _Column(entry.name, _reader(kind), _writer(kind), needed, entry.default, _LEFT_OUT in entry.metadata)


def _reader(kind: Any) -> Read:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _of_list(parts)
    if origin in _EITHER:
        return _of_either(parts)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _of_object(_reader(parts[1]))
    if is_dataclass(kind):
        return lambda value: value if type(value) is kind else from_json(kind, value)  # type: ignore[arg-type]
    return _PLAIN[kind] if kind in _PLAIN else _of_enum(kind)


def _of_number(kind: type[int | float], least: int, most: int) -> Read:
    taken, wanted = ((int,), "whole number") if kind is int else ((int, float), "number")

    def number(value: Any) -> Any:
        if type(value) not in taken or not math.isfinite(value):
            _refuse(value, wanted)
        return value if least <= value <= most else _refuse(value, f"{wanted} from {least} to {most}")

    return number


_PLAIN: Mapping[Any, Read] = {
    Signed: _of_number(int, -(1 << 63), (1 << 64) - 1),
    int: _of_number(int, 0, LARGEST),
    float: _of_number(float, -LARGEST, LARGEST),
    str: lambda value: _cut_off(value) if type(value) is str else _refuse(value, "text"),
    bool: lambda value: value if type(value) is bool else _refuse(value, "truth value"),
}


def _of_either(kinds: Sequence[Any]) -> Read:
    """Of one kind, or None; of several the first that takes it."""
    none = NoneType in kinds
    readers = [_reader(kind) for kind in kinds if kind is not NoneType]

    def either(value: Any) -> Any:
        if value is None and none:
            return None
        for read in readers[:-1]:
            try:
                return read(value)
            except ValueError:
                continue
        return readers[-1](value)

    return either


def _of_object(read: Read) -> Read:
    def many(value: Any) -> Any:
        if not isinstance(value, dict):
            _refuse(value, "object")
        return {_cut_off(key): read(item) for key, item in value.items()}

    return many


def _of_list(kinds: tuple[Any, ...]) -> Read:
    if kinds[-1] is not Ellipsis:
        readers = [_reader(kind) for kind in kinds]

        def some(value: Any) -> Any:
            if not isinstance(value, list) or len(value) != len(readers):
                _refuse(value, f"list of {len(readers)}")
            return tuple(read(item) for read, item in zip(readers, value, strict=True))

        return some
    read, whole = _reader(kinds[0]), kinds[0] in (int, Signed)

    def many(value: Any) -> Any:
        if not isinstance(value, list):
            _refuse(value, "list")
        if whole and value and set(map(type, value)) == {int}:  # a list may be of a hundred thousand blocks
            read(min(value))
            read(max(value))
            return tuple(value)
        return tuple(map(read, value))

    return many


def _of_enum(kind: type[StrEnum]) -> Read:
    known: dict[Any, StrEnum] = {str(word): word for word in kind}
    return lambda value: known[value] if isinstance(value, str) and value in known else _refuse(value, kind)


def _writer(kind: Any) -> Write | None:
    if get_origin(kind) in _EITHER:
        writers = [_writer(part) for part in get_args(kind) if part is not NoneType]
        (inner,) = writers if len(writers) == 1 else (None,)
        return None if inner is None else lambda value: None if value is None else inner(value)
    if get_origin(kind) is tuple:
        item = _writer(get_args(kind)[0])
        return list if item is None else lambda value: [item(part) for part in value]
    return to_json if is_dataclass(kind) else None


def _cut_off(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _refuse(value: Any, wanted: Any) -> Any:
    raise ValueError(f"{_shown(value)} is no {getattr(wanted, '__name__', wanted)}")


def _shown(value: Any, most: int = 40) -> str:
    """A value in a sentence: of what may be long or deep its kind."""
    if isinstance(value, (dict, list)):
        return f"a{'n object' if isinstance(value, dict) else ' list'} of {len(value)}"
    text = repr(value[:most] if isinstance(value, str) else value)
    return text if len(text) <= most else f"{text[:most]}..."


@dataclass(frozen=True)
class Answer(Row):
    """A look that was taken after somebody had asked for one; it answers all that were asked before it."""

    FILE = "answers"

    asked: int
    """Number of the last request that it answers."""
    step: int
    """Steps that had ended."""
    occasion: Occasion
    time: float
    """Seconds since the epoch at which it was there."""
    seconds: float
    """What the look took."""
    stacks: tuple[str, ...] = rare(())
    """Lines of the stacks of all threads, where the look was taken in the middle of a step."""


@dataclass(frozen=True)
class StepsBy(Row):
    """What ends a step from here on; the last row of a rank is the one that counts."""

    FILE = "clock"

    clock: ClockKind
    name: str
    """What it is called: `Adam`, `Net`, `Trainer.training_step`; "" where there is nothing to name."""
    since: int = 0
    """Steps that another clock had ended before: they are not judged, and warm-up comes after them."""
    missing: bool = rare(False)
    """There was no function of this name, when the script ended."""


@dataclass(frozen=True)
class RecordingEnded(Row):
    """Recording ended before the script did, for an error of leakscope's own or a folder that cannot be written."""

    FILE = "recording_ended"

    step: int
    """Steps that had ended."""
    why: str
    """`recording ended at step 5: RuntimeError: no such thing (in Work.wait)`."""


@dataclass(frozen=True)
class StartedProcess(Row):
    """A Python process that the script started, which is not seen."""

    FILE = "processes"

    through: str
    """`torch.multiprocessing.spawn`, `multiprocessing`, `subprocess`."""
    started_at: str
    """The user's line: `train.py:41 main`, "" where there is none."""


OTHERS = "others"
"""Descriptors whose kind was not told apart from the rest."""


@dataclass(frozen=True)
class SharedMemory:
    """Segments of `/dev/shm` that are mapped, of which `torch.multiprocessing` makes one for each tensor it shares."""

    segments: int
    bytes: int


@dataclass(frozen=True)
class Recompiled:
    """A function that `torch.compile` has compiled again."""

    name: str
    """`forward`."""
    at: str
    """`model.py:12`."""
    times: int
    """That a guard of its has failed."""
    reason: str
    """Of the last time, in dynamo's words; "" where it tells none."""


@dataclass(frozen=True)
class Compiled:
    """What dynamo says of itself."""

    functions: int
    """Times that it has compiled one, or a part of one between two graph breaks."""
    again: tuple[Recompiled, ...] = rare(())
    """The most often first."""
    over_limit: bool = rare(False)
    """A function has come to the limit of recompilations and is run without compiling from then on."""


@dataclass(frozen=True)
class CountsAtStep(Row):
    """What was counted at the end of a step; not of every step."""

    FILE = "counts"

    step: int
    descriptors: Mapping[str, int] | None = None
    """Kind of descriptor to their number, leakscope's own left out: `pipe`, `socket to HOST:PORT`, `/tmp/*.log`; None
    where the system does not say.
    """
    most_descriptors: int | None = None
    """That the system lets it have; None for no limit."""
    shared: SharedMemory | None = None
    compiled: Compiled | None = None
    """None where the script has not imported dynamo."""
    pinned_bytes: int | None = rare(None)
    """Pinned host memory that tensors have; None where no device is in use, or torch does not say."""


@dataclass(frozen=True, kw_only=True)
class AllocationFailure(Row):
    """An allocation failed, on the host or a device, and that ended the script."""

    FILE = "out_of_memory"

    step: int
    """The last step that had ended."""
    time: float = 0.0
    """Seconds since the epoch; the first versions did not say it."""
    error: str
    """First line of its text."""
    wanted_bytes: Signed | None = None
    """None where the error does not say."""
    at: str = ""
    """The innermost line of the user's, "" where there is none."""


@dataclass(frozen=True)
class MemoryThere(Row):
    """How much memory the host lets the process have."""

    FILE = "host_memory"

    limit: str
    """`its control group's memory limit`: what stands in the way first."""
    limit_bytes: int
    used_bytes: int | None = None
    """What counted against it before the first heap snapshot, by whatever process; None where that was not recorded."""


class MemoryShortage(Row):
    """Memory was short here or on a peer, and the heap was looked at."""

    FILE = "short_of_memory"


@dataclass(frozen=True)
class LimitNear(MemoryShortage):
    """A limit of the host's memory came near."""

    TAG = RowTag.NEAR

    step: int
    """The last step that had ended."""
    inside: bool
    """In the middle of the step after that one."""
    limit: str
    """`the control group's limit`."""
    limit_bytes: int
    used_bytes: int
    """What counted against the limit then."""


@dataclass(frozen=True)
class PeerOutOfMemory(MemoryShortage):
    """Another rank's allocation failed, and this one was looked at."""

    TAG = RowTag.PEER

    step: int
    of: int
    """That rank."""


SHORTAGE_ROWS = (LimitNear, PeerOutOfMemory)
"""Both kinds of rows of `short_of_memory.jsonl`."""


@dataclass(frozen=True)
class GcFreeze(Row):
    """What gc.freeze() would save: two full collections, measured after the gc diff."""

    FILE = "gc_freeze"

    full_seconds: float
    """With every object in it."""
    frozen_seconds: float
    """With every object left out."""


@dataclass(frozen=True)
class GainingContainer:
    """A container that has gained items since looks have seen it, or the first of a chain of linked objects that has
    grown longer; what the heap graph has is not in its bytes.
    """

    container: int
    """Its index in the heap graph of the same look."""
    items: int
    """How many it has."""
    gained: int
    """Items that it has more than when it was first seen."""
    bytes: int
    """Of what it has gained, the newest items measured: strings, numbers, records and all that they alone hold."""
    counted_bytes: int
    """Those of the bytes that the host's counter counts: blocks that Python asks malloc for."""
    item: str
    """What an item is: `str`, `dict of str and float`, `list of float`."""
    earlier_bytes: int = rare(0)
    """Of the items that it had when it was first seen, some of them measured."""


class LifetimeRow(Row):
    """One line of what two watched steps said of the second one's peak."""

    FILE = "lifetimes"


@dataclass(frozen=True)
class WatchedStep(LifetimeRow):
    """The step that was watched storage by storage; operations are counted from its beginning."""

    TAG = RowTag.STEP

    step: int
    device: str
    """`cuda:0`, `cpu`: whose memory was watched."""
    operations: int
    start_bytes: int
    """Alive when the step began."""
    peak_bytes: int
    """Alive when most was."""
    peak_operation: Signed
    """The operation after which the peak was reached, -1 where the step makes nothing."""
    peak_at: str
    """The user's line that ran then, "" where none did."""
    peak_phase: Phase
    backward_follows: bool
    """Whether a backward ran after the peak."""
    unseen_bytes: Signed
    """At the peak, of storages that nobody saw being made or used."""
    arguments: tuple[tuple[str, str], ...]
    """(function, argument) of the user's calls that ran at the peak."""
    curve: tuple[tuple[Signed, int], ...]
    """(operation, bytes alive after it) where they are not far below the peak."""
    storages: int
    """How many the step before made and let go."""
    lag_byte_seconds: float
    """Of those storages: bytes times seconds before the first use."""
    use_byte_seconds: float
    """From the first use to the last."""
    drag_byte_seconds: float
    """After the last use."""
    unread: tuple[tuple[int, str], ...] = ()
    """(index in the heap at the peak of a running function or a script's namespace, reference such as `local ckpt`):
    variables that no code of that function or script reads from there on."""


@dataclass(frozen=True)
class UntouchedStorage(LifetimeRow):
    """A storage that was there before the watched step and the one before it, and that no operation of them touched."""

    TAG = RowTag.UNTOUCHED

    storage: int
    """Its index in the heap at the peak."""


@dataclass(frozen=True)
class StorageLife(LifetimeRow):
    """One storage of the watched step."""

    storage: Signed
    """Its index in the heap at the peak, -1 where it is not there."""
    bytes: int
    made_at: str
    """The line, "" where it was made before the watched steps, as `module` and `phase`."""
    module: str
    """Name of the module in whose forward it was made."""
    phase: Phase
    last_use_at: str
    """The line, "" where nothing but its making used it."""
    last_phase: Phase
    drag_byte_seconds: float
    """Bytes times seconds between the last use and the release."""
    last: Signed
    """The operation that used it last; negative ones were before the step."""
    died: Signed
    """The operation after which it was released."""


@dataclass(frozen=True)
class IdleStorage(StorageLife):
    """A storage that was alive at the peak and not used again."""

    TAG = RowTag.IDLE

    one_statement: bool = False
    """The statement that used it last is the one that ran at the peak."""


@dataclass(frozen=True)
class AlikeStorage(StorageLife):
    """A storage that was made and last used where an idle one was."""

    TAG = RowTag.ALIKE


@dataclass(frozen=True)
class DraggedStorage(StorageLife):
    """One of the storages that lay unused for most byte-seconds; operations are counted from the step before."""

    TAG = RowTag.DRAG


@dataclass(frozen=True)
class LifetimesUnjudged(LifetimeRow):
    """No lifetimes of a step, and why."""

    TAG = RowTag.UNJUDGED

    step: int
    why: str


LIFETIME_ROWS = (WatchedStep, UntouchedStorage, IdleStorage, AlikeStorage, DraggedStorage, LifetimesUnjudged)
"""All kinds of rows of `lifetimes.jsonl`."""


class WorkersRow(Row):
    """Of the workers of one of the script's loaders."""

    FILE = "loader_workers"


@dataclass(frozen=True)
class SharedObjects:
    """A large container of Python objects that the parent had when workers were forked from it."""

    written: str
    """`self.samples`, as in the class that has it, or the name of a module's variable."""
    owner: str
    """The class's name, or the module's."""
    type: str
    item: str
    """What most items are: `str`, `dict of str and int`."""
    items: int
    objects: int
    """In it and in the containers in it."""
    bytes: int
    """Of the pages that its objects lie on."""
    where: str = ""
    """`train.py:12`, the line that sets it; "" where the source does not show it."""


@dataclass(frozen=True)
class WorkersStarted(WorkersRow):
    """An iterator over a loader has started its workers; the same loader starts them again, epoch after epoch."""

    TAG = RowTag.STARTED

    step: int
    """The last step that had ended."""
    loader: int
    """Which loader of the script's: those of one line, dataset and number of workers are one."""
    life: int
    """1 for its first iterator."""
    workers: int
    method: str
    """`fork`, `spawn` or `forkserver`."""
    dataset: str
    """Its class's name."""
    started_at: str
    """The user's line: `train.py:41 main`, "" where there is none."""
    prefetch: int | None = None
    """Batches that each worker may be ahead."""
    persistent: bool = False
    pinned: bool = False
    """A thread of the parent's copies each batch into pinned memory."""
    shared: tuple[SharedObjects, ...] = ()


@dataclass(frozen=True)
class WorkerMemory:
    """What one worker took at one moment, in bytes."""

    worker: int
    unique: int
    """Of no other process (USS)."""
    proportional: int
    """PSS."""
    anonymous: int
    """Its own and shared since the fork: grows by what the worker allocates, not by what is copied."""
    mapped: int
    """Those of the unique ones that are of files and shared memory."""
    copied: tuple[int, ...] = rare(())
    """Of each of the `shared` of its start, those that it has a copy of."""


@dataclass(frozen=True)
class WorkersRead(WorkersRow):
    """One reading of all workers of one loader."""

    TAG = RowTag.READ

    step: int
    loader: int
    life: int
    workers: tuple[WorkerMemory, ...]
    sent_bytes: Signed = 0
    """Of batches that wait to be taken, in shared memory."""
    sent: int = 0
    """Pieces of shared memory they lie in: one for each tensor."""
    pinned_bytes: int | None = None
    """Pinned host memory that the parent's tensors have, as in `CountsAtStep`; None where nothing counts it."""
    last: bool = rare(False)
    """The workers are being ended."""


@dataclass(frozen=True)
class GrowingInWorker:
    """A container that a worker has put more into since it was started."""

    written: str
    owner: str
    where: str
    """`train.py:12`, the line that sets it; "" where the source does not show it."""
    type: str
    item: str
    items: int
    """How many it has."""
    gained: int
    """How many of them are new."""
    bytes: int
    """Of the new ones, some measured."""


@dataclass(frozen=True)
class WorkerLook(WorkersRow):
    """What a worker found when it looked at itself, between two batches."""

    TAG = RowTag.INSIDE

    loader: int
    life: int
    worker: int
    batches: int
    """That it had been asked for by then."""
    grown: tuple[GrowingInWorker, ...] = ()


WORKERS_ROWS = (WorkersStarted, WorkersRead, WorkerLook)
"""All kinds of rows of `loader_workers.jsonl`."""


@dataclass(frozen=True)
class DeviceFigures:
    """One device's counters."""

    device: int
    allocated: int
    active: int
    """Allocated, or dead and waited for by another stream."""
    reserved: int
    peak: int
    """The highest `allocated` since somebody reset it."""
    stuck: int
    """Reserved and unused in segments that something live keeps."""
    retries: int
    """Times the allocator had to give back its cache and ask the driver again."""
    failures: int
    """Times memory ran out."""


@dataclass(frozen=True)
class DeviceStep(Row):
    """The allocator's counters at the end of one step."""

    FILE = "device"

    step: int
    kind: str
    """`cuda`, `xpu`, ..."""
    devices: tuple[DeviceFigures, ...]
    layout: tuple[DeviceLayout, ...] | None = rare(None)
    """None where reading it was too dear then."""


@dataclass(frozen=True)
class LayoutAtLook(DeviceLayout):
    """How one device's memory was used up at a look."""

    driver: tuple[int, int] | None
    """What the driver said: (free, total) bytes, all processes together; None where it was not asked."""


@dataclass(frozen=True)
class Elsewhere:
    """Storages on the device that lie in no block of the allocator."""

    storages: int
    bytes: int


@dataclass(frozen=True)
class DeviceBlocks(Row):
    """The allocator's active blocks at one look, each with the storage in it."""

    FILE = "device_blocks"

    step: int
    occasion: Occasion
    kind: str
    """`cuda`, `xpu`, ..."""
    storage: tuple[Signed, ...]
    """For each block the storage's index in the look's heap, -1 where there is none."""
    bytes: tuple[int, ...]
    """Size of each block."""
    device: tuple[int, ...]
    """Number of each block's device."""
    pending: tuple[int, ...]
    """Places of the blocks that are dead and waited for by another stream."""
    made_at: tuple[int, ...]
    """For each block the place in `sites`."""
    sites: tuple[str, ...]
    """`train.py:41 forward`."""
    layout: tuple[LayoutAtLook, ...]
    elsewhere: Elsewhere = Elsewhere(0, 0)
    file: bool = False
    """Whether the allocator's own snapshot was written as well."""


@dataclass(frozen=True)
class DeviceFailure(Row):
    """The device's memory ran out, whether the script caught that or not."""

    FILE = "device_out_of_memory"

    step: int
    """The last step that had ended."""
    kind: str
    device: int
    wanted_bytes: Signed
    limit_bytes: int
    free_bytes: int
    """What the driver had free."""
    at: str
    """The user's line, "" where there was none."""
    counted: DeviceFigures | None
    looked: bool
    """Whether the heap was looked at then."""


@dataclass(frozen=True, kw_only=True)
class IssuedOperation:
    """A P2P or collective operation as it was issued."""

    id: int
    """Counts the operations of the rank, from 1."""
    direction: str
    """`send`, `recv` (see `Direction`), or the name of a collective such as `allreduce`."""
    peer: Signed | None
    """Global rank of the other side; None for collectives and receives from any rank."""
    tag: Signed | None
    group: str
    bytes: int
    step: int
    """The step it was issued in, 1 for the first."""
    microbatch: int
    """Which operation of its channel (group, direction, peer, tag) in the step, from 0."""
    nth: int
    """Which operation of its channel in all, from 1."""
    issued_at: str
    """`train.py:41 forward`, "" where no line of the user's issued it."""
    issued: float
    """Seconds since the recording of operations began, as all moments here."""


@dataclass(frozen=True, kw_only=True)
class CommOperation(IssuedOperation, Row):
    """An operation and when each of its lives ended; a moment is None for what was not seen to happen."""

    FILE = "wire"

    shape: tuple[int, ...]
    """Of the first buffer."""
    dtype: str
    buffers: int
    """How many tensors it moves."""
    waited: float | None = None
    """When its Work's wait() returned."""
    completed: float | None = None
    tensor_died: float | None = None
    """When the last Python tensor of a buffer died."""
    storage_died: float | None = None
    work_died: float | None = None
    reused: float | None = rare(None)
    """When the same storage was given to a later operation."""
    dropped: bool = rare(False)
    """Its Work died before anybody waited for it and before it was seen completed."""
    failed: str = rare("")
    """The error that it raised."""
    source: int | None = rare(None)
    """Of a receive from any rank: who sent it."""
    called_from: str = rare("")
    """The user's line that called the function which issued it."""


@dataclass(frozen=True, kw_only=True)
class FinalOperation(IssuedOperation):
    """The last operation of a rank, as `wire_last.bin` has it."""

    state: OperationState
    newest: bool
    """Whether the rank has certainly issued none after it."""


@dataclass(frozen=True)
class OpenContext:
    """A distributed-autograd context that a worker's container still holds."""

    id: Signed
    opened_at: str
    """Line of the user's that entered it; "" where another worker did."""
    step: int | None
    """The step it was opened in."""
    workers: tuple[int, ...]
    """Ids of the other workers that it has talked to."""
    gradients: int
    """How many it has gathered."""
    bytes: int
    """Of their storages."""


@dataclass(frozen=True)
class ContextsAtStep(Row):
    """The contexts that were open on a worker when a step had ended."""

    FILE = "contexts"

    step: int
    open: int
    """How many, as torch counts them."""
    backward_passes: int
    """Distributed backward passes still running."""
    bytes: int
    """Of the gradients in all of them."""
    contexts: tuple[OpenContext, ...]
    """The first of them."""
