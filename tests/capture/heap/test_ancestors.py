"""Garbage computed on the ancestors of memory equals that of the whole heap."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.graph.walks import ReferrerIndex, reachable
from leakscope.heap import liveness
from leakscope.heap.autograd import Role
from leakscope.heap.liveness import PrunedHeap, Refcounts, Unreachable, ancestors, find_unreachable, freed_by
from leakscope.heap.native_graph import References, ReferenceTable

OBJECTS, STORAGES = 10, 2
COUNT = OBJECTS + STORAGES
PLAIN, EXTRA, NATIVE = "plain", "extra", "native"


@dataclass(frozen=True)
class Heap:
    """A heap made of numbers: objects, then storages."""

    references: ReferenceTable
    refcounts: Refcounts
    sweep: Any
    stops: frozenset[int]
    out: frozenset[int]

    def mask(self, members: frozenset[int]) -> Any:
        mask = np.zeros(COUNT, dtype=bool)
        mask[list(members)] = True
        return mask


def _columns(references: list[tuple[int, int, str]], kinds: tuple[str, ...]) -> References:
    some = sorted((r for r in references if r[2] in kinds), key=lambda r: r[1])
    holder, held = (np.array([r[k] for r in some], dtype=np.int32) for k in (0, 1))
    python = np.array([r[2] != NATIVE for r in some], dtype=np.int32)
    extra = np.array([-1 if r[2] == PLAIN else k for k, r in enumerate(some)], dtype=np.int32)
    return References(holder, held, python, extra, extra < 0)


@st.composite
def heaps(draw: st.DrawFn) -> Heap:
    """Some objects are instances of the first two, which are classes then; what nothing holds is held from outside."""
    place, either = st.integers(0, OBJECTS - 1), st.sampled_from([PLAIN, PLAIN, EXTRA, NATIVE])
    references = draw(st.lists(st.tuples(place, place, either), max_size=24))
    memory = [
        (draw(place), storage, NATIVE) for storage in range(OBJECTS, COUNT) for _ in range(draw(st.integers(1, 3)))
    ]
    kinds = draw(st.lists(st.integers(0, 2), min_size=OBJECTS, max_size=OBJECTS))
    plain, later = _columns(references, (PLAIN,)), _columns([*references, *memory], (EXTRA, NATIVE))
    seldom = st.frozensets(place, max_size=2)
    unheld = sorted(set(range(OBJECTS)) - {held for _, held, _ in references})
    idle = np.array([k for k in unheld if draw(st.booleans())], dtype=np.int32)
    role = np.zeros(OBJECTS, dtype=np.int8)
    role[idle] = Role.STORAGE
    unexplained = np.zeros(COUNT, dtype=np.int32)
    unexplained[[*draw(seldom), *unheld]] = 1
    unexplained[idle] = 0
    swept = ReferrerIndex(OBJECTS, plain.holder, plain.held)
    table = ReferenceTable(OBJECTS, COUNT, role, swept, later, np.zeros(0, dtype=np.int32))
    addresses = np.arange(OBJECTS, dtype=np.int64) * 100
    sweep = SimpleNamespace(addresses=addresses, type_list=np.array([0, 100, 7]), type_index=np.array(kinds))
    return Heap(table, Refcounts(unexplained, idle), sweep, draw(seldom), draw(seldom))


def _pruned(heap: Heap) -> tuple[PrunedHeap, list[tuple[int, ...]]]:
    stops, out = heap.mask(heap.stops), heap.mask(heap.out)
    memory = np.arange(OBJECTS, COUNT)
    objects, references = ancestors(heap.sweep, heap.references, heap.refcounts.idle, memory, stops, out)
    listed = [getattr(references, name).tolist() for name in ("holder", "held", "python", "extra")]
    return PrunedHeap(objects, references, {}, {}, stops | out), sorted(zip(*listed, strict=True))


def _whole(heap: Heap, pruned: PrunedHeap) -> Unreachable:
    """What nothing live holds, of all objects."""
    every = heap.references.into(np.arange(COUNT))
    alive = reachable(COUNT, every.holder, every.held, np.flatnonzero((heap.refcounts.unexplained > 0) | pruned.roots))
    return Unreachable(np.flatnonzero(~alive), every.at(~alive[every.holder] & ~alive[every.held]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(heap=heaps(), levels=st.sampled_from([1, COUNT + 2]), tracked=st.integers(0, OBJECTS))
def test_garbage_is_the_same_on_the_ancestors(
    heap: Heap, levels: int, tracked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "MAX_LEVELS", levels)
    pruned, _ = _pruned(heap)
    whole = _whole(heap, pruned)
    found = find_unreachable(heap.references, heap.refcounts, pruned)
    assert set(found.objects.tolist()) & set(pruned.objects.tolist()) == set(whole.objects.tolist()) & set(
        pruned.objects.tolist()
    )
    assert set(found.objects.tolist()) <= set(whole.objects.tolist())
    native: Any = SimpleNamespace(
        role=heap.references.role, references=heap.references, sweep=SimpleNamespace(tracked=tracked)
    )
    on_ancestors, of_all = (freed_by(native, dead, pruned.objects).tolist() for dead in (found, whole))
    assert on_ancestors == of_all
