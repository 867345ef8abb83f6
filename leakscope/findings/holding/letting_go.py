"""Which references have to go for some memory to be freed, and what else has to go with them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from leakscope.findings.cut.best_cut import best_cut, best_cut_with_gc
from leakscope.findings.cut.multi_cut import FREED_THRESHOLD
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import Group
from leakscope.findings.grouping.growth import Series
from leakscope.findings.holding.handles import Handle, few_handles
from leakscope.findings.holding.model import Keeper, LettingGo, Part
from leakscope.findings.holding.session import keepers_of
from leakscope.findings.model import CutReference
from leakscope.findings.naming.expressions import as_expression, line_of
from leakscope.graph.model import HeapGraph, Ints, ObjectKind, ReferenceKind
from leakscope.graph.paths import paths_from_roots
from leakscope.graph.retained import freed_with_gc, freed_without

_ERRORS = (ObjectKind.EXCEPTION, ObjectKind.TRACEBACK)
_MOST_GROUPS = 8
"""Groups of one holder whose cuts are looked for; chosen."""


@dataclass(frozen=True)
class Held:
    """A group of storages, in a graph that the session's own references may be left out of."""

    graph: HeapGraph
    number: Ints
    """Of each of the graph's references, in the whole graph."""
    group: Group
    part: Part = Part.NONE
    module_at: int = 0
    """Position on the path of the module, of whose memory it is a part."""
    ways: tuple[tuple[int, ...], ...] = ()
    """Of one storage the ways to it, by which its references are written to the item: `[3]`, not `[i]`."""

    @cached_property
    def candidate(self) -> Candidate:
        """As cuts are looked for: down to the module whose memory it is, to the error whose frames hold it, or to what
        holds it by no name.
        """
        group = self.group
        if upto := self.module_at or self._written_to:
            group = replace(group, path=group.path[:upto], roots=1)
        series = Series((0,), (group.bytes,))
        return Candidate(0, 0, self.graph, group, series, 0.0, False)

    @cached_property
    def cut(self) -> tuple[CutReference, ...]:
        """The references to cut, where the session's own were gone; () where none frees anything."""
        if self.part == Part.GRADIENTS:
            return (CutReference(".grad", "", self.candidate.written(self._module), self._gradients),)
        found = best_cut(self.candidate)[0]
        if found is None or found.frees_bytes < FREED_THRESHOLD * self.group.bytes:
            with_gc = best_cut_with_gc(self.candidate)
            if with_gc is not None and with_gc.frees_bytes > (0 if found is None else found.frees_bytes):
                found = with_gc
        if found is None or found.frees_bytes < FREED_THRESHOLD * self.group.bytes:
            handles = few_handles(self.graph, np.asarray(self.group.storages, dtype=np.int64))
            if handles:
                return tuple(map(self._of_handle, handles))
        if found is None or not found.frees_bytes:
            return ()
        return tuple(replace(cut, written=self._exactly(cut)) for cut in found.references)

    def _of_handle(self, handle: Handle) -> CutReference:
        reference = self.graph.reference(handle.reference)
        line = line_of(self.graph, handle.way, handle.reference)
        return CutReference(reference.name, line, self._by_item(handle.reference, handle.way), (handle.reference,))

    def _exactly(self, cut: CutReference) -> str:
        last = cut.indexes[0]
        way = next((way for way in self.ways if last in way), None)
        if way is None and self._is_handled(last, self.group.path):
            way = self.group.path
        return cut.written if way is None else self._by_item(last, way)

    def _by_item(self, last: int, way: Sequence[int]) -> str:
        if self._is_handled(last, way):
            error = self.graph.object(int(self.graph.holder[way[0]])).name
            return f"the {error.rpartition('.')[2]} that is being handled"
        return as_expression(self.graph, way, last, {r: self.graph.reference(r).name for r in way})

    def _is_handled(self, last: int, way: Sequence[int]) -> bool:
        """Whether a way begins at an error that a thread has in hand."""
        return last in way and self.graph.object(int(self.graph.holder[way[0]])).kind == ObjectKind.EXCEPTION

    @property
    def by_no_name(self) -> bool:
        """Whether an object holds it by a reference that no reader can name, as a numpy array its memory."""
        upto = self._written_to
        return bool(upto) and self.graph.reference(self.group.path[upto]).kind == ReferenceKind.UNNAMED

    @property
    def _written_to(self) -> int:
        """Position on the path of the first error, or object that holds by no name; 0 without one."""
        for place, reference in enumerate(map(self.graph.reference, self.group.path)):
            if reference.kind == ReferenceKind.UNNAMED:
                return place
            if self.graph.object(reference.held).kind in _ERRORS:
                return place + 1
        return 0

    @property
    def _module(self) -> int:
        return self.group.path[self.module_at - 1]

    @cached_property
    def _gradients(self) -> tuple[int, ...]:
        graph, paths = self.graph, paths_from_roots(self.graph)
        ways = (map(graph.reference, paths.path_to(graph, storage)) for storage in self.group.storages)
        return tuple(dict.fromkeys(r.index for way in ways for r in way if r.name == ".grad"))


