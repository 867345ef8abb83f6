"""What could somebody who types let go of, and what would each command free?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from leakscope.findings.holding.letting_go import variables_of_session
from leakscope.findings.holding.model import Keeper, LettingGo, Typed
from leakscope.findings.holding.session import keepers_of
from leakscope.graph.model import HeapGraph, Ints
from leakscope.graph.reach import Mask
from leakscope.graph.retained import freed_with_gc, freed_without

OUTPUTS = (Keeper.OUTPUTS,)
SHOWN = (Keeper.SHOWN,)
ERRORS = (Keeper.LAST_ERROR, Keeper.TRACEBACK, Keeper.DEBUGGER)
"""Let go of together; that of the cell before goes by itself."""


def typed(graph: HeapGraph, wanted: Sequence[LettingGo]) -> tuple[Typed, ...]:
    """Commands in an order in which each frees what it can, with the bytes that it frees once those before are typed.

    `wanted` is what frees each holder's memory; what takes more than names of the session is left out.
    """
    keepers, names = keepers_of(graph), variables_of_session(graph)
    # what the cell before has shown or raised goes by itself, when the one that asks is over
    gone = list(keepers.get(Keeper.LAST_CELL, ()))
    freed = freed_without(graph, np.asarray(gone, dtype=np.int64), later=True)
    told = []
    for command in _commands([going for going in wanted if len(going.variables) == len(going.written)]):
        gone += [r for keeper in command.keepers for r in keepers.get(keeper, ())]
        gone += [names[name] for name in command.variables]
        before = _bytes(graph, freed)
        cut: Ints = np.asarray(gone, dtype=np.int64)
        freed |= freed_without(graph, cut, later=True)
        if command.collects:
            dead = freed_with_gc(graph, cut) | (graph.freed > 0)
            gone += np.flatnonzero(dead[graph.holder]).tolist()  # what was collected holds nothing any more
            freed |= dead
        there = tuple(keeper for keeper in command.keepers if keeper in keepers)
        told.append(
            Typed(there, command.error_names, command.variables, command.collects, _bytes(graph, freed) - before)
        )
    return tuple(told)


def _commands(wanted: Sequence[LettingGo]) -> Iterator[Typed]:
    """Outputs, the error, variables, gc: the session's own first, which may have what variables have."""
    needed = {keeper for going in wanted for keeper in going.keepers}
    if needed & {*OUTPUTS}:
        yield Typed(OUTPUTS, (), (), True, 0)  # `%reset -f out` collects (IPython/core/displayhook.py, flush)
    if needed & {*SHOWN}:
        yield Typed(SHOWN, (), (), False, 0)
    of_error = [going for going in wanted if {*going.keepers} & {*ERRORS}]
    if of_error:
        yield Typed(ERRORS, of_error[0].error_names, (), any(going.after_gc for going in of_error), 0)
    for name in dict.fromkeys(name for going in wanted for name in going.variables):
        yield Typed((), (), (name,), False, 0)
    if any(going.after_gc for going in wanted if going not in of_error):
        yield Typed((), (), (), True, 0)


def _bytes(graph: HeapGraph, freed: Mask) -> int:
    return int(graph.bytes[graph.storages[freed[graph.storages]]].sum())
