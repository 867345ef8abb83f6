"""Do both readers of the heap, in C and in Python, give the same arrays of any heap?"""

from __future__ import annotations

import collections
import contextvars
import gc
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope import native
from leakscope.capture.heap.python import native_reader, pure_reader
from leakscope.capture.heap.python.columns import HeapColumns
from leakscope.capture.heap.python.untracked import LARGE

pytestmark = pytest.mark.skipif(native.gc_heap() is None, reason="no native heap reader")


class Box:
    """Holds anything as attributes."""


class Slotted:
    __slots__ = ("__weakref__", "first", "second")


class ListOf(list):  # type: ignore[type-arg]  # typing would lead to all modules
    """A list with attributes."""


class ArrayOf(np.ndarray):  # type: ignore[type-arg]
    """An array that gc tracks, with attributes."""


class RowWork:
    """Named as pybind's handles are, though gc knows all of it."""


def _add(holder: Any, held: Any, names: Iterator[int]) -> None:
    name = f"held_{next(names)}"
    if isinstance(holder, types.CellType):
        holder.cell_contents = held
    elif isinstance(holder, Slotted):
        holder.second, holder.first = getattr(holder, "first", None), held
    elif type(holder) is np.ndarray:
        holder[next(names) % len(holder)] = held
    elif type(holder) is dict:
        holder[name] = held
    elif isinstance(holder, (list, collections.deque)):
        holder.append(held)
    elif isinstance(holder, set):
        holder.add(name)
    else:
        setattr(holder, name, held)


HOLDERS: dict[str, Callable[[], Any]] = {
    "list": list,
    "dict": dict,
    "box": Box,
    "slots": Slotted,
    "list of": ListOf,
    "deque": collections.deque,
    "set": set,
    "cell": lambda: types.CellType(None),
    "objects": lambda: np.empty(4, dtype=object),
    "array of": lambda: np.zeros(3).view(ArrayOf),
    "handle": RowWork,
}
LEAVES: dict[str, Callable[[], Any]] = {
    "text": lambda: "".join(["a", "text"]),
    "number": lambda: 10**9 + 1,
    "bytes": lambda: bytes(LARGE - 1),
    "large bytes": lambda: bytes(LARGE),
    "large bytearray": lambda: bytearray(LARGE),
    "array": lambda: np.ones(3),
    "view": lambda: np.ones(3)[1:],
    "memory": lambda: memoryview(bytearray(8)),
    "numbers": lambda: (1.5, 10**9, "three"),
    "table": lambda: {"a": 1.5, "b": 10**9},
    "empty": dict,
    "with an array": lambda: (1, {"deep": 1, "array": (np.ones(2), 2)}),
    "with large bytes": lambda: ((b"small", 1), ((bytes(2 * LARGE), 1), 2)),
    "type": lambda: Box,
    "variable": lambda: contextvars.ContextVar("v"),
}


@st.composite
def heaps(draw: st.DrawFn) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[int, int], ...]]:
    holders = draw(st.lists(st.sampled_from(sorted(HOLDERS)), min_size=1, max_size=8))
    leaves = draw(st.lists(st.sampled_from(sorted(LEAVES)), max_size=8))
    references = st.tuples(st.integers(0, len(holders) - 1), st.integers(0, len(holders) + len(leaves) - 1))
    return tuple(holders), tuple(leaves), tuple(draw(st.lists(references, max_size=24)))


@contextmanager
def heap(kinds: tuple[str, ...], leaves: tuple[str, ...], references: tuple[tuple[int, int], ...]) -> Iterator[Any]:
    """The objects of a plan, taken apart again at the end."""
    built = [HOLDERS[kind]() for kind in kinds] + [LEAVES[kind]() for kind in leaves]
    names = count()
    for holder, held in references:
        _add(built[holder], built[held], names)
    gc.collect(0)  # leaves the dicts and tuples untracked that hold nothing gc would track
    try:
        yield built
    finally:
        built.clear()


def tracked(built: list[Any]) -> list[Any]:
    return [obj for obj in built if gc.is_tracked(obj)]


def differences(objects: list[Any], *, counts: bool = True) -> list[str]:
    """What both readers say otherwise of these objects."""
    names = [field.name for field in fields(HeapColumns)]
    python = pure_reader.read(objects, True)
    untracked = [(id(obj), type(obj)) for obj in python.untracked]
    python.untracked.clear()  # it would count among their references
    read = native_reader.read(objects, True)
    found = []
    for name in names:
        ours, theirs = getattr(read, name), getattr(python, name)
        if isinstance(ours, np.ndarray):
            if "counts" in name and not counts:
                continue
            if ours.dtype != theirs.dtype or ours.shape != theirs.shape or (ours != theirs).any():
                found.append(f"{name}: {theirs[:20]} by Python, {ours[:20]} by C")
        elif name == "untracked":
            if [(id(obj), type(obj)) for obj in ours] != untracked:
                found.append(f"untracked: {untracked} by Python, {list(map(type, ours))} by C")
        elif name == "dicts":
            for column in fields(theirs):
                if getattr(ours, column.name).tolist() != getattr(theirs, column.name).tolist():
                    found.append(f"dicts.{column.name}")
    asked = np.concatenate([python.addresses, python.addresses + 8, python.firsts, np.array([0, -1, 1 << 62])])
    if read.book.find(asked).tolist() != python.book.find(asked).tolist():
        found.append("find")
    some = [*asked[:50].tolist(), -1, 1 << 80]
    if list(map(read.book.find_one, some)) != list(map(python.book.find_one, some)):
        found.append("find_one")
    read.untracked.clear()
    return found


@given(heaps())
def test_both_readers_give_the_same_of_any_heap(plan: Any) -> None:
    with heap(*plan) as built:
        objects = tracked(built)
        assert differences(objects) == []
        objects.clear()


def test_nothing_is_no_heap() -> None:
    assert differences([]) == []
