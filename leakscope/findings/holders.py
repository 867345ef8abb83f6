"""Few handles of the program that hold some memory, and the references that would release it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from leakscope.findings.candidates import Candidate
from leakscope.findings.cut import FREED_THRESHOLD, MAX_REFERENCES, best_cut, best_cut_with_gc, those_needed, without
from leakscope.findings.grouping import ReferenceKey, StorageGroup, group_storages
from leakscope.findings.growth import Series
from leakscope.findings.live_objects import (
    HolderMemory,
    LiveMemory,
    ModelPart,
    PathObject,
    PathStep,
    ReferencePath,
    ReferencePaths,
    ReleaseCommand,
    ReleasePlan,
    RetentionKind,
    SessionHolder,
    is_interactive,
    keepers_of,
    last_error,
    outputs_above,
    where_of,
    written,
)
from leakscope.findings.model import CutReference
from leakscope.findings.naming import as_expression, generic, line_of
from leakscope.findings.oom import is_named, named
from leakscope.graph.model import REACHABLE, HeapGraph, Ints, ObjectKind, ReferenceKind
from leakscope.graph.paths import ShortestPaths, paths_from_roots, reference_costs
from leakscope.graph.retained import freed_with_gc, freed_without
from leakscope.graph.walks import Mask, reachable

_WHOLE = (ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER, ObjectKind.EXCEPTION, ObjectKind.TRACEBACK)
"""Objects that are released as a whole, not in parts."""
_TENSORS = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.GRAD_NODE)


@dataclass(frozen=True)
class Handle:
    """A reference to release, on a path through it."""

    reference: int
    path: tuple[int, ...]


def handle_at(graph: HeapGraph, path: Sequence[int]) -> int:
    """Position on a path of the reference that a user would release.

    The one to a whole model, optimizer or error; else the last named one down to the first tensor, before what no code
    writes.
    """
    handle = 0
    for place, reference in enumerate(map(graph.reference, path)):
        if reference.kind == ReferenceKind.UNNAMED:
            break
        if place == 0 or generic(reference.name) != "[i]":
            handle = place
        held = graph.object(reference.held).kind
        if held in _WHOLE or held in _TENSORS:
            break
    return handle


def few_handles(graph: HeapGraph, storages: Ints) -> list[Handle]:
    """A few handles that free these storages together, after a full collection; [] if more are needed."""
    wanted = int(graph.bytes[storages].sum())
    found: dict[int, Handle] = {}
    freed = _bytes_freed(graph, storages)
    while len(found) < MAX_REFERENCES:
        rest, number = without(graph, list(found))
        paths = paths_from_roots(rest)
        left = [s for s in storages.tolist() if np.isfinite(paths.cost[s]) and paths.last[s] >= 0]
        if not left:
            return []
        path = tuple(number[paths.path_to(rest, max(left, key=lambda s: int(graph.bytes[s])))].tolist())
        handle = path[handle_at(graph, path)]
        found[handle] = Handle(handle, path)
        if freed(list(found)) >= FREED_THRESHOLD * wanted:
            handles = list(found)
            return [
                found[handles[k]] for k in those_needed(handles, lambda some: freed(some) >= FREED_THRESHOLD * wanted)
            ]
    return []


def _bytes_freed(graph: HeapGraph, storages: Ints) -> Callable[[Sequence[int]], int]:
    def freed(references: Sequence[int]) -> int:
        gone = freed_with_gc(graph, np.asarray(references, dtype=np.int64))
        return int(graph.bytes[storages[gone[storages]]].sum())

    return freed


_ERRORS = (ObjectKind.EXCEPTION, ObjectKind.TRACEBACK)
_MAX_GROUPS = 8
"""Groups of one holder for which cuts are searched. Heuristic."""


@dataclass(frozen=True)
class HeldGroup:
    """A group of storages, in a graph from which the session's own references may be removed."""

    graph: HeapGraph
    number: Ints
    """Number in the whole graph of each of the graph's references."""
    group: StorageGroup
    part: ModelPart = ModelPart.NONE
    module_at: int = 0
    """Position on the path of the module whose memory it is part of."""
    ways: tuple[tuple[int, ...], ...] = ()
    """For a single storage the paths to it, which name items exactly: `[3]`, not `[i]`."""

    @cached_property
    def candidate(self) -> Candidate:
        """The candidate for which cuts are searched: down to the module whose memory it is, to the error whose frames
        hold it, or to a holder without a name for it.
        """
        group = self.group
        if upto := self.module_at or self._written_to:
            group = replace(group, path=group.path[:upto], roots=1)
        series = Series((0,), (group.bytes,))
        return Candidate(0, 0, self.graph, group, series, 0.0, False)

    @cached_property
    def cut(self) -> tuple[CutReference, ...]:
        """The references to cut without the session's own; () if none frees anything."""
        if self.part == ModelPart.GRADIENTS:
            return (CutReference(".grad", "", self.candidate.written(self._module), self._gradients),)
        found = best_cut(self.candidate).cut
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
        line = line_of(self.graph, handle.path, handle.reference)
        return CutReference(reference.name, line, self._by_item(handle.reference, handle.path), (handle.reference,))

    def _exactly(self, cut: CutReference) -> str:
        last = cut.indexes[0]
        path = next((path for path in self.ways if last in path), None)
        if path is None and self._is_handled(last, self.group.path):
            path = self.group.path
        return cut.written if path is None else self._by_item(last, path)

    def _by_item(self, last: int, path: Sequence[int]) -> str:
        if self._is_handled(last, path):
            error = self.graph.object(int(self.graph.holder[path[0]])).name
            return f"the {error.rpartition('.')[2]} that is being handled"
        return as_expression(self.graph, path, last, {r: self.graph.reference(r).name for r in path})

    def _is_handled(self, last: int, path: Sequence[int]) -> bool:
        """Whether a path starts at an error that a thread is handling."""
        return last in path and self.graph.object(int(self.graph.holder[path[0]])).kind == ObjectKind.EXCEPTION

    @property
    def by_no_name(self) -> bool:
        """Whether an object holds it by a reference that no reader can name, such as an array its memory."""
        upto = self._written_to
        return bool(upto) and self.graph.reference(self.group.path[upto]).kind == ReferenceKind.UNNAMED

    @property
    def _written_to(self) -> int:
        """Position on the path of the first error or holder without a name; 0 if there is none."""
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
        reference_paths = (map(graph.reference, paths.path_to(graph, storage)) for storage in self.group.storages)
        return tuple(dict.fromkeys(r.index for path in reference_paths for r in path if r.name == ".grad"))


