"""Is every reference to this object explained, and by whom is it held?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.native.autograd import Role
from leakscope.capture.heap.native.changes import uses_of_storages
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.python.address_book import Ints, Places
from leakscope.capture.torch_older import COUNTS_IN_PYTHON
from leakscope.capture.torch_private import uses_of_tensor
from leakscope.graph.held_by import HeldBy, in_rows, occurrences

_OF_A_REPLAY = 16
"""Owners of a base or a storage that the functions of a replaying view may be, which nothing lists:
`.conj().imag` has 7 (counted with torch 2.13)."""


@dataclass(frozen=True, slots=True)
class References:
    """Some references of the heap in columns."""

    holder: Places
    held: Places
    python: Places
    """Python references that each entry accounts for; 0 where C++ owns the C++ object."""
    extra: Places
    """Index into the extra references, -1 where CPython's traversal showed it."""
    seen: NDArray[np.bool_]
    """Whether gc's own traversal reports the entry."""

    def at(self, places: NDArray[Any]) -> References:
        """Those at these places."""
        return References(
            self.holder[places], self.held[places], self.python[places], self.extra[places], self.seen[places]
        )


def together(parts: list[References]) -> References:
    """All references of some parts."""
    names = ("holder", "held", "python", "extra", "seen")
    return References(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, slots=True)
class RefcountTable:
    """Who holds each object of the heap, and what the references found leave unexplained.

    Objects are numbered as in the sweep; storages follow behind them, in the order of `NativeReferences.storages`.
    """

    objects: int
    """Python objects; the storages' indexes start here."""
    count: int
    """Objects and storages."""
    unexplained: Places
    """References counted and not found; above 0 means something unseen holds the object."""
    idle: Places
    """Indexes of the storages' Python objects that only C++ keeps: they hold nothing and go with the storage."""
    _swept: HeldBy
    _role: NDArray[np.int8]
    _later: References
    """What the walk found beyond the sweep, by what is held."""

    def into(self, objects: NDArray[np.integer]) -> References:
        """Every reference to one of these objects or storages, which are told once each."""
        holder, held = self._swept.into(objects)
        twice = _shown_by_cpp(self._role, holder, held)
        if twice.any():
            holder, held = holder[~twice], held[~twice]
        first, last = (np.searchsorted(self._later.held, objects, side) for side in ("left", "right"))
        later = self._later.at(in_rows(first, last - first))
        return together([_plain(holder, held), later])


def explain_refcounts(native: NativeReferences) -> RefcountTable:
    """Compare every count with the references found.

    A tensor, a grad node and a storage keep one Python reference for all their C++ owners together
    (c10/util/intrusive_ptr.h: the Python object is increfed when the use count goes from 1 to 2; `native/preserved.py`
    for older torch), so their C++ owners are counted apart: `_use_count` of tensors and storages less one for the
    Python object.
    """
    sweep, role, swept = native.sweep, native.role, native.held_by
    n = len(sweep.objects)
    unexplained = np.zeros(n + len(native.storages), dtype=np.int32)
    unexplained[:n] = sweep.counts
    unexplained[: swept.count] -= swept.times()
    later, twice = _later(native)
    np.add.at(unexplained, twice, 1)
    np.subtract.at(unexplained, later.held, later.python)
    wrappers = np.flatnonzero(role == Role.STORAGE)
    lone = wrappers[unexplained[wrappers] == sweep.counts[wrappers]]  # no Python reference to it was found
    owned = np.sort(later.held[(later.python == 0) & (later.extra >= 0)])
    _explain_tensors_and_nodes(native, owned, unexplained)
    memory_holder, memory_held = _explain_storages(native, unexplained)
    np.maximum(unexplained, 0, out=unexplained)
    memory = len(memory_holder)
    nothing, none = np.zeros(memory, dtype=np.int32), np.full(memory, -1, dtype=np.int32)
    later = together([later, References(memory_holder, memory_held, nothing, none, np.zeros(memory, dtype=bool))])
    idle = lone[unexplained[lone] == 0].astype(np.int32)
    by_held = later.at(np.argsort(later.held, kind="stable"))
    return RefcountTable(n, len(unexplained), unexplained, idle, swept, role, by_held)


