"""Tracebacks, stored exceptions, suspended generators, threads and futures that keep locals."""

from __future__ import annotations

from itertools import pairwise

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.growth import LEAST_LOOKS
from leakscope.findings.model import RuleName
from leakscope.graph.model import Object, ObjectKind, ReferenceKind, RootKind

NAME = RuleName.FRAME_HOLD
_KINDS = (
    ObjectKind.FRAME,
    ObjectKind.TRACEBACK,
    ObjectKind.EXCEPTION,
    ObjectKind.GENERATOR,
    ObjectKind.THREAD,
    ObjectKind.FUTURE,
)


def applies(found: Candidate) -> bool:
    return found.group.freed == 0 and (found.through(*_KINDS) is not None or _piles_up(found))


def _piles_up(found: Candidate) -> bool:
    """More calls of one function run at each look: threads that wait and do not end, or a recursion that goes deeper."""
    more = len(found.roots) >= LEAST_LOOKS and all(a < b for a, b in pairwise(found.roots))
    return more and found.objects[0].root == RootKind.FRAME


def _kept(found: Candidate) -> str:
    return next(
        (r.name for r in found.references if r.kind == ReferenceKind.LOCAL and r.holder == found.objects[0].index),
        "its locals",
    )


def _waits(found: Candidate, position: int) -> bool:
    """Whether a future is a task whose coroutine has not ended: a coroutine that has ended holds nothing."""
    return any(o.kind == ObjectKind.GENERATOR for o in found.before_tensor[position + 1 :])


def _locals(found: Candidate, position: int) -> str:
    """`the locals of a function that has ended or waits (local batch in load)`, of the last frame below this position."""
    frame = next(
        (o for o in reversed(found.before_tensor[position:]) if o.kind in (ObjectKind.FRAME, ObjectKind.GENERATOR)),
        None,
    )
    if frame is None and found.objects[position].kind in (ObjectKind.THREAD, ObjectKind.FUTURE):
        return "what it was given or has returned"
    local = next(
        (r.name for r in found.references if r.kind == ReferenceKind.LOCAL and frame and r.holder == frame.index), ""
    )
    inside = f" ({local} in {frame.name})" if local and frame else ""
    return f"the locals of a function that has ended or waits{inside}"


def _alike(found: Candidate, holder: Object) -> int:
    """How many objects like the holder keep storages of the group."""
    alike = (found.graph.object(index) for index in found.storages_below)
    return sum((o.kind, o.name) == (holder.kind, holder.name) for o in alike)


def _collector(found: Candidate, position: int, cut: str) -> str:
    """What collects the objects like the one at this position, as its user would write it; the cut where nothing is known to."""
    way = found.group.way
    place = next((k for k in range(position - 1, 0, -1) if found.objects[k].kind == ObjectKind.CONTAINER), 0)
    items = [reference for reference in way[place:position] if place and reference not in found.one_of_its_kind]
    if all(cut != found.written(reference) for reference in (*items, *way[position : found.tensor_at])):
        return cut
    return found.written(way[place - 1]) if place else cut


def title(found: Candidate, cut: str) -> str:
    place = found.through(*_KINDS)
    if place is None:
        return f"{found.roots[-1]} calls of {found.objects[0].name}() run at once, more at each look, and each keeps {_kept(found)}"
    holder, collector = found.objects[place], _collector(found, place, cut)
    if collector == cut:
        return f"{holder.label} keeps {_locals(found, place)}; held by {cut}"
    return (
        f"each {holder.label}, {_alike(found, holder)} in all, keeps {_locals(found, place)}; {collector} collects them"
    )


def advice(found: Candidate, cut: str) -> str:
    place = found.through(*_KINDS)
    if place is None:
        return f"Let the threads that run {found.objects[0].name}() end, or start a fixed number of them once (concurrent.futures.ThreadPoolExecutor): a call that waits keeps its locals and its thread the arguments. Where it is a recursion, return before the next step."
    holder, collector = found.objects[place], _collector(found, place, cut)
    if holder.kind in (ObjectKind.EXCEPTION, ObjectKind.TRACEBACK, ObjectKind.FRAME):
        return f"Keep str(error) or traceback.format_exc() in {collector}, not the exception: its traceback holds every frame it went through and all their locals. Or clear it with error.with_traceback(None)."
    if holder.kind == ObjectKind.GENERATOR:
        return f"Run the generator to its end or close() it, and drop it from {collector}: suspended, it holds all its locals."
    if holder.kind == ObjectKind.FUTURE and _waits(found, place):
        return f"Let these tasks end or cancel() them, or start fewer: a task that waits keeps all locals of its coroutine, and whatever it waits for keeps the task, also when it is dropped from {collector}."
    if holder.kind == ObjectKind.FUTURE:
        return f"Drop finished futures from {collector}: each keeps its result."
    return f"Drop the finished thread from {collector}: it keeps its attributes and arguments."
