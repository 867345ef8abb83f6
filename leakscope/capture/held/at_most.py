"""How much memory can these objects keep alive at the most? A bound, found without a look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from leakscope.capture.heap.native.autograd import Types
from leakscope.capture.heap.native.preserved import is_gone
from leakscope.capture.heap.native.raw_memory import own_memory
from leakscope.capture.heap.native.references import deepest_walk
from leakscope.capture.heap.native.storages import is_meta, sparse_parts, storage_bytes, storage_of
from leakscope.capture.held.kinds import KINDS, Kind
from leakscope.capture.held.native import held_in_native
from leakscope.capture.private_names import Part, lacks
from leakscope.capture.torch_private import StorageBase, address_of_storage, without_functions

_ASKED = 5_000
"""Objects that are asked what C++ holds; chosen: tens of milliseconds."""


def most_bytes(doubtful: Iterable[Any]) -> int | None:
    """Bytes of all storages that tensors, grad nodes and storages lead to through C++.

    Garbage that holds memory is among what is doubtful, or C++ holds the memory for something that is: so no more than
    this goes with it. None where this torch does not show all that C++ holds, or there is too much of it.
    """
    if lacks(Part.NATIVE):
        return None
    types, problems, storages = Types(), list[str](), dict[int, int]()
    reached = {id(obj): obj for obj in doubtful}
    waiting, most = [*reached.values()], min(_ASKED, deepest_walk())
    with without_functions(), own_memory() as words:
        while waiting and len(reached) <= most:
            obj = waiting.pop()
            storages |= _storages(obj)
            for held in held_in_native(obj, KINDS.of(type(obj)), types, problems, words):
                if held.target is None and not held.at:
                    return None
                if KINDS.of(type(held.target)) >= Kind.TENSOR and id(held.target) not in reached:
                    reached[id(held.target)] = held.target
                    waiting.append(held.target)
    return None if waiting or types.gaps or problems else sum(storages.values())


def _storages(obj: Any) -> dict[int, int]:
    """Address to bytes of each storage that a tensor or a storage object has."""
    kind = KINDS.of(type(obj))
    if kind is Kind.STORAGE:
        gone = is_gone(obj) or is_meta(obj)
        return {} if gone else {int(address_of_storage(obj)): int(StorageBase.nbytes(obj))}
    if kind is not Kind.TENSOR:
        return {}
    address = storage_of(obj)
    if address is not None:
        return {address: storage_bytes(obj)}
    parts = ((storage_of(part), part) for _, part in sparse_parts(obj))
    return {at: storage_bytes(part) for at, part in parts if at is not None}
