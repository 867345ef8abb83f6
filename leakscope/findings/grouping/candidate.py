"""A group of storages on its way to a finding: what every rule is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from leakscope.findings.facts import Bounded, FollowsInput, TooLarge
from leakscope.findings.grouping.groups import Group
from leakscope.findings.grouping.growth import Series
from leakscope.findings.naming.expressions import as_expression, line_of
from leakscope.findings.naming.trace import (
    ANY_KEY,
    OF_TENSORS,
    is_literal_key,
    numberless,
    own_name,
    part_of,
    passes_through,
    written,
)
from leakscope.graph.model import HeapGraph, Object, ObjectKind, Reference, RootKind
from leakscope.graph.paths import paths_from_roots

_CALLBACKS = (ObjectKind.METHOD, ObjectKind.FUNCTION)


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
    made_at: Mapping[str, int] = field(default_factory=dict)
    """Bytes by the line that made its storages, of those whose maker was seen at any look."""
    confirmed: bool = False
    """It had grown on, as fast, when the main code had returned."""
    ended: bool = False
    """The counted bytes of the later steps did not go on as it grew."""
    stopped: bool = False
    """It grew at every step and no more at the last look, so that is no pause of what comes every few steps; or the
    counted bytes rose by far less after it, which something else that was released may explain as well.
    """
    follows: FollowsInput | None = None
    """Its tensors were as many at each look, and larger where what the model was given was larger."""
    gaining: int = -1
    """Position on the way of the last container that has gained items; -1 where none was seen to."""
    look: int = -1
    """The rising number of that look, among those judged; -1 where it is none of them."""
    collected: int = 0
    """Of what seemed alive, as native code may hold it: the full collections that freed it, when it was tried."""
    above_gains: bool = False
    """A container above that one has gained items, too."""
    bound: Bounded | None = None
    """What the bounded container that gains it would hold when full; None where there is none."""
    too_large: TooLarge | None = None
    """That bound, where it is no reason to let it grow."""
    is_of_container: bool = False
    """It is all that the last container on the way has gained, not what one item of it is."""
    counted: tuple[int, ...] = ()
    """Of the series, the bytes that the host's counter has in its count, where those are not all."""

    def written(self, reference: int) -> str:
        """A reference on the way, as its user would write it: `model[1].seen in main()`."""
        return as_expression(self.graph, self.group.path, reference, self.names)

    def line(self, reference: int) -> str:
        """The line that a reference on the way is told with."""
        return line_of(self.graph, self.group.path, reference)

    def name(self, reference: int) -> str:
        """A reference's own name: `.seen`, `[i]` where it is one of many items, `[1]` where all hangs on that item."""
        return self.names.get(reference, written(self.graph, self.graph.reference(reference)))

    @cached_property
    def names(self) -> Mapping[int, str]:
        """References on the way that are not told by their generic names: `[1]` of its kind, `.client{i}` for many,
        `[...]` for the items of a dict whose keys are data. On cycles those whose number is data: `.tracer_{i}`.
        """
        if self.group.freed:
            return dict(self._numbered())
        many, path = self.group.many, self.group.path
        data = {r: ANY_KEY for r in path if is_literal_key(self.graph.reference(r).name) and self._is_data(r)}
        own = {reference: own_name(self.graph, self.graph.reference(reference)) for reference in self.one_of_its_kind}
        return data | own | ({path[many.place]: many.name} if many else {})

    def _numbered(self) -> Iterator[tuple[int, str]]:
        """The references of the group's cycles whose key is without their number, as they are without it."""
        keyed = frozenset(part.partition(" ")[0] for part in self.group.key)
        for reference in (r for cycle in self.group.cycles for r in cycle):
            name = written(self.graph, self.graph.reference(reference))
            without = numberless(name)
            if without != name and name.partition(" ")[0] not in keyed and without.partition(" ")[0] in keyed:
                yield reference, without

    def _is_data(self, reference: int) -> bool:
        """Whether the group is all that a dict has, under whatever keys."""
        part, masked = (part_of(self.graph, reference, keys=keys) for keys in (True, False))
        return part not in self.group.key and masked in self.group.key and self.tensor_at > self._place(reference) + 1

    def _place(self, reference: int) -> int:
        return self.group.path.index(reference)

    @cached_property
    def one_of_its_kind(self) -> frozenset[int]:
        """References on the way, to the first tensor at most, that all the storages hang on, though others like it may
        be there.
        """
        below = self.storages_below
        shared = (
            r
            for r, held in zip(self.group.path, self.objects[1:], strict=True)
            if below[held.index] == len(self.group.storages)
        )
        return frozenset(r for r in shared if self.graph.object(int(self.graph.held[r])).kind not in OF_TENSORS)

    @cached_property
    def objects(self) -> tuple[Object, ...]:
        """Objects along the way, from its start to the typical storage."""
        return tuple(
            self.graph.object(i) for i in (self.group.start, *(int(self.graph.held[r]) for r in self.group.path))
        )

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """References along the way."""
        return tuple(self.graph.reference(r) for r in self.group.path)

    @cached_property
    def tensor_at(self) -> int:
        """Position of the first tensor on the way that is held for its own sake, not for a list it carries; of what a
        container has gained, that of the container.
        """
        path = self.group.path
        if self.is_of_container:
            return len(path) - 1
        tensors = [k for k, o in enumerate(self.objects) if o.kind in (ObjectKind.TENSOR, ObjectKind.PARAMETER)]
        held = (k for k in tensors if k == len(path) or not passes_through(self.graph, path[k]))
        return next(held, len(self.objects) - 1)

    @cached_property
    def before_tensor(self) -> tuple[Object, ...]:
        """Objects along the way down to the first tensor."""
        return self.objects[: self.tensor_at]

    @cached_property
    def container(self) -> tuple[int, Object] | None:
        """(position, object) of the container nearest to the first tensor on the way."""
        places = [k for k, o in enumerate(self.before_tensor) if o.kind == ObjectKind.CONTAINER]
        return (places[-1], self.objects[places[-1]]) if places else None

    @property
    def on_device(self) -> bool:
        """Whether any of its storages is in an accelerator's memory."""
        return any(storage in self.graph.device for storage in self.group.storages)

    @property
    def certain(self) -> bool:
        """Whether enough looks saw it grow; garbage need not grow."""
        return self.group.freed != 0 or (self.series.certain and not self.stopped) or self.confirmed

    @property
    def callback(self) -> Object | None:
        """The function or method that native code keeps, from which it all hangs: an exit handler, say."""
        start = self.objects[0]
        return start if start.root == RootKind.NATIVE and start.kind in _CALLBACKS else None

    @property
    def gained(self) -> Object | None:
        """The container that was seen to gain items."""
        return self.objects[self.gaining] if self.gaining >= 0 else None

    def through(self, *kinds: str) -> int | None:
        """Position of the first object of one of these kinds before the first tensor, roots and what is above left
        out.
        """
        places = (k for k, o in enumerate(self.before_tensor) if o.kind in kinds and not (k == 0 and o.root))
        return next((k for k in places if not self.is_above(k)), None)

    def is_above(self, position: int) -> bool:
        """Whether the object is one for all the storages and has what gains them: a thread that owns a queue, not one
        of many threads.
        """
        below = self.objects[position + 1 : self.tensor_at + 1]
        return any(self.is_for_all(o) for o in below)

    def is_for_all(self, holder: Object) -> bool:
        """Whether more than half of the storages hang on this one object."""
        return 2 * self.storages_below[holder.index] > len(self.group.storages)

    @cached_property
    def storages_below(self) -> Counter[int]:
        """Objects on the ways from the roots to the storages, each with how many of those ways go through it."""
        return paths_from_roots(self.graph).storages_below(self.graph, self.group.storages)

    @property
    def keeps_its_number(self) -> int:
        """How many storages there were at every look, 0 where there were more at one than at another."""
        counts = {len(storages) for storages in self.storages_at.values()}
        return counts.pop() if len(counts) == 1 and len(self.storages_at) > 1 else 0

    def reference_through(self, *kinds: str) -> Reference | None:
        """The first reference on the way of one of these kinds."""
        return next((r for r in self.references if r.kind in kinds), None)
