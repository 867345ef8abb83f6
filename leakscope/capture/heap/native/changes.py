"""What has another thread changed while the heap was looked at? That is left unjudged, and counted."""

from __future__ import annotations

import sys
from itertools import chain

import numpy as np

from leakscope.capture.heap.native.autograd import Role
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.native.storages import storage_uses
from leakscope.capture.heap.python.address_book import Ints
from leakscope.capture.heap.python.columns import LIST_BASELINE
from leakscope.capture.torch_private import has_storage, storage_address, uses_of_storage
from leakscope.graph.held_by import in_rows
from leakscope.originals import referents_in_c


def uses_of_storages(native: NativeReferences) -> Ints:
    """C++ owners of each storage, -1 of one that the tensor found over it has exchanged for another since.

    A storage that nobody has any more must not be asked: its memory is somebody else's. So those of tensors are asked
    by their tensors, in one call of C, during which no other thread runs.
    """
    objects, tensors, places = native.sweep.objects, [], []
    uses = np.zeros(len(native.storages), dtype=np.int64)
    for place, (address, storage) in enumerate(native.storages.items()):
        tensor = next((objects[k] for k in storage.holders if native.role[k] == Role.TENSOR), None)
        if tensor is None or not has_storage(tensor):  # a Python storage has it for good; a sparse tensor's part
            uses[place] = storage_uses(address)
        else:
            tensors.append(tensor)
            places.append(place)
    told = np.fromiter(
        chain(map(storage_address, tensors), map(uses_of_storage, map(storage_address, tensors))),
        np.int64,
        2 * len(tensors),
    )
    addresses = np.fromiter(native.storages, np.int64, len(native.storages))
    uses[places] = np.where(told[: len(tensors)] == addresses[places], told[len(tensors) :], -1)
    return uses


def changed(native: NativeReferences, indexes: Ints) -> Ints:
    """Those of some tracked objects that are held more or less often than the sweep found, or hold something else.

    Counts and references are read in one call of C. What has changed neither way is held by what held it then: if that
    is garbage, so it is. Tensors and grad nodes show the references of C++ by how many owners C++ has, of which a look
    is one; their count may move by the one that stands for all of those.
    """
    sweep, many = native.sweep, len(indexes)
    objects = list(map(sweep.objects.__getitem__, indexes.tolist()))
    referents = referents_in_c(objects)
    told = np.fromiter(
        chain(
            map(sys.getrefcount, objects),
            map(len, map(referents, objects)),
            map(id, chain.from_iterable(map(referents, objects))),
        ),
        np.int64,
    )
    native_owners = native.role[indexes] > 0
    moved = np.abs(told[:many] - LIST_BASELINE - 1 - sweep.counts[indexes]) > native_owners
    held = sweep.address_book.find(told[2 * many :])
    holder = np.repeat(np.arange(many), told[many : 2 * many])[held >= 0]
    held = held[held >= 0]
    lengths = np.bincount(holder, minlength=many)
    before = sweep.starts[indexes + 1] - sweep.starts[indexes]
    other = lengths != before
    alike = ~other[holder]
    held_before = sweep.held[in_rows(sweep.starts[indexes], before)][np.repeat(~other, before)]
    other[holder[alike][held[alike] != held_before]] = True
    found: Ints = indexes[moved | (other & ~native_owners)]
    return found
