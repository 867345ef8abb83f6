"""The C and Python heap readers return the same arrays for any heap."""

from __future__ import annotations

import contextvars
import gc
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.heap_readers import differences, tracked

from leakscope import native
from leakscope.heap import sweep
from leakscope.heap._sweep_fallback import LARGE

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
    elif isinstance(holder, list):
        holder.append(held)
    elif isinstance(holder, set):
        holder.add(name)
    else:
        setattr(holder, name, held)


# none of a type that refers to its module, which leads to all modules, as those of C written in newer CPython do
HOLDERS: dict[str, Callable[[], Any]] = {
    "list": list,
    "dict": dict,
    "box": Box,
    "slots": Slotted,
    "list of": ListOf,
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


@given(heaps())
def test_both_readers_give_the_same_of_any_heap(plan: Any) -> None:
    with heap(*plan) as built:
        objects = tracked(built)
        assert differences(objects) == []
        objects.clear()


def test_nothing_is_no_heap() -> None:
    assert differences([]) == []


def test_an_untracked_tuple_is_read_once_however_many_hold_it() -> None:
    """Two to the power of sixty ways lead down through these tuples."""
    leading: Any = (np.ones(2),)
    leading_nowhere: Any = (1.5,)
    gc.collect(0)
    for _ in range(60):
        leading, leading_nowhere = (leading, leading), (leading_nowhere, leading_nowhere)
        gc.collect(0)
    assert not gc.is_tracked(leading)
    objects: list[Any] = [[leading, leading_nowhere], [leading_nowhere]]
    assert differences(objects) == []
    assert len(sweep.read_natively(objects, False).untracked) == 61 + 1


def test_what_was_frozen_is_read_too() -> None:
    held = [{"box": Box()}, [np.ones(2)]]
    objects = [[held]]
    gc.freeze()
    try:
        with_frozen = sweep.read_natively(objects, True).untracked
        assert [id(obj) for obj in with_frozen[:3]] == [id(held), id(held[1]), id(held[0])]
        assert differences(objects) == []
    finally:
        gc.unfreeze()
