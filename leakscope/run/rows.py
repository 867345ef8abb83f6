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
    """`leakscope run`: there is a command to run again and an exit status."""
    PROFILER = "profiler"
    CHECK = "check"
    BLOCK = "watch"


class Occasion(StrEnum):
    """Why a heap snapshot was taken."""

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
    """In the middle of a watched step, at its peak."""
    MEMORY = "memory"
    """A host limit came near, or an allocation failed there."""
    OOM = "oom"
    """An allocation failed on the device."""
    REQUESTED = "asked"
    """On request, in the middle of a step that did not end, on the watchdog's thread."""


class EndKind(StrEnum):
    """How a rank ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """By leakscope, at the end of a --steps run."""
    RAISED = "raised"
    HUNG = "hung"
    """By `--hang-timeout`; it raised nothing."""
    EXITED = "exited"
    KILLED = "killed"
    """By a signal."""
    LOST = "lost"
    """Without any record."""
    RUNNING = "running"
    """It was read while it was running."""
    UNKNOWN = "unknown"
    """Its record is damaged."""


class StepSourceKind(StrEnum):
    """What ends a step."""

    MARK = "mark"
    """A mark of the program, through `leakscope.Profiler`."""
    FUNCTION = "function"
    """A return of the function named by `--step-function`."""
    OPTIMIZER = "optimizer"
    """A step of an optimizer."""
    BACKWARD = "backward"
    """The end of an outermost backward, if no optimizer steps."""
    CALL = "call"
    """The end of an outermost module call, if there is no backward."""


class Direction(StrEnum):
    """The direction of a P2P operation; a collective has torch's name."""

    SEND = "send"
    RECV = "recv"


class OperationState(StrEnum):
    """The state of a rank's last operation."""

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
    """Distinguishes the rows of one file."""

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
"""Converts a JSON value to a field's value; raises ValueError for another type."""
Write = Callable[[Any], Any]

_LEFT_OUT = "left out"
_SIGNED = "signed"
_REAL = "real"
_EITHER = (UnionType, Union)

Signed = Annotated[int, _SIGNED]
"""A 64-bit number, signed or unsigned; a plain `int` is a count, at most `LARGEST`."""
Real = Annotated[float, _REAL]
"""Any 64-bit float, also infinite or NaN, which is a string in JSON; a plain `float` is finite, at most `LARGEST`."""
LARGEST = 1 << 60
"""Upper bound of all counts: an exbibyte, and in seconds the age of the universe."""
LONGEST = 1 << 16
"""Maximum characters of a text; longer ones are cut off. Heuristic."""


class Row:
    """One line of `<FILE>.jsonl`; in files with several kinds of rows, the `TAG` is written as `kind`."""

    FILE: ClassVar[str]
    TAG: ClassVar[RowTag | None] = None


T = TypeVar("T")
R = TypeVar("R", bound=Row)


def rare(default: Any) -> Any:
    """A field that is written only if it differs from its default."""
    return field(default=default, metadata={_LEFT_OUT: True})


@dataclass(frozen=True)
class _Column:
    """Conversion of one dataclass field to JSON and back."""

    name: str
    read: Read
    write: Write | None
    """None if JSON accepts the value as it is."""
    needed: bool
    default: Any
    rare: bool


def to_json(item: Any) -> dict[str, Any]:
    """A dataclass as a JSON object, in the order of its fields."""
    data: dict[str, Any] = {}
    for column in _columns(type(item)):
        value = getattr(item, column.name)
        if not (column.rare and value == column.default):
            data[column.name] = value if column.write is None else column.write(value)
    return data


def from_json(kind: type[T], data: Any, names: Mapping[str, Any] | None = None) -> T:
    """Inverse of `to_json`; unknown keys, of a newer leakscope, are ignored.

    `names` are types that the module of `kind` imports for type checkers only. Raises ValueError if `data` is not an
    object, lacks a field without default, or has one of another type or out of range.
    """
    if not isinstance(data, Mapping):
        _refuse(data, "object")
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
    """A row as a line of its file."""
    return to_json(row) if row.TAG is None else {"kind": row.TAG, **to_json(row)}