def release_plan(graph: HeapGraph, groups: Sequence[HeldGroup], storages: Ints) -> ReleasePlan | None:
    """What frees these storages of the whole graph; None if a few references do not.

    It consists of the program's references to `groups`, and of those that the session must release.
    """
    cuts: dict[tuple[int, ...], CutReference] = {}
    for held in groups[:_MAX_GROUPS]:
        for cut in held.cut:
            cuts[tuple(held.number[list(cut.indexes)].tolist())] = cut
    references = [r for indexes in cuts for r in indexes]
    wanted = int(graph.bytes[storages].sum())
    needed, freed, after_gc = _with_session(graph, references, storages)
    if freed == 0 or (not groups and freed < FREED_THRESHOLD * wanted):
        return None
    return ReleasePlan(
        written=tuple(cut.written for cut in cuts.values()),
        where=tuple(cut.where for cut in cuts.values()),
        variables=tuple(_variables(graph, list(cuts))),
        keepers=needed,
        error_names=tuple(graph.reference(r).name[1:] for r in keepers_of(graph).get(SessionHolder.LAST_ERROR, ())),
        bytes=freed,
        after_gc=after_gc,
    )


def _with_session(
    graph: HeapGraph, references: Sequence[int], storages: Ints
) -> tuple[tuple[SessionHolder, ...], int, bool]:  # fmt: skip
    """(What the session must release beside these references, the bytes freed, whether only after gc)."""
    keepers = keepers_of(graph)

    def cut(some: Sequence[SessionHolder]) -> Ints:
        return np.asarray([*references, *(r for keeper in some for r in keepers[keeper])], dtype=np.int64)

    def freed(some: Sequence[SessionHolder]) -> int:
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