def _shown_by_cpp(role: NDArray[np.int8], holder: Places, held: Places) -> NDArray[np.bool_]:
    """Which references gc reports from a tensor or node to a node: the C++ ones, listed among the extra ones."""
    to_node: NDArray[np.bool_] = role[held] == Role.GRAD_NODE
    of = role[holder[to_node]]
    to_node[to_node] = (of == Role.TENSOR) | (of == Role.GRAD_NODE)
    return to_node


def _plain(holder: Places, held: Places) -> References:
    count = len(holder)
    ones, none = np.ones(count, dtype=np.int32), np.full(count, -1, dtype=np.int32)
    return References(holder, held, ones, none, np.ones(count, dtype=bool))


def _later(native: NativeReferences) -> tuple[References, Places]:
    """What the walk found beyond the sweep; and what each reference of the sweep's holds that is among it as well."""
    role, extra, n = native.role, native.extra, len(native.sweep.objects)
    nodes = np.flatnonzero(role == Role.GRAD_NODE)
    swept_holder, swept_held = native.held_by.into(nodes)
    twice = _shown_by_cpp(role, swept_holder, swept_held)
    new_holder, new_held = (np.asarray(column, dtype=np.int32) for column in native.later)
    new_twice = _shown_by_cpp(role, new_holder, new_held)
    pairs = _pairs(
        np.append(swept_holder[twice], new_holder[new_twice]), np.append(swept_held[twice], new_held[new_twice]), n
    )
    holder, held = np.asarray(extra.holder, dtype=np.int32), np.asarray(extra.held, dtype=np.int32)
    extras = References(
        holder,
        held,
        np.asarray(extra.python, dtype=np.int32),
        np.arange(len(holder), dtype=np.int32),
        np.isin(_pairs(holder, held, n), pairs),
    )
    return together([_plain(new_holder[~new_twice], new_held[~new_twice]), extras]), swept_held[twice]


def _pairs(holder: Places, held: Places, n: int) -> Ints:
    return holder.astype(np.int64) * n + held


def _explain_tensors_and_nodes(native: NativeReferences, owned: Places, unexplained: Places) -> None:
    """Set against the C++ owners found those that C++ counts; `owned` has each object once for every one found."""
    objects = native.sweep.objects
    tensors = np.flatnonzero(native.role == Role.TENSOR)
    uses = np.fromiter(map(uses_of_tensor, map(objects.__getitem__, tensors.tolist())), np.int64, len(tensors))
    unseen = np.maximum(uses - 1 - occurrences(owned, tensors), 0)
    if native.replayed:
        unseen[(unseen <= _OF_A_REPLAY) & np.isin(tensors, list(native.replayed))] = 0
    of_cpp = native.taken_over.python_references(tensors, uses)
    unexplained[tensors] = np.maximum(unexplained[tensors] - of_cpp, 0) + unseen
    nodes = np.flatnonzero(native.role == Role.GRAD_NODE)
    unexplained[nodes] -= occurrences(owned, nodes) > 0


def _explain_storages(native: NativeReferences, unexplained: Places) -> tuple[Places, Places]:
    """Set against the tensors found over each storage the owners that C++ counts, and take it off its Python object.

    Gives the references to storages.
    """
    first, many = len(native.sweep.objects), len(native.storages)
    holders = [storage.holders for storage in native.storages.values()]
    lengths = np.fromiter(map(len, holders), np.int64, many)
    holder = np.fromiter(chain.from_iterable(holders), np.int32, int(lengths.sum()))
    storage = np.repeat(np.arange(many), lengths)
    uses = uses_of_storages(native)
    wrapper = native.role[holder] == Role.STORAGE
    of_cpp = native.taken_over.python_references(holder[wrapper], uses[storage[wrapper]])
    np.subtract.at(unexplained, holder[wrapper], of_cpp.astype(np.int32))
    tensors = np.bincount(storage[~wrapper], minlength=many)
    # one for the Python object, which the count of newer torch always has
    python = 1 if COUNTS_IN_PYTHON else np.bincount(storage[wrapper], minlength=many) > 0
    unseen = np.maximum(uses - tensors - python, 0)
    if native.replayed:
        of_replays = np.bincount(storage[np.isin(holder, list(native.replayed))], minlength=many) > 0
        unseen[of_replays & (unseen <= _OF_A_REPLAY)] = 0
    unseen[uses < 0] = 1
    unexplained[first:] = unseen
    return holder, (storage + first).astype(np.int32)
