"""How does a row become JSON, and what of a file is taken for one? Both follow from the types of its dataclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from leakscope.record.kinds import RowTag

Read = Callable[[Any], Any]
"""From a value of JSON to a field's; raises ValueError for one of another type."""
Write = Callable[[Any], Any]

_LEFT_OUT = "left out"


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


def from_json(kind: type[T], data: Any) -> T:
    """The dataclass that `to_json` made `data` of; keys of a newer leakscope, which it does not know, are passed over.

    Raises ValueError where `data` is no object, lacks a field that has no default, or has one of another type.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{_shown(data)} is no object")
    values = {}
    for column in _columns(kind):
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


def _columns(kind: type[Any]) -> tuple[_Column, ...]:
    known = _columns_of.get(kind)
    if known is None:
        types = get_type_hints(kind)
        known = _columns_of[kind] = tuple(_column(entry, types[entry.name]) for entry in fields(kind))
    return known


def _column(entry: Field[Any], kind: Any) -> _Column:
    needed = entry.default is MISSING and entry.default_factory is MISSING
    return _Column(entry.name, _reader(kind), _writer(kind), needed, entry.default, _LEFT_OUT in entry.metadata)


def _reader(kind: Any) -> Read:
    if get_origin(kind) is tuple:
        return _of_list(get_args(kind))
    if get_origin(kind) is UnionType:
        (inner,) = (_reader(part) for part in get_args(kind) if part is not NoneType)
        return lambda value: None if value is None else inner(value)
    if is_dataclass(kind):
        return lambda value: from_json(kind, value)  # type: ignore[arg-type]
    if issubclass(kind, StrEnum):
        return _of_enum(kind)
    taken = (int, float) if kind is float else (kind,)
    return lambda value: value if type(value) in taken else _refuse(value, kind)


def _of_list(kinds: tuple[Any, ...]) -> Read:
    if kinds[-1] is not Ellipsis:
        readers = [_reader(kind) for kind in kinds]

        def some(value: Any) -> Any:
            if not isinstance(value, list) or len(value) != len(readers):
                _refuse(value, f"list of {len(readers)}")
            return tuple(read(item) for read, item in zip(readers, value, strict=True))

        return some
    kind, read = kinds[0], _reader(kinds[0])
    plain = kind in (int, str, bool)

    def many(value: Any) -> Any:
        if not isinstance(value, list):
            _refuse(value, "list")
        if plain and set(map(type, value)) <= {kind}:  # a list may be of a hundred thousand blocks
            return tuple(value)
        return tuple(map(read, value))

    return many


def _of_enum(kind: type[StrEnum]) -> Read:
    known: dict[Any, StrEnum] = {str(word): word for word in kind}
    return lambda value: known[value] if isinstance(value, str) and value in known else _refuse(value, kind)


def _writer(kind: Any) -> Write | None:
    if get_origin(kind) is UnionType:
        (inner,) = (_writer(part) for part in get_args(kind) if part is not NoneType)
        return None if inner is None else lambda value: None if value is None else inner(value)
    if get_origin(kind) is tuple:
        item = _writer(get_args(kind)[0])
        return list if item is None else lambda value: [item(part) for part in value]
    return to_json if is_dataclass(kind) else None


def _refuse(value: Any, wanted: Any) -> Any:
    raise ValueError(f"{_shown(value)} is no {getattr(wanted, '__name__', wanted)}")


def _shown(value: Any, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."
