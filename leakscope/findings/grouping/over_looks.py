"""Which groups of storages were there at each look, and how many bytes were in them?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from leakscope.findings.grouping.groups import Group, Key, group_by, live_keys
from leakscope.findings.grouping.growth import Series, series
from leakscope.findings.grouping.names import (
    DataKeys,
    DataNumbers,
    Growing,
    as_one,
    data_keys,
    data_numbers,
    growing_names,
    shared,
)
from leakscope.graph.model import IMMORTAL, HeapGraph
from leakscope.record.model import Look


@dataclass(frozen=True)
class GroupsOverLooks:
    """All groups of one rank at its judged looks."""

    steps: tuple[int, ...] = ()
    """A strictly rising number for each look."""
    at: Mapping[Key, Mapping[int, tuple[Look, Group]]] = field(default_factory=dict)
    """Each group where it was there, by those numbers."""
    lines: Mapping[Key, Series] = field(default_factory=dict)
    """Its bytes at every look."""
    garbage: Mapping[int, int] = field(default_factory=dict)
    """Bytes at each look that only a collection lets go of."""
    names: Growing = field(default_factory=dict)
    """What holders gain under ever new names."""
    data: DataKeys = field(default_factory=DataKeys)
    """The dicts whose keys tell no groups apart."""
    numbers: DataNumbers = field(default_factory=DataNumbers)
    """The numbers in names that tell none apart."""

    def of(self, graph: HeapGraph) -> list[Group]:
        """The groups of one graph, by what the looks say is one."""
        return as_one(group_by(graph, self.data.mask), graph, self.names, self.numbers)


def groups_over(looks: Sequence[Look]) -> GroupsOverLooks:
    """The groups of some looks of one rank."""
    at: dict[Key, dict[int, tuple[Look, Group]]] = defaultdict(dict)
    steps = rising_steps(looks)
    garbage: dict[int, int] = defaultdict(int)
    same = _same_over([look.heap for look in looks])
    for step, look in zip(steps, looks, strict=True):
        for group in same.of(look.heap):
            at[group.key][step] = (look, group)
            garbage[step] += 0 if by_program(group) else group.bytes
    lines = {key: series(steps, {step: group.bytes for step, (_, group) in there.items()}) for key, there in at.items()}
    return replace(same, steps=steps, at=dict(at), lines=lines, garbage=garbage)


def _same_over(graphs: Sequence[HeapGraph]) -> GroupsOverLooks:
    """Which groups are the same over some graphs: no more than that is known yet."""
    data = data_keys([live_keys(graph) for graph in graphs])
    grouped = [group_by(graph, data.mask) for graph in graphs]
    growing = growing_names([{group.key for group in groups if not group.freed} for groups in grouped])
    numbers = data_numbers(
        [{group.key if group.freed else shared(group.key, growing)[0] for group in groups} for groups in grouped]
    )
    return GroupsOverLooks(names=growing, data=data, numbers=numbers)


def by_program(group: Group) -> bool:
    """Whether only the program can let go of it: it is alive, or no collection ever frees it."""
    return group.freed in (0, IMMORTAL)


def rising_steps(looks: Sequence[Look]) -> tuple[int, ...]:
    """A strictly rising number for each look: its step; looks of a rank without steps are counted."""
    steps: list[int] = []
    for look in looks:
        steps.append(look.step if not steps or look.step > steps[-1] else steps[-1] + 1)
    return tuple(steps)
