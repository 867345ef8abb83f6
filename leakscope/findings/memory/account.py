"""On which line of the ledger does each byte of a look stand?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from leakscope.findings.grouping.groups import Group
from leakscope.findings.grouping.names import Key
from leakscope.findings.grouping.over_looks import GroupsOverLooks
from leakscope.findings.ledger import LedgerInterval, Line, LineKind, RestedKind, merged_lines
from leakscope.findings.memory.balance import Balance, bytes_a_node, storage_bytes
from leakscope.graph.model import IMMORTAL, HeapGraph, ObjectKind
from leakscope.record.model import Look

Levels = Mapping[int, int]
"""Position of a look to bytes there."""


def ledger_of(
    looks: Sequence[Look],
    balances: Sequence[Balance],
    groups: GroupsOverLooks,
    lines_of: Mapping[Key, Line],
    objects: Sequence[tuple[Line, Levels]] = (),
    graphs: Line | None = None,
    unknown: Line | None = None,
    scattered: Line | None = None,
) -> tuple[LedgerInterval, ...]:
    """The intervals between looks in a row on one kind of device; each one's lines add up to what was counted.

    Args:
        looks: the judged ones.
        balances: one for each look.
        groups: of the storages of these looks.
        lines_of: the line of each group that a finding is about.
        objects: lines of findings about objects that are no tensors, and their bytes at the looks.
        graphs: the line of the finding that keeps grad nodes, where there is one.
        unknown: the line of a leak whose holder is unknown, where there is one: all that is not known is its.
        scattered: the line of what grows under ever new names, where there is one.

    """
    each = bytes_a_node(balances)
    whose = "" if unknown is None else unknown.fingerprint
    node = graphs or Line(LineKind.GRAD_NODES, 0, whose)
    levels = []
    for place, (step, look, balance) in enumerate(zip(groups.steps, looks, balances, strict=True)):
        lines = list(_storages(step, look, balance, groups, lines_of, scattered))
        lines += _objects(place, balance, objects)
        lines.append(Line(LineKind.BLOCKS, balance.blocks, whose))
        if balance.gap is not None:
            lines.append(replace(node, bytes=balance.nodes * each))
            left = (balance.counted or 0) - sum(line.bytes for line in lines)
            lines.append(Line(LineKind.UNATTRIBUTED, left, whose))
        levels.append(lines)
    return tuple(
        _interval(a, b, before, after)
        for (a, before), (b, after) in pairwise(zip(balances, levels, strict=True))
        if a.counted_on == b.counted_on
    )


def _interval(a: Balance, b: Balance, before: Sequence[Line], after: Sequence[Line]) -> LedgerInterval:
    if a.counted is None or b.counted is None:
        unknown = (LineKind.GRAD_NODES, LineKind.UNATTRIBUTED)
        before, after = ([line for line in lines if line.kind not in unknown] for lines in (before, after))
        counted = None
    else:
        counted = b.counted - a.counted
    moved = merged_lines((*after, *(replace(line, bytes=-line.bytes) for line in before)))
    return LedgerInterval(a.step, b.step, counted, moved, b.counted_on)


def _storages(
    step: int,
    look: Look,
    balance: Balance,
    groups: GroupsOverLooks,
    lines_of: Mapping[Key, Line],
    scattered: Line | None,
) -> Iterator[Line]:
    left = balance.storages
    for key, at in groups.at.items():
        if step in at:
            group = at[step][1]
            size = storage_bytes(look, group.storages)
            left -= size
            yield replace(lines_of.get(key) or _of_no_finding(look.heap, group, scattered), bytes=size)
    yield Line(LineKind.RESTED, left, rested=RestedKind.OTHER)


def _objects(place: int, balance: Balance, objects: Sequence[tuple[Line, Levels]]) -> Iterator[Line]:
    left = balance.objects
    for line, levels in objects:
        size = levels.get(place, 0)
        left -= size
        yield replace(line, bytes=size)
    yield Line(LineKind.OBJECTS, left)
    yield Line(LineKind.GARBAGE, balance.dead_objects)


def _of_no_finding(graph: HeapGraph, group: Group, scattered: Line | None) -> Line:
    """Garbage waits for gc; what is alive, or immortal, did not go on growing."""
    if group.freed not in (0, IMMORTAL):
        return Line(LineKind.GARBAGE, 0)
    return scattered or Line(LineKind.RESTED, 0, rested=_rested(graph, group))


def _rested(graph: HeapGraph, group: Group) -> RestedKind:
    objects = (group.start, *(int(graph.held[reference]) for reference in group.path))
    kinds = {graph.object(index).kind for index in objects}
    if ObjectKind.OPTIMIZER in kinds:
        return RestedKind.OPTIMIZER
    return RestedKind.PARAMETER if ObjectKind.PARAMETER in kinds else RestedKind.OTHER
