"""A group of storages on its way to a finding: what every rule is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from leakscope.findings.groups import Group
from leakscope.findings.growth import Series
from leakscope.findings.trace import passes_through
from leakscope.graph.model import HeapGraph, Object, Reference
from leakscope.graph.paths import ways_from_roots


@dataclass(frozen=True)
class Candidate:
    """One group of one rank over all judged looks, described at the look where it was largest."""

    rank: int
    step: int
    """Step of the look that `graph` and `group` belong to."""
    graph: HeapGraph
    group: Group
    series: Series
    per_step: float
    """Bytes a step."""
    recreated: bool
    """Garbage that came back after a full collection."""
    storages_at: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Step of each look to the group's storages in that look's graph."""
    roots: tuple[int, ...] = ()
    """On how many roots of the same name the storages hang, at each look that saw any."""
    confirmed: bool = False
    """It had grown on, as fast, when the main code had returned."""

    @cached_property
    def objects(self) -> tuple[Object, ...]:
        """Objects along the way, from its start to the typical storage."""
        return tuple(self.graph.object(i) for i in (self.group.start, *(int(self.graph.held[r]) for r in self.group.way)))

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """References along the way."""
        return tuple(self.graph.reference(r) for r in self.group.way)

    @cached_property
    def tensor_at(self) -> int:
        """Position of the first tensor on the way that is held for its own sake, not for a list it carries."""
        way = self.group.way
        tensors = [k for k, o in enumerate(self.objects) if o.kind in ("tensor", "parameter")]
        held = (k for k in tensors if k == len(way) or not passes_through(self.graph, way[k]))
        return next(held, len(self.objects) - 1)

    @cached_property
    def before_tensor(self) -> tuple[Object, ...]:
        return self.objects[: self.tensor_at]

    @cached_property
    def container(self) -> tuple[int, Object] | None:
        """(position, object) of the container nearest to the first tensor on the way."""
        places = [k for k, o in enumerate(self.before_tensor) if o.kind == "container"]
        return (places[-1], self.objects[places[-1]]) if places else None

    def through(self, *kinds: str) -> int | None:
        """Position of the first object of one of these kinds before the first tensor, roots and what is above left out."""
        places = (k for k, o in enumerate(self.before_tensor) if o.kind in kinds and not (k == 0 and o.root))
        return next((k for k in places if not self.is_above(k)), None)

    def is_above(self, position: int) -> bool:
        """Whether the object is one for all the storages and has what gains them: a thread that owns a queue, not one of many threads."""
        below = self.objects[position + 1 : self.tensor_at + 1]
        return any(self.is_for_all(o) for o in below)

    def is_for_all(self, one: Object) -> bool:
        """Whether more than half of the storages hang on this one object."""
        return 2 * self.storages_below[one.index] > len(self.group.storages)

    @cached_property
    def storages_below(self) -> Counter[int]:
        """Objects on the ways from the roots to the storages, each with how many of those ways go through it."""
        ways = ways_from_roots(self.graph)
        last, holder = ways.last.tolist(), self.graph.holder.tolist()
        found = Counter(self.group.storages)
        on_the_way: set[int] = set()
        for index in found:
            while index not in on_the_way:
                on_the_way.add(index)
                if last[index] >= 0:
                    index = holder[last[index]]
        # farthest first: each object has been given all its own before it hands them up
        for index in sorted(on_the_way, key=ways.cost.__getitem__, reverse=True):
            if last[index] >= 0:
                found[holder[last[index]]] += found[index]
        return found

    @property
    def keeps_its_number(self) -> int:
        """How many storages there were at every look, 0 where there were more at one than at another."""
        counts = {len(storages) for storages in self.storages_at.values()}
        return counts.pop() if len(counts) == 1 and len(self.storages_at) > 1 else 0

    def reference_through(self, *kinds: str) -> Reference | None:
        return next((r for r in self.references if r.kind in kinds), None)