def from_line(kinds: Sequence[type[R]], data: Any) -> R | None:
    """Parse a line of a file with rows of these kinds; None for a kind of a newer leakscope.

    Raises ValueError as `from_json`.
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
    taken, wanted = ((int,), "integer") if kind is int else ((int, float), "number")

    def number(value: Any) -> Any:
        if type(value) not in taken or not math.isfinite(value):
            _refuse(value, wanted)
        return value if least <= value <= most else _refuse(value, f"{wanted} from {least} to {most}")

    return number


_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""By their text in JSON; NaN is one object, so that rows with it are equal."""


def _real(value: Any) -> float:
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    return value if type(value) is float else float(_PLAIN[float](value))


_PLAIN: Mapping[Any, Read] = {
    Real: _real,
    Signed: _of_number(int, -(1 << 63), (1 << 64) - 1),
    int: _of_number(int, 0, LARGEST),
    float: _of_number(float, -LARGEST, LARGEST),
    str: lambda value: _cut_off(value) if type(value) is str else _refuse(value, "string"),
    bool: lambda value: value if type(value) is bool else _refuse(value, "boolean"),
}


def _of_either(kinds: Sequence[Any]) -> Read:
    """A value of one kind, or None; of several kinds the first that accepts it."""
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
    if kind == Real:
        return lambda value: value if math.isfinite(value) else str(value)
    return to_json if is_dataclass(kind) else None