OUTPUTS = (SessionHolder.OUTPUTS,)
SHOWN = (SessionHolder.SHOWN,)
ERRORS = (SessionHolder.LAST_ERROR, SessionHolder.TRACEBACK, SessionHolder.DEBUGGER)
"""Released together; that of the previous cell is released on its own."""


def typed(graph: HeapGraph, wanted: Sequence[ReleasePlan]) -> tuple[ReleaseCommand, ...]:
    """Commands in an order in which each frees what it can, with the bytes freed after the earlier ones.

    `wanted` is what frees each holder's memory; what takes more than names of the session is left out.
    """
    keepers, names = keepers_of(graph), variables_of_session(graph)
    # what the previous cell has shown or raised is released when the current one ends
    gone = list(keepers.get(SessionHolder.LAST_CELL, ()))
    freed = freed_without(graph, np.asarray(gone, dtype=np.int64), later=True)
    commands = []
    for command in _commands([going for going in wanted if len(going.variables) == len(going.written)]):
        gone += [r for keeper in command.keepers for r in keepers.get(keeper, ())]
        gone += [names[name] for name in command.variables]
        before = _bytes(graph, freed)
        cut: Ints = np.asarray(gone, dtype=np.int64)
        freed |= freed_without(graph, cut, later=True)
        if command.collects:
            dead = freed_with_gc(graph, cut) | (graph.freed > 0)
            gone += np.flatnonzero(dead[graph.holder]).tolist()  # collected objects hold nothing any more
            freed |= dead
        there = tuple(keeper for keeper in command.keepers if keeper in keepers)
        commands.append(
            ReleaseCommand(
                there, command.error_names, command.variables, command.collects, _bytes(graph, freed) - before
            )
        )
    return tuple(commands)


def _commands(wanted: Sequence[ReleasePlan]) -> Iterator[ReleaseCommand]:
    """Outputs, the error, variables, gc: the session's own first, which may hold what variables hold."""
    needed = {keeper for going in wanted for keeper in going.keepers}
    if needed & {*OUTPUTS}:
        yield ReleaseCommand(OUTPUTS, (), (), True, 0)  # `%reset -f out` collects (IPython/core/displayhook.py, flush)
    if needed & {*SHOWN}:
        yield ReleaseCommand(SHOWN, (), (), False, 0)
    of_error = [going for going in wanted if {*going.keepers} & {*ERRORS}]
    if of_error:
        yield ReleaseCommand(ERRORS, of_error[0].error_names, (), any(going.after_gc for going in of_error), 0)
    for name in dict.fromkeys(name for going in wanted for name in going.variables):
        yield ReleaseCommand((), (), (name,), False, 0)
    if any(going.after_gc for going in wanted if going not in of_error):
        yield ReleaseCommand((), (), (), True, 0)


def _bytes(graph: HeapGraph, freed: Mask) -> int:
    return int(graph.bytes[graph.storages[freed[graph.storages]]].sum())


MAX_PATHS = 12
"""Maximum paths reported: one screen. Heuristic."""
_MAX_COUNTED = 1000
"""Maximum paths counted."""
_MAX_STEPS = 50_000
"""Maximum steps of the search for them: tenths of a second. Heuristic."""
_MAX_PATH_LENGTH = 200
"""Maximum references of a counted path; the shortest path is reported whatever its length. Heuristic."""
_OTHER_ROOT = 60.0
"""Added for a path from a root that has shorter paths through it: it is reported after those."""
_BODY = (ObjectKind.STORAGE, ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.SAVED_TENSOR)


