"""Operations matched over the ranks: buffers past their step, unmatched sends, who waited for whom."""

from __future__ import annotations

import math
import signal
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import gcd
from statistics import median

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import (
    BufferKind,
    CommBuffers,
)
from leakscope.graph.model import CommUse, HeapGraph, ObjectKind, ReferenceKind
from leakscope.run.model import Rank, Run
from leakscope.run.operations import column
from leakscope.run.rows import CommOperation, Direction, EndKind, FinalOperation, IssuedOperation, OperationState

Channel = tuple[str, str, int | None, int | None]
"""(group, direction, peer, tag)."""
Issued = tuple[int, int, int]
"""(id, position in its channel, position among the operations of its rank)."""
_LAST = -1
"""Position of the last operation if it is none of the others."""
_WELL = (EndKind.FINISHED, EndKind.STOPPED, EndKind.RUNNING, EndKind.UNKNOWN)
_ANSWERED_BY: Mapping[str, Direction] = {Direction.SEND: Direction.RECV, Direction.RECV: Direction.SEND}
"""P2P operations, each with its counterpart."""
_ENDED_FOR_ALL = (124, 130)
"""Exit statuses of ranks ended by `--hang-timeout` or Ctrl-C: no rank failed before the others."""
_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a rank that the launcher is assumed to have ended because a peer had failed."""
_NOT_OVER = (OperationState.WAITS, OperationState.ISSUED)
_SUSPECT_FIRST: Mapping[EndKind, int] = {EndKind.KILLED: 0, EndKind.RAISED: 1, EndKind.HUNG: 1, EndKind.EXITED: 1}


@dataclass(frozen=True)
class Unmatched:
    """Operations of one rank without a counterpart."""

    rank: int
    direction: str
    peer: int
    tag: int
    group: str
    missing: int
    """Minimum number of them, from the first on."""
    first: IssuedOperation
    """The first recorded one."""
    answer: FinalOperation | None
    """The last operation of the rank that should have answered; None if it had none."""


@dataclass(frozen=True)
class MissingRanks:
    """A collective that has not returned, and the ranks of its group that did not reach it."""

    operation: FinalOperation
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class CommState:
    """The state of one rank relative to its peers at the end of the run."""

    last: FinalOperation | None
    missing: MissingRanks | None
    unmatched: tuple[Unmatched, ...]


@dataclass(frozen=True)
class _Book:
    """The operations of one rank, as far as they are recorded; those in between are counted only."""

    issued: Mapping[Channel, Sequence[Issued]]
    ids: Sequence[int]
    newest: int | None
    """Id of the last operation, recorded or not; None if unknown."""
    gaps: Sequence[tuple[Channel, int, int, int]]
    """(channel, an id, a later one, number of unrecorded operations of the channel in between)."""

    def at_least(self, channel: Channel) -> int:
        """Minimum number of operations that the rank issued on a channel."""
        return _last_of(self.issued.get(channel, ()))[1]

    def at_most(self, channel: Channel) -> float:
        """Maximum number of operations on a channel: an unrecorded one counts unless it must belong to
        another channel.
        """
        if self.newest is None:
            return math.inf
        number, nth = _last_of(self.issued.get(channel, ()))
        hidden = self._hidden(number, self.newest + 1)
        if hidden:
            later = [gap for gap in self.gaps if gap[0] != channel and gap[2] > number]
            hidden -= sum(max(0, count - self._hidden(after, number)) for _, after, _, count in later)
        return nth + hidden

    def _hidden(self, after: int, before: int) -> int:
        """Number of unrecorded operations between two ids."""
        return max(0, before - after - 1 - max(0, bisect_left(self.ids, before) - bisect_right(self.ids, after)))


def _last_of(operations: Sequence[Issued]) -> tuple[int, int]:
    return operations[-1][:2] if operations else (0, 0)


def _book(rank: Rank) -> _Book:
    last, known = rank.final_operation, rank.operations
    columns = [column(known, name) for name in ("id", "nth", "group", "direction", "peer", "tag")]
    by_id: dict[int, tuple[int, Channel, int]] = {}
    if last is not None:
        by_id[last.id] = last.nth, _channel(last), _LAST
    channels: dict[Channel, Channel] = {}  # once each, for a million operations
    for place, (number, nth, group, direction, peer, tag) in enumerate(zip(*columns, strict=True)):
        channel = (group, direction, peer, tag)
        by_id[number] = nth, channels.setdefault(channel, channel), place
    issued: dict[Channel, list[Issued]] = defaultdict(list)
    for number in sorted(by_id):
        nth, channel, place = by_id[number]
        issued[channel].append((number, nth, place))
    gaps = []
    for channel, ordered in issued.items():
        places = [(0, 0), *((number, nth) for number, nth, _ in ordered)]
        gaps += [(channel, a, b, n - m - 1) for (a, m), (b, n) in pairwise(places) if n - m > 1]
    return _Book(dict(issued), sorted(by_id), max(by_id, default=0) if _is_on_record(rank) else None, gaps)


def _operation(rank: Rank, place: int) -> IssuedOperation:
    """The operation at that position."""
    if place == _LAST:
        assert rank.final_operation is not None
        return rank.final_operation
    return rank.operations[place]


def _channel(operation: IssuedOperation) -> Channel:
    return operation.group, operation.direction, operation.peer, operation.tag


def _is_on_record(rank: Rank) -> bool:
    """Whether a rank issued nothing after its latest recorded operation."""
    ended, last = rank.ended, rank.final_operation
    if last is None and rank.final_operation_known and not rank.operations:
        return True
    if last is not None and last.newest:
        return True
    if (
        ended.status in _ENDED_FOR_ALL
    ):  # the operation in progress is written, those that ended before the step may not be
        return last is not None and last.step > ended.steps
    return ended.how in (EndKind.RAISED, EndKind.HUNG) or (ended.how == EndKind.FINISHED and not ended.error)


def _state(rank: Rank) -> OperationState | None:
    return None if rank.final_operation is None else rank.final_operation.state


def unmatched(run: Run) -> tuple[Unmatched, ...]:
    """Sends without a receive and receives without a send, the earliest first.

    Operations are counted on each channel; reported is what the peer cannot have answered, whatever it did unrecorded.
    A rank that receives from any source leaves its channels unjudged.
    """
    books = {rank.number: _book(rank) for rank in run.ranks}
    last = {rank.number: rank.final_operation for rank in run.ranks}
    anybody = {
        (group, number, tag) for number, book in books.items() for group, _, peer, tag in book.issued if peer is None
    }
    found = []
    rank_of = {rank.number: rank for rank in run.ranks}
    for number, book in books.items():
        for (group, direction, peer, tag), operations in book.issued.items():
            receiver = peer if direction == Direction.SEND else number
            if peer is None or direction not in _ANSWERED_BY or peer not in books or (group, receiver, tag) in anybody:
                continue
            answered = books[peer].at_most((group, _ANSWERED_BY[direction], number, tag))
            lost = [(nth, place) for _, nth, place in operations if nth > answered]
            if lost:
                missing = lost[-1][0] - lost[0][0] + 1
                first = _operation(rank_of[number], lost[0][1])
                found.append(Unmatched(number, direction, peer, tag or 0, group, missing, first, last[peer]))
    return tuple(sorted(found, key=lambda u: (u.first.issued, u.rank)))


def comm_states(run: Run) -> Mapping[int, CommState]:
    """The communication state of each rank if some rank did not end well; else empty."""
    if all(rank.ended.how in _WELL and not rank.ended.status for rank in run.ranks):
        return {}
    missing = missing_ranks(run)
    lost: dict[int, list[Unmatched]] = defaultdict(list)
    for one in unmatched(run):
        lost[one.rank].append(one)
    return {
        rank.number: CommState(rank.final_operation, missing.get(rank.number), tuple(lost[rank.number]))
        for rank in run.ranks
    }


def missing_ranks(run: Run) -> dict[int, MissingRanks]:
    """Ranks whose last operation is a collective that has not returned, with it and the ranks that did not reach it.

    A group is known by the ranks that have used it; the default one has all.
    """
    books = {rank.number: _book(rank) for rank in run.ranks}
    members: dict[str, set[int]] = defaultdict(set)
    for number, book in books.items():
        for group, *_ in book.issued:
            members[group].add(number)
    stuck = {}
    known: dict[tuple[Channel, int], tuple[int, ...]] = {}  # a thousand ranks may wait for one
    for rank in run.ranks:
        last = rank.final_operation
        if last is None or last.direction in _ANSWERED_BY or last.state not in _NOT_OVER:
            continue
        channel = _channel(last)
        if (channel, last.nth) not in known:
            missing = (m for m in sorted(members[channel[0]]) if books[m].at_most(channel) < last.nth)
            known[channel, last.nth] = tuple(missing)
        if known[channel, last.nth]:
            stuck[rank.number] = MissingRanks(last, known[channel, last.nth])
    return stuck


def first_to_blame(run: Run) -> int | None:
    """The rank that the others waited for: it owes an answer and is not itself waiting, else the first of those that
    wait for each other; None if undecided.
    """
    owed = [u.peer for u in unmatched(run)] + [
        number for stuck in missing_ranks(run).values() for number in stuck.ranks
    ]
    waiting = {rank.number for rank in run.ranks if _state(rank) == OperationState.WAITS}
    free = [number for number in owed if number not in waiting]
    return next(iter(free or deadlock_cycle(run)), None)


def first_to_fail(run: Run) -> Rank | None:
    """The rank to examine first: one killed from outside, else the failing one that got least far.

    A rank whose last operation failed is assumed to have lost its peer. If all were ended because of a hang, it is the
    one that the others waited for.
    """
    failed = [
        rank
        for rank in run.ranks
        if rank.ended.how not in _WELL and (rank.ended.status or rank.ended.how != EndKind.EXITED)
    ]
    if any(rank.ended.status in _ENDED_FOR_ALL for rank in failed) and all(map(ended_from_outside, failed)):
        blamed = first_to_blame(run)
        failed = [rank for rank in failed if rank.number == blamed] or failed
    return min(failed, key=_suspicion, default=None)


def ended_from_outside(rank: Rank) -> bool:
    """Whether it was ended from outside because it, or a peer, was stuck."""
    return rank.ended.status in (*_ENDED_FOR_ALL, _TERMINATED)


def _suspicion(rank: Rank) -> tuple[int, int, int]:
    ran_out = bool(rank.allocation_failures)
    raised = rank.ended.how in (EndKind.RAISED, EndKind.HUNG)
    lost_its_peer = not ran_out and raised and _state(rank) == OperationState.FAILED
    terminated = rank.ended.how == EndKind.KILLED and rank.ended.status == _TERMINATED
    order = 3 if terminated else 2 if lost_its_peer else 0 if ran_out else _SUSPECT_FIRST.get(rank.ended.how, 4)
    return order, rank.ended.steps, rank.number


def deadlock_cycle(run: Run) -> tuple[int, ...]:
    """Ranks that wait for each other in a cycle, without those that wait for one of them."""
    books = {rank.number: _book(rank) for rank in run.ranks}
    waits_for = {
        number: stuck.ranks
        for number, stuck in missing_ranks(run).items()
        if stuck.operation.state == OperationState.WAITS
    }
    for rank in run.ranks:
        last = rank.final_operation
        if last is None or last.state != OperationState.WAITS or last.direction not in _ANSWERED_BY:
            continue
        if last.peer is None or last.peer not in books:
            continue
        answer = (last.group, _ANSWERED_BY[last.direction], rank.number, last.tag)
        if books[last.peer].at_least(answer) < last.nth:
            waits_for[rank.number] = (last.peer,)
    for start in sorted(waits_for):
        reached = _reached(waits_for, start)
        if start in reached:
            return tuple(number for number in sorted(reached) if start in _reached(waits_for, number))
    return ()


def _reached(waits_for: Mapping[int, Sequence[int]], start: int) -> set[int]:
    """The ranks that one waits for, transitively."""
    found: set[int] = set()
    ahead = [start]
    while ahead:
        more = [number for number in waits_for.get(ahead.pop(), ()) if number not in found]
        found.update(more)
        ahead += more
    return found


CONTEXT = "dist_autograd context"
"""Direction of a gradient in a distributed-autograd context."""
_BETWEEN_TWO = (Direction.SEND, Direction.RECV)
CONTEXT_TYPE = "DistAutogradContext"


def buffers_of(graph: HeapGraph, storages: Iterable[int]) -> dict[int, CommUse]:
    """The storages that were sent, received or reduced, with their operation."""
    return {s: graph.comm_uses[s] for s in storages if s in graph.comm_uses}


def comm_buffers(graph: HeapGraph, storages: Iterable[int]) -> CommBuffers:
    """The storages that were sent, received or reduced, by location; the most frequent kind first."""
    buffers = buffers_of(graph, storages)
    kinds = Counter(_kind(crossing) for crossing in buffers.values())
    return CommBuffers(
        len(buffers),
        sum(int(graph.bytes[s]) for s in buffers),
        dead=sum(crossing.tensor_dead for crossing in buffers.values()),
        kinds=tuple(BufferKind(count, *kind) for kind, count in kinds.most_common()),
        in_graph=any(_is_in_graph(graph, storage) for storage in buffers),
    )


def _is_in_graph(graph: HeapGraph, storage: int) -> bool:
    """Whether a tensor over it has a grad node or a gradient, or is held by a node."""
    tensors = [int(graph.holder[r]) for r in graph.into(storage)]
    out = (graph.reference(int(r)) for tensor in tensors for r in graph.out_of(tensor))
    into = (graph.reference(int(r)) for tensor in tensors for r in graph.into(tensor))
    return any(r.kind == ReferenceKind.GRAD_GRAPH or r.name == ".grad" for r in out) or any(
        graph.object(r.holder).kind == ObjectKind.GRAD_NODE for r in into
    )


def _kind(crossing: CommUse) -> tuple[str, int | None, int, str]:
    """The kind of an operation: a collective has no peer, a gradient of a context no tag."""
    between_two = crossing.direction in _BETWEEN_TWO
    peer = crossing.peer if between_two or crossing.direction == CONTEXT else None
    return crossing.direction, peer, (crossing.tag or 0) if between_two else 0, crossing.issued_at


def crossed_count(graph: HeapGraph, storages: Iterable[int]) -> int:
    """Number of storages that were sent or received."""
    return sum(use.direction in _BETWEEN_TWO for use in buffers_of(graph, storages).values())


def p2p_buffers(candidate: Candidate) -> CommBuffers | None:
    """Sent and received buffers that also have a holder of another kind; None if there are none."""
    buffers = buffers_of(candidate.graph, candidate.group.storages)
    crossed = [s for s, crossing in buffers.items() if crossing.direction in _BETWEEN_TWO]
    return comm_buffers(candidate.graph, crossed) if crossed else None


_MIN_PAUSE_RATIO = 2.0
"""Minimum ratio of the time between two turns to that between tensors of one turn. Heuristic."""
_MIN_REGULAR_TURNS = 2
"""Minimum number of turns for a regular rhythm. Heuristic."""

Kind = tuple[Hashable, ...]
OperationRun = Sequence[CommOperation]
"""Operations of one step in one direction, in order of issue."""


@dataclass(frozen=True)
class Turn:
    """The position of an operation in its step.

    A turn is the k-th time in the step that tensors go in one direction (group, direction, peer). In a pipeline with
    one stage per rank it is the microbatch; with several, the record does not show which stage it was.
    """

    turn: int
    """From 1."""
    tensor: int
    """Index of the tensor in its turn, from 1."""
    tensors: int
    """Number of tensors in this turn."""


def turns_of(operations: Sequence[CommOperation]) -> dict[int, Turn]:
    """The turn of each operation, by id."""
    steps: dict[int, list[CommOperation]] = defaultdict(list)
    for operation in operations:
        steps[operation.step].append(operation)
    return {id_: turn for step in steps.values() for id_, turn in _of_step(sorted(step, key=_order)).items()}


def _order(operation: CommOperation) -> tuple[float, int]:
    return operation.issued, operation.id


def _kind_of(operation: CommOperation) -> Kind:
    return operation.group, operation.direction, operation.peer


def _of_step(step: OperationRun) -> dict[int, Turn]:
    by_kind: dict[Hashable, list[CommOperation]] = defaultdict(list)
    for operation in step:
        by_kind[_kind_of(operation)].append(operation)
    waits = sorted(operation.waited for operation in step if operation.waited is not None)
    found: dict[int, Turn] = {}
    for kind, mine in by_kind.items():
        others = [operation.issued for operation in step if _kind_of(operation) != kind]
        for number, turn in enumerate(_turns_of_kind(mine, others, waits), 1):
            for place, operation in enumerate(turn, 1):
                found[operation.id] = Turn(number, place, len(turn))
    return found


def _other_things_came(a: CommOperation, b: CommOperation, others: Sequence[float], waits: Sequence[float]) -> bool:
    """Whether between two operations one in another direction was issued, and one was waited for."""

    def between(moments: Sequence[float]) -> bool:
        return bisect_right(moments, b.issued) > bisect_left(moments, a.issued)

    return between(others) and between(waits)


def _cut(run: OperationRun, apart: Callable[[CommOperation, CommOperation], bool]) -> list[list[CommOperation]]:
    """Split the run between distant neighbours."""
    parts = [list(run[:1])]
    for a, b in pairwise(run):
        if apart(a, b):
            parts.append([])
        parts[-1].append(b)
    return parts


def _turns_of_kind(mine: OperationRun, others: Sequence[float], waits: Sequence[float]) -> list[list[CommOperation]]:
    """The turns of one direction in a step, with the times of `others` and of waits."""

    def others_came(a: CommOperation, b: CommOperation) -> bool:
        return _other_things_came(a, b, others, waits)

    def waited(a: CommOperation, b: CommOperation) -> bool:
        return others_came(a, b) or (a.waited is not None and a.waited <= b.issued)

    size = _by_parts(mine, _cut(mine, waited)) or _by_parts(mine, _cut(mine, others_came))
    return [turn for run in _cut(mine, others_came) for turn in _together(run, size)]


def _together(run: OperationRun, usual: int | None) -> list[list[CommOperation]]:
    """The turns of a run without anything in between; `usual` is the common number of equal ones."""
    count = len(run)
    usual = usual if usual and count % usual == 0 else None
    rhythms = (_period([kind(operation) for operation in run]) for kind in _KINDS)
    size = next((size for size in rhythms if 1 < size < count), None)
    if size is None:
        shapes = {_shape(operation) for operation in run}
        size = _by_tag(run) or usual or (count if len(shapes) == count else _by_rhythm(run))
    return [list(run[at : at + size]) for at in range(0, count, size)]


def _shape(operation: CommOperation) -> Kind:
    return operation.shape, operation.dtype


_KINDS: tuple[Callable[[CommOperation], Kind], ...] = (
    lambda operation: (operation.tag, operation.issued_at, operation.called_from, *_shape(operation)),
    lambda operation: (operation.issued_at, operation.called_from, *_shape(operation)),
    lambda operation: (operation.issued_at, *_shape(operation)),
    _shape,
)
"""Attributes that may distinguish the tensors of a turn; tags and issuing lines may distinguish turns instead."""


def _period(kinds: Sequence[Hashable]) -> int:
    """Period of the sequence; its length if it does not repeat."""
    return next(
        size for size in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i - size] for i in range(size, len(kinds)))
    )


def _by_tag(run: OperationRun) -> int | None:
    """Tensors per turn if each turn has its own tag."""
    sizes = [len(list(same)) for _, same in groupby(run, key=lambda operation: operation.tag)]
    tags = {operation.tag for operation in run}
    return sizes[0] if len(sizes) == len(tags) >= _MIN_REGULAR_TURNS and len(set(sizes)) == 1 and sizes[0] > 1 else None


def _by_parts(mine: OperationRun, parts: Sequence[OperationRun]) -> int | None:
    """Tensors per turn if something came between some turns."""
    size = gcd(*map(len, parts))
    return size if len(parts) >= _MIN_REGULAR_TURNS and size > 1 and _keeps_time(mine, size) else None


def _by_rhythm(run: OperationRun) -> int:
    """Tensors per turn by times of issue: those of one turn come together; 1 if undecided."""
    sizes = (size for size in range(2, len(run) // _MIN_REGULAR_TURNS + 1) if len(run) % size == 0)
    return next((size for size in sizes if _keeps_time(run, size, strictly=True)), 1)


def _keeps_time(run: OperationRun, size: int, strictly: bool = False) -> bool:
    """Whether gaps between turns of this size are longer than within them; `strictly`: between any two."""
    within: list[float] = []
    between: list[float] = []
    for place, (a, b) in enumerate(pairwise(run), 1):
        (within if place % size else between).append(b.issued - a.issued)
    longest, shortest = (max(within), min(between)) if strictly else (median(within), median(between))
    return bool(_MIN_PAUSE_RATIO * longest < shortest)


_MAX_KINDS = 2
"""Maximum kinds of operations named in a sentence. Heuristic."""


def buffer_kind_text(kind: BufferKind) -> str:
    """`received from rank 0, tag 0, at train.py:41 forward`."""
    at = f", at {kind.issued_at}" if kind.issued_at else ""
    if kind.direction == CONTEXT:
        return f"gradients of a context of worker {kind.peer}{at}"
    if kind.direction not in ("send", "recv"):
        return f"of {kind.direction}{at}"
    verb = "sent to" if kind.direction == "send" else "received from"
    peer = "any rank" if kind.peer is None else f"rank {kind.peer}"
    return f"{verb} {peer}{f', tag {kind.tag}' if kind.tag else ''}{at}"


def buffers_text(buffers: CommBuffers) -> str:
    """`128 sent to rank 1, tag 0, at train.py:28 step`: the most frequent kinds of buffers, and the
    number of others.
    """
    kinds = buffers.kinds
    more = f", and {len(kinds) - _MAX_KINDS} more kinds" if len(kinds) > _MAX_KINDS else ""
    return "; ".join(f"{kind.count} {buffer_kind_text(kind)}" for kind in kinds[:_MAX_KINDS]) + more
