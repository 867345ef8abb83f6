"""Which objects come to be more and more, each held by the next: linked records, with no container to gain them?"""

from __future__ import annotations

import numpy as np

from leakscope.capture.heap.native.autograd import Role
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.objects.gain import Gain
from leakscope.capture.heap.objects.sizes import Measure
from leakscope.capture.heap.python.address_book import Ints, in_own_pages
from leakscope.capture.heap.python.untracked import LARGE
from leakscope.capture.heap.raw_types import container_base, is_leakscopes, made_in_python, mro, type_name

_MOST_TYPES = 8
"""Types that one look asks, those of which most objects have come, chosen."""
_FEWEST = 3
"""Objects of one type from which on they are taken to be linked."""
_MOST_HEADS = 0.2
"""Share of the objects of a linked type that none of their like may hold: the first of each chain."""
_SAMPLED = 8
"""Objects of a type that are measured, chosen."""


class LinkedTypes:
    """What types written in Python gain over the looks of one process."""

    __slots__ = ("_counts", "_of", "_types")

    def __init__(self) -> None:
        self._types = self._counts = np.zeros(0, dtype=np.int64)
        self._of: dict[int, Gain] = {}
        """By the address of the type."""

    def tell(self, native: NativeReferences, measure: Measure) -> list[tuple[int, Gain]]:
        """(index of an object that no other of its type holds, what its type has gained); the look is over then."""
        sweep = native.sweep
        kinds = sweep.type_index[: sweep.tracked]
        order = np.argsort(sweep.type_list)
        types = sweep.type_list[order]
        counts = np.bincount(kinds, minlength=len(types))[order]
        before, self._types, self._counts = self._before(types), in_own_pages(types), in_own_pages(counts)
        grown = np.flatnonzero((before > 0) & (counts > before) & (counts >= _FEWEST))
        known, self._of = self._of, {}
        asked = [
            k for k in np.flatnonzero(np.isin(types, list(known))).tolist() if counts[k] >= known[int(types[k])].items
        ]
        asked += grown[np.argsort(before[grown] - counts[grown], kind="stable")].tolist()
        told: list[tuple[int, Gain]] = []
        one_of = sweep.type_first[order]
        asked = [k for k in dict.fromkeys(asked) if _may_be_linked(type(sweep.objects[one_of[k]]), native)]
        for k in asked[:_MOST_TYPES]:
            at = np.flatnonzero(kinds == order[k])
            heads = self._heads(native, at)
            if 0 < len(heads) <= max(_MOST_HEADS * len(at), 1):
                gain = known.get(int(types[k])) or Gain(int(types[k]), int(before[k]), 0)
                self._of[int(types[k])] = gain
                _add(gain, native, at, measure)
                told.append((int(heads[-1]), gain))
        return [(index, gain) for index, gain in told if gain.bytes >= LARGE]

    def _before(self, types: Ints) -> Ints:
        """How many objects of each of these types there were at the last look."""
        if len(self._types) == 0:
            return np.zeros(len(types), dtype=np.int64)
        place = np.minimum(np.searchsorted(self._types, types), len(self._types) - 1)
        before: Ints = np.where(self._types[place] == types, self._counts[place], 0)
        return before

    def _heads(self, native: NativeReferences, at: Ints) -> Ints:
        """Of all objects of one type those that no other of it holds, by itself or by its dict."""
        mine = np.zeros(len(native.sweep.objects), dtype=bool)
        mine[at] = True
        holder, held = native.held_by.into(at)
        dicts = np.unique(holder[native.sweep.type_list[native.sweep.type_index[holder]] == id(dict)])
        of_dicts, own = native.held_by.into(dicts)
        linked = held[mine[holder] | np.isin(holder, own[mine[of_dicts]])]
        return np.setdiff1d(at, linked)


def _may_be_linked(kind: type, native: NativeReferences) -> bool:
    """Whether objects of the type are a program's records: no tensors, containers, classes or leakscope's own."""
    return (
        made_in_python(kind)
        and native.types.role(kind) is Role.PLAIN
        and container_base(kind) is None
        and type not in mro(kind)
        and not is_leakscopes(kind)
    )


def _add(gain: Gain, native: NativeReferences, at: Ints, measure: Measure) -> None:
    """Add what has come since: some of the objects, measured without what they are linked to, stand for all."""
    more = len(at) - gain.items
    chosen = [native.sweep.objects[k] for k in at[:: max(len(at) // _SAMPLED, 1)].tolist()]
    kind, many = type(chosen[0]), len(chosen)
    measure.add(chosen, but=kind)
    size, counted = measure.taken()
    if gain.earlier is None:
        gain.earlier = size / many * gain.items
    gain.item = type_name(kind)
    gain.bytes += size / many * more
    gain.counted += counted / many * more
    gain.gained += more
    gain.items = len(at)
