"""Who holds tensor memory now, biggest first, and what would letting go free?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leakscope.findings.cut.multi_cut import without
from leakscope.findings.grouping.groups import Group, group_storages
from leakscope.findings.holding.letting_go import Held, let_go
from leakscope.findings.holding.model import Alive, HeldNow, Keeper, Kept, LettingGo, Part
from leakscope.findings.holding.modules import by_module
from leakscope.findings.holding.session import is_interactive, keepers_of, last_error, outputs_above
from leakscope.findings.holding.typed import typed
from leakscope.findings.memory.oom import is_named, named
from leakscope.findings.naming.expressions import line_of
from leakscope.graph.model import HeapGraph, Ints
from leakscope.graph.reach import Mask, reachable

MOST_LINES = 20
"""Holders told one by one, chosen: a screen of them."""
_SHOWN = (Keeper.OUTPUTS, Keeper.SHOWN)
_MOST_OUTPUTS = 4
"""Names of one output that are told, chosen."""
_Key = tuple[Kept, str, str, Part]


@dataclass(frozen=True)
class _Line:
    """One holder, and its groups."""

    held: HeldNow
    groups: tuple[Held, ...]


def alive_now(
    graph: HeapGraph,
    most: int = MOST_LINES,
    *,
    device: str = "cpu",
    counted_bytes: int | None = None,
    hides: bool = False,
    only: Collection[int] | None = None,
) -> Alive:
    """All tensor memory of a graph by holder; what frees each of the `most` largest is worked out.

    `counted_bytes` is what the device's allocator has handed out, where that counts tensors alone; `only` are the
    storages that are asked for, all where it is None.
    """
    lines: dict[_Key, _Line] = {}
    asked = list(graph.storages.tolist() if only is None else only)
    here: Mask = np.zeros(len(graph), dtype=bool)
    here[asked] = True
    for kept, held in _all_held(graph, here):
        key = (kept, *_name(graph, held, kept), held.part)
        line = lines.get(key, _Line(HeldNow(0, 0, *key), ()))
        size, count = line.held.bytes + held.group.bytes, line.held.storages + len(held.group.storages)
        lines[key] = _Line(replace(line.held, bytes=size, storages=count), (*line.groups, held))
    ordered = sorted(lines.values(), key=lambda line: (-line.held.bytes, line.held.name))
    told = [_told(graph, line, hides) for line in ordered[:most]]
    known = int(graph.bytes[asked].sum())
    on_device = known if device == "cpu" else sum(int(graph.bytes[s]) for s in graph.device)
    unseen = max((counted_bytes or 0) - on_device, 0) if device != "cpu" else 0
    if unseen:
        told.append(HeldNow(unseen, 0, Kept.UNSEEN, "", ""))
    return Alive(
        bytes=known + unseen,
        storages=len(asked),
        device=device,
        lines=tuple(sorted(told, key=lambda held: -held.bytes)),
        smaller=len(ordered[most:]),
        smaller_bytes=sum(line.held.bytes for line in ordered[most:]),
        typed=typed(graph, [held.letting_go for held in told if held.letting_go]) if is_interactive(graph) else (),
        error=last_error(graph),
        hides=hides,
    )


def _all_held(graph: HeapGraph, asked: Mask) -> Iterator[tuple[Kept, Held]]:
    """Every storage that is asked for in one group: with what holds it in the program, else by what the session alone
    keeps it.
    """
    for group in _those_in(graph, asked):
        if group.freed:
            kept = Kept.WAITS_FOR_GC if group.freed > 0 else Kept.NEVER_FREED
            yield kept, Held(graph, np.arange(len(graph.holder)), group)
    left: Mask = np.zeros(len(graph), dtype=bool)
    left[graph.storages] = (graph.freed[graph.storages] == 0) & asked[graph.storages]
    for kept, keepers in _apart(graph):
        rest, number = without(graph, keepers)
        here = left & reachable(len(rest), rest.holder, rest.held, rest.roots)
        left &= ~here
        for held in by_module(rest, number, _live(rest, here)):
            yield _kept(rest, held.group) if kept == Kept.PROGRAM else kept, held


def _apart(graph: HeapGraph) -> list[tuple[Kept, list[int]]]:
    """By what memory is kept, in the order asked, and the references of the session that are left out to see it."""
    keepers = keepers_of(graph)
    every = [r for references in keepers.values() for r in references]
    shown = [r for keeper in _SHOWN for r in keepers.get(keeper, ())]
    # a debugger has copies of the variables of frames, which are told by those where the error is remembered, too
    debugger = keepers.get(Keeper.DEBUGGER, ())
    session = [(Kept.ERROR, [*shown, *debugger]), (Kept.ERROR, shown), (Kept.OUTPUT, [])]
    return [(Kept.PROGRAM, every), *(session if every else [])]


def _live(graph: HeapGraph, here: Mask) -> Iterator[Group]:
    """The groups of live storages, of those that are here."""
    return (group for group in _those_in(graph, here) if not group.freed)


def _those_in(graph: HeapGraph, here: Mask) -> Iterator[Group]:
    for group in group_storages(graph):
        storages = tuple(s for s in group.storages if here[s])
        if storages:
            yield replace(group, storages=storages, bytes=int(graph.bytes[list(storages)].sum()))


def _kept(graph: HeapGraph, group: Group) -> Kept:
    return Kept.PROGRAM if is_named(graph, group) else Kept.NATIVE


def _name(graph: HeapGraph, held: Held, kept: Kept) -> tuple[str, str]:
    """(Name, line) of a holder; without a name what no single one holds."""
    if kept in (Kept.WAITS_FOR_GC, Kept.NEVER_FREED):
        return "", ""
    if held.part:
        last = held.group.path[held.module_at - 1]
        return held.candidate.written(last), line_of(held.graph, held.group.path, last)
    if kept == Kept.OUTPUT:
        outputs = outputs_above(graph, held.group.storages)
        cell = outputs[0][len("Out") :] if outputs and outputs[0].startswith("Out") else ""
        return ", ".join(outputs[:_MOST_OUTPUTS]), f"In{cell}" if cell else ""
    if held.by_no_name:
        last = held.candidate.group.path[-1]
        return held.candidate.written(last), held.candidate.line(last)
    name, where = named(held.graph, held.group)
    if not where and kept == Kept.PROGRAM and is_named(held.graph, held.group):
        where = held.graph.reference(held.group.path[0]).where
    return name, where


def _told(graph: HeapGraph, line: _Line, hides: bool) -> HeldNow:
    """A line with what lets go of it, and where that is the holder alone with the line of code that makes it one."""
    letting_go = None if hides else _letting_go(graph, line)
    alone = letting_go is not None and letting_go.written == (line.held.name,) and not line.held.part
    where = letting_go.where[0] if letting_go is not None and alone else ""
    return replace(line.held, letting_go=letting_go, where=where or line.held.where)


def _letting_go(graph: HeapGraph, line: _Line) -> LettingGo | None:
    """What frees all that a line has."""
    kept = line.held.kept
    if kept in (Kept.NATIVE, Kept.NEVER_FREED, Kept.UNSEEN):
        return None
    if kept == Kept.WAITS_FOR_GC:
        return LettingGo((), (), (), (), (), line.held.bytes, after_gc=True)
    storages: Ints = np.asarray([s for held in line.groups for s in held.group.storages], dtype=np.int64)
    groups: Sequence[Held] = line.groups if kept == Kept.PROGRAM else ()
    return let_go(graph, groups, storages)
