"""Which live objects are the garbage that a look has found?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leakscope.capture.heap.explain import ExplainedHeap
from leakscope.capture.heap.native.autograd import Role
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.torch_private import TensorBase


def garbage_among(heap: ExplainedHeap, kinds: tuple[type, ...]) -> Iterator[Any]:
    """Objects that nothing alive holds and that lead to tensor memory, of these types and of those made from them.

    Where all tensors are asked for, memory that no tensor is left of is given as its storage object. No object is asked
    for its class: `isinstance` runs code of the user's.
    """
    n, native = heap.refcounts.objects, heap.native
    dead = heap.pruned.objects[heap.freed != 0]
    for k in dead[dead < n].tolist():
        bases = mro(type(native.sweep.objects[k]))
        if any(kind in bases for kind in kinds):
            yield native.sweep.objects[k]
    if not any(TensorBase in mro(kind)[:2] for kind in kinds):
        return
    storages = list(native.storages.values())
    for storage in (storages[k - n] for k in dead[dead >= n].tolist()):
        if not any(native.role[k] == Role.TENSOR for k in storage.holders):
            yield native.sweep.objects[storage.holders[0]]