def let_go(graph: HeapGraph, groups: Sequence[Held], storages: Ints) -> LettingGo | None:
    """What frees these storages of the whole graph; None where a few references do not.

    The references that the program holds `groups` by, and of what the session keeps all that is needed.
    """
    cuts: dict[tuple[int, ...], CutReference] = {}
    for held in groups[:_MOST_GROUPS]:
        for cut in held.cut:
            cuts[tuple(held.number[list(cut.indexes)].tolist())] = cut
    references = [r for indexes in cuts for r in indexes]
    wanted = int(graph.bytes[storages].sum())
    needed, freed, after_gc = _with_session(graph, references, storages)
    if freed == 0 or (not groups and freed < FREED_THRESHOLD * wanted):
        return None
    return LettingGo(
        written=tuple(cut.written for cut in cuts.values()),
        where=tuple(cut.where for cut in cuts.values()),
        variables=tuple(_variables(graph, list(cuts))),
        keepers=needed,
        error_names=tuple(graph.reference(r).name[1:] for r in keepers_of(graph).get(Keeper.LAST_ERROR, ())),
        bytes=freed,
        after_gc=after_gc,
    )


def _with_session(
    graph: HeapGraph, references: Sequence[int], storages: Ints
) -> tuple[tuple[Keeper, ...], int, bool]:  # fmt: skip
    """(What the session must let go of beside these references, the bytes freed, whether only by gc)."""
    keepers = keepers_of(graph)

    def cut(some: Sequence[Keeper]) -> Ints:
        return np.asarray([*references, *(r for keeper in some for r in keepers[keeper])], dtype=np.int64)

    def freed(some: Sequence[Keeper]) -> int:
        return int(graph.bytes[storages[freed_with_gc(graph, cut(some))[storages]]].sum())

    needed = list(keepers)
    most = freed(needed)
    for keeper in keepers:
        others = [k for k in needed if k != keeper]
        if freed(others) >= most:
            needed = others
    at_once = int(graph.bytes[storages[freed_without(graph, cut(needed), later=True)[storages]]].sum())
    after_gc = at_once < FREED_THRESHOLD * most
    return tuple(needed), most if after_gc else at_once, after_gc


def _variables(graph: HeapGraph, cuts: Sequence[tuple[int, ...]]) -> list[str]:
    """Names of `__main__` among the references that are cut."""
    names = {reference: name for name, reference in variables_of_session(graph).items()}
    return [names[r] for indexes in cuts for r in indexes if r in names]


def variables_of_session(graph: HeapGraph) -> dict[str, int]:
    """The names of `__main__` that hold memory, each with its reference."""
    main = (k for k in graph.of_kind(ObjectKind.NAMESPACE).tolist() if graph.object(k).name == "__main__")
    references = (graph.reference(r) for index in main for r in graph.out_of(index).tolist())
    return {r.name.removeprefix("."): r.index for r in references if r.name.startswith(".")}
