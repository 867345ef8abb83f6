"""Is every reference to this object explained?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.native.autograd import Role, TensorBase
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.native.storages import storage_uses
from leakscope.capture.heap.python.address_book import Ints, Places

_OF_A_REPLAY = 16
"""Owners of a base or a storage that the functions of a replaying view may be, which nothing lists:
`.conj().imag` has 7 (counted with torch 2.13)."""


@dataclass(frozen=True)
class RefcountTable:
    """All references of the heap in columns, and what they leave unexplained.

    Objects are numbered as in the sweep; storages follow behind them, in the order of `NativeReferences.storages`.
    """

    objects: int
    """Python objects; the storages' indexes start here."""
    count: int
    """Objects and storages."""
    holder: Places
    held: Places
    python: Places
    """Python references that each entry accounts for; 0 where C++ owns the C++ object."""
    extra: Places
    """Index into the extra references, -1 where CPython's traversal showed it."""
    seen: NDArray[np.bool_]
    """Whether gc's own traversal reports the entry."""
    unexplained: Ints
    """References counted and not found; above 0 means something unseen holds the object."""


def explain_refcounts(native: NativeReferences) -> RefcountTable:
    """Compare every count with the references found.

    A tensor, a grad node and a storage keep one Python reference for all their C++ owners together
    (c10/util/intrusive_ptr.h: the Python object is increfed when the use count goes from 1 to 2), so their
    C++ owners are counted apart: `_use_count` of tensors and storages less one for the Python object.
    """
    sweep, extra, role = native.sweep, native.extra, native.role
    n = len(sweep.objects)
    # What gc reports from a tensor or node to a node is the C++ reference itself, listed among the extra ones.
    twice = (role[sweep.held] == Role.GRAD_NODE) & (
        (role[sweep.holder] == Role.TENSOR) | (role[sweep.holder] == Role.GRAD_NODE)
    )
    seen_pairs = _pairs(sweep.holder[twice], sweep.held[twice], n)
    plain_holder, plain_held = sweep.holder[~twice], sweep.held[~twice]
    memory = [(holder, n + k) for k, storage in enumerate(native.storages.values()) for holder in storage.holders]
    extra_holder = np.asarray(extra.holder, dtype=np.int32)
    extra_held = np.asarray(extra.held, dtype=np.int32)
    extra_python = np.asarray(extra.python, dtype=np.int32)
    memory_holder = np.asarray([h for h, _ in memory], dtype=np.int32)
    memory_held = np.asarray([s for _, s in memory], dtype=np.int32)
    python_in = np.bincount(plain_held, minlength=n) + np.bincount(extra_held, weights=extra_python, minlength=n)
    native_in = np.bincount(extra_held[extra_python == 0], minlength=n)
    unexplained = np.zeros(n + len(native.storages), dtype=np.int64)
    unexplained[:n] = sweep.counts - python_in.astype(np.int64)
    _explain_tensors_and_nodes(native, native_in, unexplained)
    _explain_storages(native, unexplained)
    plain, extras, memories = len(plain_holder), len(extra_holder), len(memory)
    shown = _lookup(seen_pairs, extra_holder, extra_held, n)
    numbers = np.arange(extras, dtype=np.int32)
    return RefcountTable(
        objects=n,
        count=n + len(native.storages),
        holder=np.concatenate([plain_holder, extra_holder, memory_holder]),
        held=np.concatenate([plain_held, extra_held, memory_held]),
        python=np.concatenate([np.ones(plain, np.int32), extra_python, np.zeros(memories, np.int32)]),
        extra=np.concatenate([np.full(plain, -1, np.int32), numbers, np.full(memories, -1, np.int32)]),
        seen=np.concatenate([np.ones(plain, bool), shown, np.zeros(memories, bool)]),
        unexplained=np.maximum(unexplained, 0),
    )


def _explain_tensors_and_nodes(native: NativeReferences, native_in: Ints, unexplained: Ints) -> None:
    """Set against the C++ owners found those that C++ counts; `native_in` is how many were found of each object."""
    for index in np.flatnonzero(native.role == Role.TENSOR).tolist():
        uses = int(TensorBase._use_count(native.sweep.objects[index]))
        shared = 1 if uses > 1 else 0
        unseen = max(uses - 1 - int(native_in[index]), 0)
        allowed = _OF_A_REPLAY if index in native.replayed else 0
        unexplained[index] = max(unexplained[index] - shared, 0) + (unseen if unseen > allowed else 0)
    nodes = np.flatnonzero(native.role == Role.GRAD_NODE)
    unexplained[nodes] -= native_in[nodes] > 0


def _explain_storages(native: NativeReferences, unexplained: Ints) -> None:
    """Set against the tensors found over each storage the owners that C++ counts, and take it off its Python object."""
    n, role = len(native.sweep.objects), native.role
    for k, storage in enumerate(native.storages.values()):
        uses = storage_uses(storage.address)
        wrappers = [h for h in storage.holders if role[h] == Role.STORAGE]
        for wrapper in wrappers:
            unexplained[wrapper] -= uses > 1
        owners = len(storage.holders) - len(wrappers) + 1  # one for the Python object, which the count always has
        unseen = max(uses - owners, 0)
        allowed = _OF_A_REPLAY if native.replayed and not native.replayed.isdisjoint(storage.holders) else 0
        unexplained[n + k] = unseen if unseen > allowed else 0


def _pairs(holder: Places, held: Places, n: int) -> Ints:
    return np.unique(holder.astype(np.int64) * n + held)


def _lookup(pairs: Ints, holder: Places, held: Places, n: int) -> NDArray[np.bool_]:
    return np.isin(holder.astype(np.int64) * n + held, pairs)