@dataclass(frozen=True)
class _Found:
    """Paths as references of the whole graph."""

    ways: list[tuple[int, ...]]
    complete: bool


def paths_to(graph: HeapGraph, tensor: int, most: int = MAX_PATHS) -> ReferencePaths:
    """Every path to the memory of a tensor of the graph, first the shortest through each reference to it."""
    storage = _storage_of(graph, tensor)
    keepers = keepers_of(graph)
    rest, number = without(graph, [r for references in keepers.values() for r in references])
    found = _simple_paths(rest, paths_from_roots(rest), storage)
    objects: dict[int, int] = {}
    listed = []
    for path in _one_by_each(rest, found.ways)[:most]:
        links = tuple(
            PathStep(r.name, _place(objects, r.holder), _place(objects, r.held), r.where)
            for r in map(rest.reference, path)
        )
        listed.append(ReferencePath(written(rest, path), where_of(rest, path), links))
    above = reachable(len(rest), rest.held, rest.holder, np.asarray([storage]))
    places = [graph.object(index) for index in objects]
    group = next((g for g in group_storages(rest) if storage in g.storages and not g.freed), None)
    held = () if group is None else (HeldGroup(rest, number, _alone(rest, group, storage), ways=tuple(found.ways)),)
    going = release_plan(graph, held, np.asarray([storage]))
    return ReferencePaths(
        label=graph.object(tensor).label,
        bytes=int(graph.bytes[storage]),
        ways=tuple(listed),
        more=max(len(found.ways) - most, 0),
        all_counted=found.complete,
        of_garbage=bool((above[rest.freed != REACHABLE]).any()),
        keepers=tuple(_of_session(graph, storage)) if going is None else going.keepers,
        objects=tuple(PathObject(obj.label, obj.where, obj.root) for obj in places),
        letting_go=going,
        typed=() if going is None or not is_interactive(graph) else typed(graph, [going]),
    )


def _storage_of(graph: HeapGraph, tensor: int) -> int:
    below = [int(graph.held[r]) for r in graph.out_of(tensor).tolist()]
    return next((held for held in below if graph.object(held).kind == ObjectKind.STORAGE), tensor)


def _place(objects: dict[int, int], index: int) -> int:
    return objects.setdefault(index, len(objects))


def _simple_paths(graph: HeapGraph, paths: ShortestPaths, storage: int) -> _Found:
    """Simple paths down to the storage, shortest first: an upward search guided by the distance to each start."""
    found: list[tuple[int, ...]] = []
    starts = (graph.root > 0).tolist()
    # among paths of equal length the longest part first: otherwise all parts would precede the first whole one
    waiting: list[tuple[float, int, int, int, tuple[int, ...]]] = [(float(paths.cost[storage]), 0, 0, storage, ())]
    costs, steps, cut_short = reference_costs(graph), 0, False
    while waiting and len(found) < _MAX_COUNTED and steps < _MAX_STEPS:
        cost, _, _, here, path = heapq.heappop(waiting)
        if here < 0:
            found.append(path)
            continue
        on_path = {storage, *(int(graph.held[r]) for r in path), here}
        below = cost - float(paths.cost[here])
        if starts[here] and path:
            steps += 1
            later = 0.0 if paths.last[here] < 0 else _OTHER_ROOT
            heapq.heappush(waiting, (cost + later, -len(path) - 1, steps, -1, path))
        if len(path) >= _MAX_PATH_LENGTH:
            cut_short = True
            continue
        for reference in graph.into(here).tolist():
            holder = int(graph.holder[reference])
            if holder in on_path or not np.isfinite(paths.cost[holder]):
                continue
            steps += 1
            total = below + float(costs[reference]) + float(paths.cost[holder])
            heapq.heappush(waiting, (round(total, 9), -len(path) - 1, steps, holder, (reference, *path)))
    if not found and paths.last[storage] >= 0:
        found.append(tuple(paths.path_to(graph, storage)))
    return _Found(found, not waiting and not cut_short)


