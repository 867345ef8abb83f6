"""Which objects does gc list? Where other threads run, none that C of theirs may be filling is held."""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from itertools import chain, compress, filterfalse, repeat
from operator import and_, call, is_, is_not, ne
from typing import Any

from leakscope.capture.source.user_frames import is_alone
from leakscope.originals import gc


def _are_not(one: list[Any], every: list[Any]) -> map[bool]:
    """Told by the address: these iterators are listed too, and must not hold the list that they are put into."""
    return map(ne, map(id, every), repeat(id(one)))


def listed(*generations: int) -> tuple[list[Any], set[int]]:
    """(what gc lists of these generations, or of all, in other threads' presence but for tuples; addresses of all).

    CPython refuses to resize a tuple that somebody else holds as well (Objects/tupleobject.c, _PyTuple_Resize). So no
    thread must run while they are held: they are listed and left out in one call of C.
    """
    if is_alone():
        objects: list[Any] = []
        for generation in generations or (None,):
            # a list that is there already may be listed too: were the new one put into it, each would hold the other
            new = gc.get_objects(generation)
            new += objects
            objects = new
        return objects, set(map(id, objects))
    every: list[Any] = []
    kept: list[Any] = []
    addresses: set[int] = set()
    work = chain(
        map(every.extend, map(gc.get_objects, generations or (None,))),
        map(addresses.update, (map(id, every),)),
        compress(every, map(and_, map(is_not, map(type, every), repeat(tuple)), _are_not(kept, every))),
        map(call, (every.clear,)),
    )
    kept += filterfalse(partial(is_, None), work)  # None is what the methods answer
    return kept, addresses - {id(every), id(kept)}


def listed_at(addresses: Set[int], *generations: int) -> list[Any]:
    """What gc lists at these addresses, of these generations or of all; no tuples. Nothing else is held meanwhile."""
    every: list[Any] = []
    found: list[Any] = []
    work = chain(
        map(every.extend, map(gc.get_objects, generations or (None,))),
        compress(every, map(addresses.__contains__, map(id, every))),
        map(call, (every.clear,)),
    )
    found += filterfalse(partial(is_, None), work)
    return found


def objects_listed() -> list[Any]:
    """What gc lists, as `listed` has it: the addresses take longer than the list."""
    return gc.get_objects() if is_alone() else listed()[0]
