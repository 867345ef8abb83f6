"""Heap graphs as files, and the validation of what is read."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import astuple
from types import NoneType
from typing import Any, TypeVar

import numpy as np

from leakscope.graph.model import (
    KINDS,
    OBJECT_COLUMNS,
    REFERENCE_COLUMNS,
    REFERENCE_KINDS,
    ROOTS,
    CommUse,
    HeapGraph,
    Ints,
    ObjectKind,
)  # fmt: skip

_WORDS = {"kind": KINDS, "root": ROOTS, "reference_kind": REFERENCE_KINDS}
_TEXTS = ("type", "label", "name", "where", "reference_name", "reference_where")
"""Columns of indexes into the strings."""
_STORAGE, _ARRAY = KINDS.index(ObjectKind.STORAGE), KINDS.index(ObjectKind.ARRAY)
_OF_SOME_OBJECTS = ("made_at", "comm_uses", "device", "given", "set_by", "bases")
"""Facts recorded for a few objects only."""
_MAX_STRING_LENGTH = 1 << 16
"""Maximum characters of a string; longer ones are cut off. Heuristic."""
_MAX_BYTES = 1 << 60
"""Upper bound on the total bytes of a process: an exbibyte."""
_OF_USE = ((str,), (int, NoneType), (int, NoneType), (int,), (int,), (str,), (bool,), (bool,))
"""Types of the fields of a `CommUse`; the first versions did not write the last one."""
_CALLED: Mapping[type, str] = {dict: "object", list: "list", str: "text"}

T = TypeVar("T")


def to_json(graph: HeapGraph) -> dict[str, Any]:
    """Return the graph as plain lists, ready for `json.dump`."""
    data: dict[str, Any] = {
        "strings": list(graph.strings),
        "words": {name: list(map(str, words)) for name, words in _WORDS.items()},
    }
    for column in OBJECT_COLUMNS + REFERENCE_COLUMNS:
        data[column] = getattr(graph, column).tolist()
    data["made_at"] = {str(index): text for index, text in graph.made_at.items()}
    data["device"] = {str(index): text for index, text in graph.device.items()}
    if graph.given:
        data["given"] = {str(index): text for index, text in graph.given.items()}
    if graph.set_by:
        data["set_by"] = {str(index): text for index, text in graph.set_by.items()}
    if graph.bases:
        data["bases"] = dict(graph.bases)
    data["crossed"] = {str(index): list(astuple(use)) for index, use in graph.comm_uses.items()}
    return data


def from_json(data: Any) -> HeapGraph:
    """Inverse of `to_json`.

    Raises ValueError, naming the column, for anything else: columns have equal lengths, indexes are in range, and bytes
    can be summed.
    """
    data = _of_type(data, dict, "the heap")
    strings = _strings(data.get("strings"), "strings")
    columns = {name: _column(name, data.get(name)) for name in OBJECT_COLUMNS + REFERENCE_COLUMNS}
    for name, words in _WORDS.items():  # a file contains its own words, so that new ones can be inserted
        columns[name] = _numbers(name, data.get("words"), words)[_inside(name, columns[name], data["words"][name])]
    count = _one_length(columns, OBJECT_COLUMNS)
    _one_length(columns, REFERENCE_COLUMNS)
    for name in _TEXTS:
        _inside(name, columns[name], strings)
    for name in ("holder", "held"):
        _between(name, columns[name], 0, count - 1)
    _between("freed", columns["freed"], -1, count)
    _between("unexplained", columns["unexplained"], 0, _MAX_BYTES)
    _summable("bytes", columns["bytes"], 0)
    _summable("size", columns["size"], -1)
    if columns["bytes"][columns["kind"] != _STORAGE].any():
        raise ValueError("bytes are said to be of what is no storage")
    if (columns["size"][columns["kind"] == _ARRAY] < 0).any():
        raise ValueError("an array is said to have no size")
    return HeapGraph(
        strings=strings,
        made_at=_by_index("made_at", data.get("made_at"), count, _text),
        device=_by_index("device", data.get("device", {}), count, _text),
        comm_uses=_by_index("crossed", data.get("crossed", {}), count, _use),
        given=_by_index("given", data.get("given", {}), count, _text),
        set_by=_by_index("set_by", data.get("set_by", {}), len(columns["holder"]), _text),
        bases={_text(name): _text(base) for name, base in _of_type(data.get("bases", {}), dict, "bases").items()},
        **columns,
    )


def is_same(one: HeapGraph, other: HeapGraph) -> bool:
    """Whether two graphs are equal."""
    return (
        len(one) == len(other)
        and one.strings == other.strings
        and all(np.array_equal(getattr(one, each), getattr(other, each)) for each in OBJECT_COLUMNS + REFERENCE_COLUMNS)
        and all(getattr(one, each) == getattr(other, each) for each in _OF_SOME_OBJECTS)
    )


def _column(name: str, values: Any) -> Ints:
    values = _of_type(values, list, name)
    try:
        return np.frombuffer(array("q", values), dtype=np.int64) if values else np.zeros(0, np.int64)
    except (TypeError, OverflowError):  # an array accepts no string or fraction as a number
        raise ValueError(f"{name} holds what is no whole number of 64 bits") from None


def _numbers(name: str, words: Any, known: tuple[str, ...]) -> Ints:
    """For each word of the file its index among the known ones."""
    data = _strings(_of_type(words, dict, "words").get(name), f"words of {name}")
    unknown = next((word for word in data if word not in known), None)
    if unknown is not None:
        raise ValueError(f"{unknown[:40]!r} is no {name} that this version knows")
    return np.asarray([known.index(word) for word in data], dtype=np.int64)


def _one_length(columns: Mapping[str, Ints], names: tuple[str, ...]) -> int:
    count = len(columns[names[0]])
    for name in names:
        if len(columns[name]) != count:
            raise ValueError(f"{name} has {len(columns[name])} rows, {names[0]} {count}")
    return count


def _inside(name: str, column: Ints, of: Any) -> Ints:
    return _between(name, column, 0, len(of) - 1)


def _between(name: str, column: Ints, least: int, most: int) -> Ints:
    if len(column) and not (least <= column.min() and column.max() <= most):
        row = int(np.flatnonzero((column < least) | (column > most))[0])
        raise ValueError(f"{name} of row {row} is {column[row]}, not from {least} to {most}")
    return column


def _summable(name: str, column: Ints, least: int) -> None:
    _between(name, column, least, _MAX_BYTES)
    if column.sum(dtype=np.float64) > _MAX_BYTES:
        raise ValueError(f"{name} are more than {_MAX_BYTES} in all")


def _strings(values: Any, name: str) -> tuple[str, ...]:
    values = _of_type(values, list, name)
    if not set(map(type, values)) <= {str}:
        raise ValueError(f"{name} holds what is no text")
    return tuple(values) if max(map(len, values), default=0) <= _MAX_STRING_LENGTH else tuple(map(_text, values))


def _by_index(name: str, data: Any, count: int, read: Any) -> dict[int, Any]:
    found = {}
    for key, value in _of_type(data, dict, name).items():
        index = int(key) if key.isdecimal() and len(key) <= len(str(count)) else -1
        if not 0 <= index < count:
            raise ValueError(f"{name} tells of object {key[:20]!r} among {count}")
        found[index] = read(value)
    return found


def _text(value: Any) -> str:
    text = _of_type(value, str, "what stands for a text")
    return text if len(text) <= _MAX_STRING_LENGTH else f"{text[:_MAX_STRING_LENGTH]}..."


def _use(value: Any) -> CommUse:
    data = _of_type(value, list, "what crossed")
    if not len(_OF_USE) - 1 <= len(data) <= len(_OF_USE):
        raise ValueError(f"what crossed has {len(data)} fields")
    for field, kinds in zip(data, _OF_USE, strict=False):
        if type(field) not in kinds or (type(field) is int and abs(field) > _MAX_BYTES):
            raise ValueError("what crossed has a field of another type")
    return CommUse(*data)


def _of_type(value: Any, kind: type[T], name: str) -> T:
    if type(value) is not kind:
        raise ValueError(f"{name} is {'missing' if value is None else f'no {_CALLED[kind]}'}")
    return value
