"""Rows as JSON lines: written from, and validated by, the types of their dataclasses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from leakscope.run.kinds import ClockKind, Occasion, RowTag

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
