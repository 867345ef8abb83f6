"""How does a row become JSON, and what of a file is taken for one? Both follow from the types of its dataclass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from leakscope.record.kinds import RowTag

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
