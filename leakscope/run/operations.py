"""Communication operations of a rank in columns; each is made when it is read."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from math import isnan, nan
from operator import attrgetter, eq
from typing import Any, overload

from leakscope.files import parse_json
from leakscope.originals import Path
from leakscope.run.damage import Damage
from leakscope.run.rows import CommOperation, FinalOperation, from_json, to_json

_NUMBERS = ("id", "bytes", "step", "microbatch", "nth", "buffers")
_MOMENTS = ("issued", "waited", "completed", "tensor_died", "storage_died", "work_died", "reused")
_WORDS = tuple(field.name for field in fields(CommOperation) if field.name not in (*_NUMBERS, *_MOMENTS))
"""Fields with few distinct values, each kept once."""


class _Words(Sequence[Any]):
    """The values of one such field in all rows."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._codes: dict[Any, int] = {}
        self._rows = array("i")

    def code(self, value: Any) -> int:
        code = self._codes.setdefault(value, len(self.values))
        if code == len(self.values):
            self.values.append(value)
        return code

    def append(self, value: Any) -> None:
        code = self._codes.get(value)
        self._rows.append(self.code(value) if code is None else code)

    def __setitem__(self, row: int, value: Any) -> None:
        self._rows[row] = self.code(value)

    def __getitem__(self, row: Any) -> Any:
        return self.values[self._rows[row]]

    def __len__(self) -> int:
        return len(self._rows)


class Operations(Sequence[CommOperation]):
    """Operations in order of issue, 150 bytes each.

    >>> len(Operations()), Operations() == ()
    (0, True)

    """

    def __init__(self, operations: Iterable[CommOperation] = ()) -> None:
        self._columns: dict[str, Any] = {
            **{name: array("q") for name in _NUMBERS},
            **{name: array("d") for name in _MOMENTS},
            **{name: _Words() for name in _WORDS},
        }
        self._order: Sequence[int] = ()
        for operation in operations:
            self._add(operation)
        self._sort(range(len(self._columns["id"])))

    def column(self, name: str) -> Iterator[Any]:
        """One field of all operations, without creating them."""
        rows = self._columns[name]
        values = (rows[row] for row in self._order)
        return (None if isnan(value) else value for value in values) if name in _MOMENTS else values

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, place: int) -> CommOperation: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[CommOperation, ...]: ...
    def __getitem__(self, place: int | slice) -> CommOperation | tuple[CommOperation, ...]:
        if isinstance(place, slice):
            return tuple(map(self._at, self._order[place]))
        return self._at(self._order[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{len(self)} operations"

    def _add(self, operation: CommOperation | None) -> None:
        """Add an empty row."""
        values = {} if operation is None else vars(operation)
        for name in _NUMBERS:
            self._columns[name].append(values.get(name, 0))
        for name in _MOMENTS:
            moment = values.get(name)
            self._columns[name].append(nan if moment is None else moment)
        for name in _WORDS:
            self._columns[name].append(values.get(name))

    def _put(self, row: int, operation: CommOperation) -> None:
        for name in (*_NUMBERS, *_MOMENTS, *_WORDS):
            value = getattr(operation, name)
            self._columns[name][row] = nan if value is None and name in _MOMENTS else value

    def _at(self, row: int) -> CommOperation:
        values = {name: self._columns[name][row] for name in (*_NUMBERS, *_WORDS)}
        for name in _MOMENTS:
            moment = self._columns[name][row]
            values[name] = None if isnan(moment) else moment
        return CommOperation(**values)

    def _sort(self, rows: Iterable[int]) -> None:
        issued = self._columns["issued"]
        self._order = array("i", sorted(rows, key=issued.__getitem__))


def column(operations: Sequence[CommOperation], name: str) -> Iterator[Any]:
    """One field of all operations in order, without creating operations."""
    return operations.column(name) if isinstance(operations, Operations) else map(attrgetter(name), operations)


@dataclass(frozen=True)
class _Numbered:
    """Common fields of all rows of an operation."""

    id: int


def read_operations(path: Path, damage: Damage) -> Operations:
    """Read operations in order of issue; later rows of the file complete earlier ones by `id`."""
    name = f"{CommOperation.FILE}.jsonl"
    read = Operations()
    row_of: dict[int, int] = {}
    unfit: dict[int, dict[str, Any]] = {}
    """Row of an incomplete operation, mapped to the content of its lines."""
    for number, line in damage.each(path / name, lambda line: (from_json(_Numbered, line).id, line)):
        row = row_of.setdefault(number, len(row_of))
        is_new = row == len(read._columns["id"])
        values = line if is_new else {**(unfit.pop(row) if row in unfit else to_json(read._at(row))), **line}
        try:
            operation = from_json(CommOperation, values)
        except ValueError:
            unfit[row], operation = values, None
        if is_new:
            read._add(operation)
        elif operation is not None:
            read._put(row, operation)
    for row in sorted(unfit):
        if "issued" in unfit[row]:  # else its first line was damaged, as is said, or came before what is kept
            try:
                from_json(CommOperation, unfit[row])
            except ValueError as error:
                damage.of_part(name, f"operation {unfit[row]['id']}", error)
    read._sort(row for row in range(len(row_of)) if row not in unfit)
    return read


NAME = "wire_last.bin"
SIZE = 2048
"""Bytes of the file: half a page. Heuristic."""
_HEAD = struct.Struct("<8s4qdI")
"""State, id, nth, step, microbatch, seconds from the start to the issue, and length of the JSON with the rest, which
follows.
"""
_NEWEST = b"!"
ISSUED, WAITING, WAITED, FAILED = b"issued" + _NEWEST, b"waits ", b"waited", b"failed"
"""States of the last operation, equal in length except for the mark after the first.

The mark stays until another operation is written: the rank has issued none after this one.
"""


def packer(text: bytes) -> Callable[..., None]:
    """Return a packer of operations with this `text`: (buffer, 0, *head without the length, length, text).

    It writes no more bytes than necessary; text that is too long is left out.
    """
    return struct.Struct(f"{_HEAD.format}{min(len(text), SIZE - _HEAD.size)}s").pack_into


def unpack(data: bytes) -> FinalOperation | None:
    """The operation in `wire_last.bin`; None before the first.

    Raises ValueError or Unreadable for another file, or one that was being written when the rank was killed.
    """
    if len(data) != SIZE:
        raise ValueError(f"{NAME} has {len(data)} bytes, not {SIZE}")
    state, number, nth, step, microbatch, issued, length = _HEAD.unpack_from(data)
    if number == 0 or length > SIZE - _HEAD.size:
        return None
    rest = parse_json(data[_HEAD.size : _HEAD.size + length])
    if not isinstance(rest, dict):
        raise ValueError(f"{NAME} is damaged")
    word = state.rstrip(b"\0 ")
    head = {
        "state": word.removesuffix(_NEWEST).rstrip().decode(),
        "newest": word.endswith(_NEWEST),
        "id": number,
        "nth": nth,
        "step": step,
        "microbatch": microbatch,
        "issued": round(issued, 6) if math.isfinite(issued) else issued,
    }
    return from_json(FinalOperation, {**rest, **head})
