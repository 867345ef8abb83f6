"""Which tensors, grad nodes and storages does Python have now, and which objects are new?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from leakscope.capture.heap.native.preserved import is_gone
from leakscope.capture.heap.native.raw_memory import own_memory
from leakscope.capture.heap.python.listed import listed
from leakscope.capture.held.kinds import KINDS, Kind
from leakscope.capture.torch_private import TensorBase
from leakscope.originals import gc

Mark = list[None]
"""The youngest of all objects: as long as it is in the youngest generation, all that came after it is there as well,
for every collection and `gc.freeze()` move that generation as a whole (CPython Modules/gcmodule.c)."""
_YOUNG = (0, 1)
"""The generations that an object goes through before the oldest."""
_COUNT = 0xFFFFFFFF
"""The bits of an object's first word that are its count; newer Pythons have flags in the others."""


class Tensors:
    """Addresses of what keeps tensor memory alive from Python: tensors, grad nodes, saved tensors, storages.

    Nothing is held, not even weakly (`torch.utils.swap_tensors` refuses a tensor that has a weak reference): an address
    stays known until memory shows that its object is gone.
    """

    def __init__(self) -> None:
        self.known: set[int] = set()
        """All that there were when last asked, some of which may have gone."""
        self.new: set[int] = set()
        """All objects that came lately, tensors or not."""
        self.storages: set[int] = set()
        """Of the known ones those that are Python objects of storages."""
        self.mark: Mark | None = None
        self._kinds: set[int] = set()
        """Types that the known ones have had."""

    def take_up(self, full: bool = False) -> set[int] | None:
        """Know all that there are, collect what is young or all, and draw a line: what comes now comes after the mark.

        Returns the known ones that came since the last mark; None where gc had made it old, and all had to be read.
        """
        young, self.new = listed(*_YOUNG)
        since = self._add(young) if id(self.mark) in self.new else None
        young.clear()
        if since is None:
            self.scan()
        gc.collect(2 if full else 1)
        self.mark = []
        return since

    def take_since(self, mark: Mark | None) -> set[int] | None:
        """Know what came since the mark as well. Returns as `take_up`."""
        youngest, places = listed(_YOUNG[0])
        self.new |= places
        if mark is not None and id(mark) in places:
            return self._add(youngest)
        youngest.clear()
        self.scan()
        return None

    def draw_line(self) -> None:
        """What comes now comes after the mark; nothing is collected."""
        self.mark = []

    def scan(self) -> None:
        """Know all that there are, from all that gc knows."""
        self._add(listed()[0])

    def _add(self, objects: Sequence[Any]) -> set[int]:
        kinds = {id(kind): kind for kind in map(type, objects)}
        wanted = {at: kind for at, kind in ((at, KINDS.of(kind)) for at, kind in kinds.items()) if kind >= Kind.TENSOR}
        if not wanted:
            return set()
        self._kinds |= wanted.keys()
        found = {
            id(obj): id(type(obj))
            for obj in objects
            if id(type(obj)) in wanted and not (wanted[id(type(obj))] is Kind.STORAGE and is_gone(obj))
        }
        self.known |= found.keys()
        self.storages |= {at for at, kind in found.items() if wanted[kind] is Kind.STORAGE}
        return set(found)

    def forget_the_dead(self, addresses: Collection[int]) -> set[int]:
        """Leave out those of these that memory shows to be gone; returns the others.

        An object that lives has a count of references above 0, and deallocating one leaves 0 there
        (CPython Objects/object.c); memory that was given back or used again shows no such type.
        """
        kinds = self._kinds | _subclasses(TensorBase)  # an object may have been given another class
        with own_memory() as words:
            if not words(id(self), 2):  # a system without /proc
                self.known.clear()
                self.scan()
                return self.known.intersection(addresses)
            read = {address: words(address, 2) for address in addresses}
        alive = {address for address, word in read.items() if word and word[0] & _COUNT and word[1] in kinds}
        self.known.difference_update(read.keys() - alive)
        self.storages &= self.known
        return alive


def _subclasses(kind: type) -> set[int]:
    """Addresses of a type and of all that are made from it."""
    waiting, seen = [kind], {id(kind)}
    while waiting:
        subclasses: list[type] = type.__subclasses__(waiting.pop())
        inner = [other for other in subclasses if id(other) not in seen]
        seen.update(map(id, inner))
        waiting += inner
    return seen
