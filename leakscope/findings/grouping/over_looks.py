"""Which groups of storages were there at each look, and how many bytes were in them?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leakscope.findings.grouping.groups import Group, group_storages
from leakscope.findings.grouping.growth import Series, series
from leakscope.findings.grouping.names import Growing, Key, as_one, growing_names
from leakscope.graph.model import IMMORTAL
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


def groups_over(looks: Sequence[Look]) -> GroupsOverLooks:
    """The groups of some looks of one rank."""
    at: dict[Key, dict[int, tuple[Look, Group]]] = defaultdict(dict)
    steps = rising_steps(looks)
    garbage: dict[int, int] = defaultdict(int)
    grouped = [group_storages(look.heap) for look in looks]
    growing = growing_names([{group.key for group in groups if not group.freed} for groups in grouped])
    for step, look, groups in zip(steps, looks, grouped, strict=True):
        for group in as_one(groups, look.heap, growing):
            at[group.key][step] = (look, group)
            garbage[step] += 0 if by_program(group) else group.bytes
    lines = {key: series(steps, {step: group.bytes for step, (_, group) in there.items()}) for key, there in at.items()}
    return GroupsOverLooks(steps, dict(at), lines, garbage, growing)


def by_program(group: Group) -> bool:
    """Whether only the program can let go of it: it is alive, or no collection ever frees it."""
    return group.freed in (0, IMMORTAL)


def rising_steps(looks: Sequence[Look]) -> tuple[int, ...]:
    """A strictly rising number for each look: its step; looks of a rank without steps are counted."""
    steps: list[int] = []
    for look in looks:
        steps.append(look.step if not steps or look.step > steps[-1] else steps[-1] + 1)
    return tuple(steps)
