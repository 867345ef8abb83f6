"""Tracebacks, stored exceptions, suspended generators, threads and futures that keep locals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.growth import MIN_LOOKS
from leakscope.findings.rules.rule import OwnRule, ToCut
from leakscope.graph.model import Object, ObjectKind, ReferenceKind, RootKind

_KINDS = (
    ObjectKind.FRAME,
    ObjectKind.TRACEBACK,
    ObjectKind.EXCEPTION,
    ObjectKind.GENERATOR,
    ObjectKind.THREAD,
    ObjectKind.FUTURE,
)


class Keeper(StrEnum):
    """What keeps the locals."""

    EXCEPTION = "exception"
    GENERATOR = "generator"
    TASK = "task"
    """A task whose coroutine has not ended."""
    FUTURE = "future"
    THREAD = "thread"


_KEEPERS = {
    ObjectKind.GENERATOR: Keeper.GENERATOR,
    ObjectKind.FUTURE: Keeper.FUTURE,
    ObjectKind.THREAD: Keeper.THREAD,
}


@dataclass(frozen=True)
class FrameFacts(Facts):
    """Locals of a function that are kept."""

    SUMMED = ("alike",)

    keeper: Keeper
    label: str
    alike: int
    """Objects like it that keep storages of the group."""
    given: bool
    """What is kept was given to a thread or a future, or returned by it; else it is locals."""
    local: str
    """The local that is kept, as `local batch`; "" where it is not known."""
    function: str
    """The function whose local it is."""
    collector: str
    """What collects objects like it, as the user would write it; "" where that is the cut."""
    is_text: bool = False
    """All that the program does with a kept exception is to print or to count it."""


@dataclass(frozen=True)
class CallsFacts(Facts):
    """More calls of one function run at each look: threads that wait and do not end, or a recursion that goes
    deeper.
    """

    SUMMED = ("calls",)

    calls: int
    function: str
    kept: str
    """The local that each keeps; "" where it is not known."""


def _applies(candidate: Candidate) -> bool:
    return candidate.group.freed == 0 and (candidate.through(*_KINDS) is not None or _piles_up(candidate))


def _piles_up(candidate: Candidate) -> bool:
    more = len(candidate.roots) >= MIN_LOOKS and all(a < b for a, b in pairwise(candidate.roots))
    return more and candidate.objects[0].root == RootKind.FRAME


def _local_of(candidate: Candidate, frame: Object | None) -> str:
    """The first local of a frame that is on the way."""
    if frame is None:
        return ""
    locals_ = (r.name for r in candidate.references if r.kind == ReferenceKind.LOCAL and r.holder == frame.index)
    return next(locals_, "")


def _keeper(candidate: Candidate, position: int) -> Keeper:
    """Of a future, whether it is a task that waits: a coroutine that has ended holds nothing."""
    keeper = _KEEPERS.get(candidate.objects[position].kind, Keeper.EXCEPTION)
    waits = any(o.kind == ObjectKind.GENERATOR for o in candidate.before_tensor[position + 1 :])
    return Keeper.TASK if keeper == Keeper.FUTURE and waits else keeper


def _last_frame(candidate: Candidate, position: int) -> Object | None:
    """The last frame at or below this position."""
    frames = (ObjectKind.FRAME, ObjectKind.GENERATOR)
    return next((o for o in reversed(candidate.before_tensor[position:]) if o.kind in frames), None)


def _alike(candidate: Candidate, holder: Object) -> int:
    """How many objects like the holder keep storages of the group."""
    alike = (candidate.graph.object(index) for index in candidate.storages_below)
    return sum((o.kind, o.name) == (holder.kind, holder.name) for o in alike)


def _collector(candidate: Candidate, position: int, cut: str) -> str:
    """What collects the objects like the one at this position, as its user would write it; "" where that is the cut."""
    path = candidate.group.path
    place = next((k for k in range(position - 1, 0, -1) if candidate.objects[k].kind == ObjectKind.CONTAINER), 0)
    items = [reference for reference in path[place:position] if place and reference not in candidate.one_of_its_kind]
    if all(cut != candidate.written(reference) for reference in (*items, *path[position : candidate.tensor_at])):
        return ""
    collector = candidate.written(path[place - 1]) if place else cut
    return "" if collector == cut else collector


def _facts(candidate: Candidate, cut: ToCut) -> FrameFacts | CallsFacts:
    place = candidate.through(*_KINDS)
    if place is None:
        root = candidate.objects[0]
        return CallsFacts(candidate.roots[-1], root.name, _local_of(candidate, root))
    holder, frame = candidate.objects[place], _last_frame(candidate, place)
    collector = _collector(candidate, place, cut.written)
    return FrameFacts(
        _keeper(candidate, place),
        holder.label,
        alike=_alike(candidate, holder) if collector else 1,
        given=frame is None and holder.kind in (ObjectKind.THREAD, ObjectKind.FUTURE),
        local=_local_of(candidate, frame),
        function=frame.name if frame else "",
        collector=collector,
    )


RULE = OwnRule(
    RuleName.FRAME_HOLD,
    60,
    "Tensors held by the locals of a frame, a generator, an exception or a thread.",
    _applies,
    _facts,
)
