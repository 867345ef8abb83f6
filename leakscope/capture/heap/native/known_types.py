"""What is each type of the heap to a look? Judged once, and remembered for as long as the type lives."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakscope.capture.heap.native.autograd import role_of
from leakscope.capture.heap.python.address_book import Ints, in_own_pages
from leakscope.capture.heap.raw_types import container_base, is_leakscopes

ROLE = 3
"""Bits of a verdict that are the `Role`."""
GAINING = 4
"""Bit of a verdict: objects of the type are containers that can gain items."""
OURS = 8
"""Bit of a verdict: the type is leakscope's own."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The types judged so far, in the order of their addresses, in pages of their own.

    A dict of them all would be half a MiB of malloc's, which the count of the program's memory would rise by. It is
    replaced as a whole: an exception of the script's may interrupt whatever makes the next one.
    """

    addresses: Ints
    verdicts: Ints
    types: tuple[weakref.ref[type], ...]
    """Say which of them still live: an address goes to another type as soon as one is gone.

    A class has a weak reference already, in its base's list of subclasses (CPython Objects/typeobject.c, add_subclass):
    none is made. What a type is made from does not change in its lifetime, for neither does the layout of its objects.
    """

    def only(self, places: Sequence[int]) -> _Known:
        """Those at these places, in this order."""
        return _Known(
            in_own_pages(self.addresses[places]),
            in_own_pages(self.verdicts[places]),
            tuple(self.types[place] for place in places),
        )

    def and_also(self, types: Mapping[int, type]) -> _Known:
        """These and the types by their addresses, which are judged."""
        both = _Known(
            np.append(self.addresses, np.fromiter(types, np.int64, len(types))),
            np.append(self.verdicts, [_judge(kind) for kind in types.values()]),
            (*self.types, *map(weakref.ref, types.values())),
        )
        return both.only(np.argsort(both.addresses).tolist())


_known = _Known(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), ())


def verdicts_on(kinds: Iterable[type]) -> NDArray[np.int8]:
    """The verdict on each of these types."""
    global _known  # noqa: PLW0603 - one for the process, whose types they are
    known = _known
    alive = [place for place, kind in enumerate(known.types) if kind() is not None]
    if len(alive) < len(known.types):
        known = known.only(alive)
    asked = list(kinds)
    addresses = np.fromiter(map(id, asked), np.int64, len(asked))
    new = {int(addresses[k]): asked[k] for k in np.flatnonzero(~np.isin(addresses, known.addresses)).tolist()}
    if new:
        known = known.and_also(new)
    _known = known
    return known.verdicts[np.searchsorted(known.addresses, addresses)].astype(np.int8)


def _judge(kind: type) -> int:
    return role_of(kind) | GAINING * (container_base(kind) is not None) | OURS * is_leakscopes(kind)