def _one_by_each(graph: HeapGraph, paths: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """First the shortest path through each reference to the tensors that share the memory, then the others."""
    times: dict[int, int] = {}
    ranked = []
    for path in paths:
        last = next((r for r in reversed(path) if graph.object(int(graph.holder[r])).kind not in _BODY), path[-1])
        times[last] = times.get(last, 0) + 1
        ranked.append((times[last], path))
    return [path for _, path in sorted(ranked, key=lambda pair: pair[0])]


def _of_session(graph: HeapGraph, storage: int) -> Iterator[SessionHolder]:
    """References of the session that lead to the storage."""
    above = reachable(len(graph), graph.held, graph.holder, np.asarray([storage]))
    for keeper, references in keepers_of(graph).items():
        if any(above[graph.held[r]] for r in references):
            yield keeper


def _alone(graph: HeapGraph, group: StorageGroup, storage: int) -> StorageGroup:
    """One storage of a group."""
    path = tuple(paths_from_roots(graph).path_to(graph, storage))
    return replace(group, storages=(storage,), bytes=int(graph.bytes[storage]), path=path)


_OWNERS = (ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER)
_OF_MODEL = (ObjectKind.NN_MODULE, ObjectKind.PARAMETER, ObjectKind.STORAGE)
_OF_OPTIMIZER = (ObjectKind.CONTAINER, ObjectKind.PARAMETER, ObjectKind.TENSOR, ObjectKind.STORAGE)


def by_module(graph: HeapGraph, number: Ints, groups: Iterable[StorageGroup]) -> Iterator[HeldGroup]:
    """The groups; parameters and buffers of one model joined, and likewise its gradients and an optimizer's state.

    `number` is that of each reference of the graph in the whole one.
    """
    parts: dict[tuple[int, ModelPart], list[tuple[int, int, list[int]]]] = {}
    paths = paths_from_roots(graph)
    for group in groups:
        others = []
        for storage in group.storages if _owner_at(graph, group.start, group.path) else ():
            path = paths.path_to(graph, storage)
            place, part = _part(graph, paths.start_of(graph, storage), path)
            if part:
                parts.setdefault((path[place - 1], part), []).append((storage, place, path))
            else:
                others.append(storage)
        left = others if _owner_at(graph, group.start, group.path) else group.storages
        if left:
            yield HeldGroup(graph, number, _of(graph, group, left))
    for (_, part), alike in parts.items():
        storage, place, path = max(alike, key=lambda one: (int(graph.bytes[one[0]]), -one[0]))
        group = StorageGroup(ReferenceKey((part,)), paths.start_of(graph, storage), tuple(path), (), 0, 0, roots=1)
        yield HeldGroup(graph, number, _of(graph, group, [one[0] for one in alike]), part, place)


def _of(graph: HeapGraph, group: StorageGroup, storages: Sequence[int]) -> StorageGroup:
    """The group restricted to these storages."""
    if len(storages) == len(group.storages):
        return group
    path = group.path
    if group.storages and int(graph.held[path[-1]]) not in storages:
        path = tuple(paths_from_roots(graph).path_to(graph, max(storages, key=lambda s: (int(graph.bytes[s]), s))))
    return replace(group, storages=tuple(storages), bytes=int(graph.bytes[list(storages)].sum()), path=path)


def _owner_at(graph: HeapGraph, start: int, path: Sequence[int]) -> int:
    """Position on the path of the outermost module or optimizer, 0 without one."""
    objects = (graph.object(index) for index in (start, *(int(graph.held[r]) for r in path)))
    return next((k for k, obj in enumerate(objects) if obj.kind in _OWNERS), 0)


def _part(graph: HeapGraph, start: int, path: Sequence[int]) -> tuple[int, ModelPart]:
    """(Position of the outermost module or optimizer, which part of its memory the path leads to)."""
    place = _owner_at(graph, start, path)
    if not place:
        return 0, ModelPart.NONE
    below = [graph.reference(r) for r in path[place:]]
    of_optimizer = graph.object(below[0].holder).kind == ObjectKind.OPTIMIZER
    own = _OF_OPTIMIZER if of_optimizer else _OF_MODEL
    part = ModelPart.STATE if of_optimizer and below[0].name == ".state" else ModelPart.PARAMETERS
    for reference in below:
        gradient = reference.name == ".grad" and graph.object(reference.holder).kind == ObjectKind.PARAMETER
        if gradient and part == ModelPart.PARAMETERS:
            part = ModelPart.GRADIENTS
        elif graph.object(reference.held).kind not in own and reference.kind != ReferenceKind.BUFFER:
            return 0, ModelPart.NONE
    return place, part


MAX_LINES = 20
"""Maximum holders reported one by one: one screen. Heuristic."""
_SHOWN = (SessionHolder.OUTPUTS, SessionHolder.SHOWN)
_MAX_OUTPUTS = 4
"""Maximum names of one output reported. Heuristic."""
_Key = tuple[RetentionKind, str, str, ModelPart]


@dataclass(frozen=True)
class _HolderLine:
    """One holder and its groups."""

    held: HolderMemory
    groups: tuple[HeldGroup, ...]


def live_memory(
    graph: HeapGraph,
    most: int = MAX_LINES,
    *,
    device: str = "cpu",
    counted_bytes: int | None = None,
    hides: bool = False,
    only: Collection[int] | None = None,
) -> LiveMemory:
    """All tensor memory of a graph by holder, with what frees each of the `most` largest.

    `counted_bytes` is what the device's allocator has handed out, where that counts tensors only; `only` restricts the
    storages, None for all.
    """
    lines: dict[_Key, _HolderLine] = {}
    wanted = list(graph.storages.tolist() if only is None else only)
    here: Mask = np.zeros(len(graph), dtype=bool)
    here[wanted] = True
    for kept, held in _all_held(graph, here):
        key = (kept, *_name(graph, held, kept), held.part)
        line = lines.get(key, _HolderLine(HolderMemory(0, 0, *key), ()))
        size, count = line.held.bytes + held.group.bytes, line.held.storages + len(held.group.storages)
        lines[key] = _HolderLine(replace(line.held, bytes=size, storages=count), (*line.groups, held))
    ordered = sorted(lines.values(), key=lambda line: (-line.held.bytes, line.held.name))
    reported = [_described(graph, line, hides) for line in ordered[:most]]
    known = int(graph.bytes[wanted].sum())
    on_device = known if device == "cpu" else sum(int(graph.bytes[s]) for s in graph.device)
    unseen = max((counted_bytes or 0) - on_device, 0) if device != "cpu" else 0
    if unseen:
        reported.append(HolderMemory(unseen, 0, RetentionKind.UNSEEN, "", ""))
    return LiveMemory(
        bytes=known + unseen,
        storages=len(wanted),
        device=device,
        lines=tuple(sorted(reported, key=lambda held: -held.bytes)),
        smaller=len(ordered[most:]),
        smaller_bytes=sum(line.held.bytes for line in ordered[most:]),
        typed=typed(graph, [held.letting_go for held in reported if held.letting_go]) if is_interactive(graph) else (),
        error=last_error(graph),
        hides=hides,
    )


def _all_held(graph: HeapGraph, wanted: Mask) -> Iterator[tuple[RetentionKind, HeldGroup]]:
    """Every requested storage in one group: with its holder in the program, else by what the session alone keeps it."""
    for group in _those_in(graph, wanted):
        if group.freed:
            kept = RetentionKind.WAITS_FOR_GC if group.freed > 0 else RetentionKind.NEVER_FREED
            yield kept, HeldGroup(graph, np.arange(len(graph.holder)), group)
    left: Mask = np.zeros(len(graph), dtype=bool)
    left[graph.storages] = (graph.freed[graph.storages] == REACHABLE) & wanted[graph.storages]
    for kept, keepers in _apart(graph):
        rest, number = without(graph, keepers)
        here = left & reachable(len(rest), rest.holder, rest.held, rest.roots)
        left &= ~here
        for held in by_module(rest, number, _live(rest, here)):
            yield _kept(rest, held.group) if kept == RetentionKind.PROGRAM else kept, held


def _apart(graph: HeapGraph) -> list[tuple[RetentionKind, list[int]]]:
    """Memory by what keeps it, in order, with the session's references removed to see it."""
    keepers = keepers_of(graph)
    every = [r for references in keepers.values() for r in references]
    shown = [r for keeper in _SHOWN for r in keepers.get(keeper, ())]
    # a debugger has copies of frame variables, which are reported for frames of a remembered error too
    debugger = keepers.get(SessionHolder.DEBUGGER, ())
    session = [(RetentionKind.ERROR, [*shown, *debugger]), (RetentionKind.ERROR, shown), (RetentionKind.OUTPUT, [])]
    return [(RetentionKind.PROGRAM, every), *(session if every else [])]


def _live(graph: HeapGraph, here: Mask) -> Iterator[StorageGroup]:
    """The groups of reachable storages among these."""
    return (group for group in _those_in(graph, here) if not group.freed)


def _those_in(graph: HeapGraph, here: Mask) -> Iterator[StorageGroup]:
    for group in group_storages(graph):
        storages = tuple(s for s in group.storages if here[s])
        if storages:
            yield replace(group, storages=storages, bytes=int(graph.bytes[list(storages)].sum()))


def _kept(graph: HeapGraph, group: StorageGroup) -> RetentionKind:
    return RetentionKind.PROGRAM if is_named(graph, group) else RetentionKind.NATIVE


def _name(graph: HeapGraph, held: HeldGroup, kept: RetentionKind) -> tuple[str, str]:
    """(Name, line) of a holder; without a name if there is no single one."""
    if kept in (RetentionKind.WAITS_FOR_GC, RetentionKind.NEVER_FREED):
        return "", ""
    if held.part:
        last = held.group.path[held.module_at - 1]
        return held.candidate.written(last), line_of(held.graph, held.group.path, last)
    if kept == RetentionKind.OUTPUT:
        outputs = outputs_above(graph, held.group.storages)
        cell = outputs[0][len("Out") :] if outputs and outputs[0].startswith("Out") else ""
        return ", ".join(outputs[:_MAX_OUTPUTS]), f"In{cell}" if cell else ""
    if held.by_no_name:
        last = held.candidate.group.path[-1]
        return held.candidate.written(last), held.candidate.line(last)
    name, where = named(held.graph, held.group)
    if not where and kept == RetentionKind.PROGRAM and is_named(held.graph, held.group):
        where = held.graph.reference(held.group.path[0]).where
    return name, where


def _described(graph: HeapGraph, line: _HolderLine, hides: bool) -> HolderMemory:
    """A line with what frees it and, if that is the holder alone, the line of code that makes it one."""
    letting_go = None if hides else _letting_go(graph, line)
    alone = letting_go is not None and letting_go.written == (line.held.name,) and not line.held.part
    where = letting_go.where[0] if letting_go is not None and alone else ""
    return replace(line.held, letting_go=letting_go, where=where or line.held.where)


def _letting_go(graph: HeapGraph, line: _HolderLine) -> ReleasePlan | None:
    """What frees everything in a line."""
    kept = line.held.kept
    if kept in (RetentionKind.NATIVE, RetentionKind.NEVER_FREED, RetentionKind.UNSEEN):
        return None
    if kept == RetentionKind.WAITS_FOR_GC:
        return ReleasePlan((), (), (), (), (), line.held.bytes, after_gc=True)
    storages: Ints = np.asarray([s for held in line.groups for s in held.group.storages], dtype=np.int64)
    groups: Sequence[HeldGroup] = line.groups if kept == RetentionKind.PROGRAM else ()
    return release_plan(graph, groups, storages)