def _cut_off(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _refuse(value: Any, wanted: Any) -> Any:
    raise ValueError(f"expected {getattr(wanted, '__name__', wanted)}, got {_shown(value)}")


def _shown(value: Any, most: int = 40) -> str:
    """A value for an error message; only the type of one that may be long or deep."""
    if isinstance(value, (dict, list)):
        return f"a{'n object' if isinstance(value, dict) else ' list'} of {len(value)}"
    text = repr(value[:most] if isinstance(value, str) else value)
    return text if len(text) <= most else f"{text[:most]}..."


@dataclass(frozen=True)
class Answer(Row):
    """A requested heap snapshot; it answers all earlier requests."""

    FILE = "answers"

    asked: int
    """Number of the last request that it answers."""
    step: int
    """Number of steps that had ended."""
    occasion: Occasion
    time: float
    """Time of the snapshot in seconds since the epoch."""
    seconds: float
    """Duration of the snapshot."""
    stacks: tuple[str, ...] = rare(())
    """Lines of the stacks of all threads, if the snapshot was taken in the middle of a step."""


@dataclass(frozen=True)
class StepsBy(Row):
    """What ends a step from here on; the last row of a rank is the valid one."""

    FILE = "clock"

    clock: StepSourceKind
    """The kind of the source, under its name of the first versions."""
    name: str
    """Its name: `Adam`, `Net`, `Trainer.training_step`; "" if it has none."""
    since: int = 0
    """Steps ended by earlier sources: they are not judged, and warm-up follows them."""
    missing: bool = rare(False)
    """Whether no function of this name existed at the end of the script."""


@dataclass(frozen=True)
class TrainingState(Row):
    """A checksum of the training in one step, recorded with the option `checksums`.

    Two runs whose rows are equal have trained alike to the bit, except for what `skipped` counts.
    """

    FILE = "training"

    step: int
    parameters: Signed
    """Checksum of the parameters of each optimizer at the end of each of its steps; until an optimizer steps, of the
    leaves of the backwards of the step, or of the module whose call ended it.
    """
    gradients: Signed
    """Checksum of their gradients at the same time."""
    losses: tuple[Real, ...] = ()
    """Values from which the outermost backwards started, where they are one number; at most the first 8."""
    tensors: int = 0
    """Number of tensors in the checksums, over all optimizer steps; one without a gradient counts once."""
    skipped: int = rare(0)
    """Number of tensors that could not be read: of an unknown layout, or while a graph was captured."""


@dataclass(frozen=True)
class RecordingEnded(Row):
    """Recording ended before the script, because of an internal error or a folder that cannot be written."""

    FILE = "recording_ended"

    step: int
    """Number of steps that had ended."""
    why: str
    """`recording ended at step 5: RuntimeError: no such thing (in Work.wait)`."""


@dataclass(frozen=True)
class StartedProcess(Row):
    """A Python process that the script started and that is not recorded."""

    FILE = "processes"

    through: str
    """`torch.multiprocessing.spawn`, `multiprocessing`, `subprocess`."""
    started_at: str
    """The user's line, `train.py:41 main`; "" if there is none."""


OTHERS = "others"
"""Descriptors of unclassified kinds."""


@dataclass(frozen=True)
class SharedMemory:
    """Mapped segments of `/dev/shm`, of which `torch.multiprocessing` creates one for each shared tensor."""

    segments: int
    bytes: int


@dataclass(frozen=True)
class Recompiled:
    """A function that `torch.compile` has recompiled."""

    name: str
    """`forward`."""
    at: str
    """`model.py:12`."""
    times: int
    """Number of guard failures."""
    reason: str
    """Reason of the last one, in dynamo's words; "" if there is none."""


@dataclass(frozen=True)
class Compiled:
    """Counters of dynamo."""

    functions: int
    """Number of compilations of functions, or of parts between graph breaks."""
    again: tuple[Recompiled, ...] = rare(())
    """Most frequent first."""
    over_limit: bool = rare(False)
    """Whether a function has reached the limit of recompilations and runs uncompiled from then on."""


@dataclass(frozen=True)
class CountsAtStep(Row):
    """Counts at the end of a step, at some steps only."""

    FILE = "counts"

    step: int
    descriptors: Mapping[str, int] | None = None
    """Kind of descriptor, mapped to their number, without leakscope's own: `pipe`, `socket to HOST:PORT`, `/tmp/*.log`;
    None if the system does not show them.
    """
    most_descriptors: int | None = None
    """The limit of open descriptors; None if unlimited."""
    shared: SharedMemory | None = None
    compiled: Compiled | None = None
    """None if the script has not imported dynamo."""
    pinned_bytes: int | None = rare(None)
    """Pinned host memory of tensors; None if no device is in use or torch does not count it."""


@dataclass(frozen=True, kw_only=True)
class AllocationFailure(Row):
    """A failed allocation, on the host or a device, that ended the script."""

    FILE = "out_of_memory"

    step: int
    """The last step that had ended."""
    time: float = 0.0
    """Seconds since the epoch; missing in the first versions."""
    error: str
    """First line of its message."""
    wanted_bytes: Signed | None = None
    """None if the message does not contain it."""
    at: str = ""
    """The innermost line of the user, "" if there is none."""


@dataclass(frozen=True)
class MemoryThere(Row):
    """Memory available to the process according to the host."""

    FILE = "host_memory"

    limit: str
    """The tightest limit, `its control group's memory limit`."""
    limit_bytes: int
    used_bytes: int | None = None
    """Bytes in use by any process before the first heap snapshot; None if not recorded."""


class MemoryShortage(Row):
    """Memory was short here or on a peer, and a heap snapshot was taken."""

    FILE = "short_of_memory"


@dataclass(frozen=True)
class LimitNear(MemoryShortage):
    """A limit of the host's memory came near."""

    TAG = RowTag.NEAR

    step: int
    """The last step that had ended."""
    inside: bool
    """Whether it was in the middle of the following step."""
    limit: str
    """`the control group's limit`."""
    limit_bytes: int
    used_bytes: int
    """Bytes that counted against the limit."""


@dataclass(frozen=True)
class PeerOutOfMemory(MemoryShortage):
    """Another rank's allocation failed, and this one took a snapshot."""

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
    """With all objects."""
    frozen_seconds: float
    """With all objects frozen."""


@dataclass(frozen=True)
class GainingContainer:
    """A container that has gained items over the snapshots, or the head of a growing chain of linked objects; its bytes
    exclude objects of the heap graph.
    """

    container: int
    """Its index in the heap graph of the same snapshot."""
    items: int
    """Current number of items."""
    gained: int
    """Items gained since it was first seen."""
    bytes: int
    """Bytes gained, from a sample of the newest items: strings, numbers, records and what only they hold."""
    counted_bytes: int
    """The part of the bytes in the host's counter: blocks that Python allocates by malloc."""
    item: str
    """Type of an item: `str`, `dict of str and float`, `list of float`."""
    earlier_bytes: int = rare(0)
    """Bytes of the items when it was first seen, from a sample."""


class LifetimeRow(Row):
    """One row of the result of two watched steps, at the second one's peak."""

    FILE = "lifetimes"


@dataclass(frozen=True)
class WatchedStep(LifetimeRow):
    """The watched step; operations are counted from its start."""

    TAG = RowTag.STEP

    step: int
    device: str
    """The watched device: `cuda:0`, `cpu`."""
    operations: int
    start_bytes: int
    """Live bytes at the start of the step."""
    peak_bytes: int
    """Live bytes at the peak."""
    peak_at: str
    """The user's line at that time, "" if there was none."""
    peak_phase: Phase
    backward_follows: bool
    """Whether a backward ran after the peak."""
    unseen_bytes: Signed
    """Bytes at the peak of storages whose allocation or use was not seen."""
    arguments: tuple[tuple[str, str], ...]
    """(function, argument) of the user's calls that ran at the peak."""
    curve: tuple[tuple[Signed, int], ...]
    """(operation, live bytes after it) near the peak."""
    storages: int
    """Number of storages that the previous step allocated and freed."""
    lag_byte_seconds: float
    """For those storages: bytes times seconds before the first use."""
    use_byte_seconds: float
    """From first to last use."""
    drag_byte_seconds: float
    """After the last use."""
    unread: tuple[tuple[int, str], ...] = ()
    """(index in the heap at the peak of a running function or the script's namespace, reference such as `local ckpt`):
    variables that no remaining code of that function or script reads.
    """


@dataclass(frozen=True)
class UntouchedStorage(LifetimeRow):
    """A storage from before both watched steps that none of their operations touched."""

    TAG = RowTag.UNTOUCHED

    storage: int
    """Its index in the heap at the peak."""


@dataclass(frozen=True)
class StorageLife(LifetimeRow):
    """One storage of the watched step."""

    storage: Signed
    """Its index in the heap at the peak, -1 if it is not there."""
    bytes: int
    made_at: str
    """The line, "" if it was allocated before the watched steps; likewise `module` and `phase`."""
    module: str
    """Name of the module whose forward allocated it."""
    phase: Phase
    last_use_at: str
    """The line, "" if nothing used it after its allocation."""
    last_phase: Phase
    drag_byte_seconds: float
    """Bytes times seconds between last use and release."""
    last: Signed
    """The operation of the last use; negative before the step."""
    died: Signed
    """The operation after which it was freed."""


@dataclass(frozen=True)
class IdleStorage(StorageLife):
    """A storage alive at the peak and not used again."""

    TAG = RowTag.IDLE


@dataclass(frozen=True)
class AlikeStorage(StorageLife):
    """A storage allocated and last used at the same lines as an idle one."""

    TAG = RowTag.ALIKE


@dataclass(frozen=True)
class DraggedStorage(StorageLife):
    """One of the storages with most unused byte-seconds; operations are counted from the previous step."""

    TAG = RowTag.DRAG


@dataclass(frozen=True)
class LifetimesUnjudged(LifetimeRow):
    """The reason why there are no lifetimes."""

    TAG = RowTag.UNJUDGED

    step: int
    why: str


LIFETIME_ROWS = (WatchedStep, UntouchedStorage, IdleStorage, AlikeStorage, DraggedStorage, LifetimesUnjudged)
"""All kinds of rows of `lifetimes.jsonl`."""


class WorkersRow(Row):
    """Rows about the workers of one loader."""

    FILE = "loader_workers"


@dataclass(frozen=True)
class SharedObjects:
    """A large container of Python objects in the parent when workers were forked."""

    written: str
    """`self.samples`, as in its class, or the name of a module's variable."""
    owner: str
    """The class's name, or the module's."""
    type: str
    item: str
    """Type of most items: `str`, `dict of str and int`."""
    items: int
    objects: int
    """Number of objects, including those of nested containers."""
    bytes: int
    """Bytes of the pages of its objects."""
    where: str = ""
    """The line that sets it, `train.py:12`; "" if unknown."""


@dataclass(frozen=True)
class WorkersStarted(WorkersRow):
    """An iterator over a loader has started its workers, once per epoch."""

    TAG = RowTag.STARTED

    step: int
    """The last step that had ended."""
    loader: int
    """Number of the loader: loaders of one line, dataset and number of workers are one."""
    life: int
    """1 for its first iterator."""
    workers: int
    method: str
    """`fork`, `spawn` or `forkserver`."""
    dataset: str
    """Its class's name."""
    started_at: str
    """The user's line, `train.py:41 main`; "" if there is none."""
    prefetch: int | None = None
    """Batches prefetched per worker."""
    persistent: bool = False
    pinned: bool = False
    """Whether a thread of the parent copies each batch to pinned memory."""
    shared: tuple[SharedObjects, ...] = ()


@dataclass(frozen=True)
class WorkerMemory:
    """Memory of one worker at one time, in bytes."""

    worker: int
    unique: int
    """Unique set size (USS)."""
    proportional: int
    """Proportional set size (PSS)."""
    anonymous: int
    """Anonymous memory: grows by what the worker allocates, not by pages it copies."""
    mapped: int
    """The part of the unique bytes in files and shared memory."""
    copied: tuple[int, ...] = rare(())
    """For each of the `shared` containers at its start, the bytes that it has copied."""


@dataclass(frozen=True)
class WorkersRead(WorkersRow):
    """One sample of all workers of one loader."""

    TAG = RowTag.READ

    step: int
    loader: int
    life: int
    workers: tuple[WorkerMemory, ...]
    sent_bytes: Signed = 0
    """Bytes of queued batches in shared memory."""
    sent: int = 0
    """Number of their shared memory segments: one per tensor."""
    pinned_bytes: int | None = None
    """Pinned host memory of the parent's tensors, as in `CountsAtStep`; None if nothing counts it."""
    last: bool = rare(False)
    """Whether the workers are being ended."""


@dataclass(frozen=True)
class GrowingInWorker:
    """A container that has grown in a worker since its start."""

    written: str
    owner: str
    where: str
    """The line that sets it, `train.py:12`; "" if unknown."""
    type: str
    item: str
    items: int
    """Current number of items."""
    gained: int
    """Number of new items."""
    bytes: int
    """Bytes of the new items, from a sample."""


@dataclass(frozen=True)
class WorkerSnapshot(WorkersRow):
    """What a worker found between two batches."""

    TAG = RowTag.INSIDE

    loader: int
    life: int
    worker: int
    batches: int
    """Batches requested from it so far."""
    grown: tuple[GrowingInWorker, ...] = ()


WORKERS_ROWS = (WorkersStarted, WorkersRead, WorkerSnapshot)
"""All kinds of rows of `loader_workers.jsonl`."""


@dataclass(frozen=True)
class DeviceFigures:
    """One device's counters."""

    device: int
    allocated: int
    active: int
    """Allocated, or dead and in use by another stream."""
    reserved: int
    peak: int
    """The highest `allocated` since the last reset."""
    stuck: int
    """Reserved and unused in segments with a live block."""
    retries: int
    """Number of times the allocator freed its cache and retried."""
    failures: int
    """Number of failed allocations."""


@dataclass(frozen=True)
class DeviceStep(Row):
    """The allocator's counters at the end of one step."""

    FILE = "device"

    step: int
    kind: str
    """`cuda`, `xpu`, ..."""
    devices: tuple[DeviceFigures, ...]
    layout: tuple[DeviceLayout, ...] | None = rare(None)
    """None if it was not read, within the budget."""


@dataclass(frozen=True)
class LayoutAtSnapshot(DeviceLayout):
    """The memory of one device at a heap snapshot."""

    driver: tuple[int, int] | None
    """The driver's (free, total) bytes over all processes; None if it was not read."""


@dataclass(frozen=True)
class Elsewhere:
    """Storages on the device that are in no block of the allocator."""

    storages: int
    bytes: int


@dataclass(frozen=True)
class DeviceBlocks(Row):
    """The allocator's active blocks at one heap snapshot, each with its storage."""

    FILE = "device_blocks"

    step: int
    occasion: Occasion
    kind: str
    """`cuda`, `xpu`, ..."""
    storage: tuple[Signed, ...]
    """For each block the storage's index in the snapshot's heap, -1 if there is none."""
    bytes: tuple[int, ...]
    """Size of each block."""
    device: tuple[int, ...]
    """Number of each block's device."""
    pending: tuple[int, ...]
    """Indexes of blocks that are dead and in use by another stream."""
    made_at: tuple[int, ...]
    """For each block the index in `sites`."""
    sites: tuple[str, ...]
    """`train.py:41 forward`."""
    layout: tuple[LayoutAtSnapshot, ...]
    elsewhere: Elsewhere = Elsewhere(0, 0)
    file: bool = False
    """Whether a memory snapshot of the allocator was written too."""


@dataclass(frozen=True)
class DeviceFailure(Row):
    """A failed allocation on the device, caught or not."""

    FILE = "device_out_of_memory"

    step: int
    """The last step that had ended."""
    kind: str
    device: int
    wanted_bytes: Signed
    limit_bytes: int
    free_bytes: int
    """Free bytes of the driver."""
    at: str
    """The user's line, "" if there was none."""
    counted: DeviceFigures | None
    looked: bool
    """Whether a heap snapshot was taken."""


@dataclass(frozen=True, kw_only=True)
class IssuedOperation:
    """A P2P or collective operation when it was issued."""

    id: int
    """Number of the operation on this rank, from 1."""
    direction: str
    """`send`, `recv` (see `Direction`), or the name of a collective such as `allreduce`."""
    peer: Signed | None
    """Global rank of the other side; None for collectives and receives from any rank."""
    tag: Signed | None
    group: str
    bytes: int
    step: int
    """The step in which it was issued, from 1."""
    microbatch: int
    """Position in its channel (group, direction, peer, tag) within the step, from 0."""
    nth: int
    """Position in its channel overall, from 1."""
    issued_at: str
    """The issuing line, `train.py:41 forward`; "" if it is not the user's."""
    issued: float
    """Seconds since the recording of operations began, like all times here."""


@dataclass(frozen=True, kw_only=True)
class CommOperation(IssuedOperation, Row):
    """An operation and the ends of its buffers, Work and tensors; None for what was not seen to happen."""

    FILE = "wire"

    shape: tuple[int, ...]
    """Shape of the first buffer."""
    dtype: str
    buffers: int
    """Number of tensors."""
    waited: float | None = None
    """When its Work's wait() returned."""
    completed: float | None = None
    tensor_died: float | None = None
    """When the last Python tensor of a buffer died."""
    storage_died: float | None = None
    work_died: float | None = None
    reused: float | None = rare(None)
    """When the same storage was passed to a later operation."""
    dropped: bool = rare(False)
    """When its Work died, before a wait and before it was seen to complete."""
    failed: str = rare("")
    """The error that it raised."""
    source: int | None = rare(None)
    """The sender, for a receive from any rank."""
    called_from: str = rare("")
    """The user's line that called the issuing function."""


@dataclass(frozen=True, kw_only=True)
class FinalOperation(IssuedOperation):
    """The last operation of a rank, from `wire_last.bin`."""

    state: OperationState
    newest: bool
    """Whether the rank has certainly issued none after it."""


@dataclass(frozen=True)
class OpenContext:
    """An open distributed-autograd context of a worker."""

    id: Signed
    opened_at: str
    """The user's line that entered it; "" if another worker did."""
    step: int | None
    """The step in which it was opened."""
    workers: tuple[int, ...]
    """Ids of the other workers that it has communicated with."""
    gradients: int
    """Number of accumulated gradients."""
    bytes: int
    """Bytes of their storages."""


@dataclass(frozen=True)
class ContextsAtStep(Row):
    """The open contexts of a worker at the end of a step."""

    FILE = "contexts"

    step: int
    open: int
    """Number of open contexts, as counted by torch."""
    backward_passes: int
    """Distributed backward passes still running."""
    bytes: int
    """Bytes of the gradients in all of them."""
    contexts: tuple[OpenContext, ...]
    """The first of them."""
