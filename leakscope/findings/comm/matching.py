"""Who waited for whom? Sends matched with receives over the ranks, and what each rank did last."""

from __future__ import annotations

import math
import signal
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leakscope.record.kinds import Direction, EndKind, OperationState
from leakscope.record.model import Rank, Run
from leakscope.record.read.operations import column
from leakscope.record.rows.comm import FinalOperation, IssuedOperation

Channel = tuple[str, str, int | None, int | None]
"""(group, direction, peer, tag)."""
Issued = tuple[int, int, int]
"""(id, which of its channel, place among the operations of its rank)."""
_LAST = -1
"""Place of the last operation, where it is none of the others."""
_WELL = (EndKind.FINISHED, EndKind.STOPPED, EndKind.RUNNING, EndKind.UNKNOWN)
_ANSWERED_BY: Mapping[str, Direction] = {Direction.SEND: Direction.RECV, Direction.RECV: Direction.SEND}
"""P2P operations, each with what the other side does."""
_ENDED_FOR_ALL = (124, 130)
"""Statuses of ranks that `--hang-timeout` or Ctrl-C ended: no rank failed before the others."""
_TERMINATED = 128 + signal.SIGTERM
"""Status of a rank that the launcher is taken to have ended because a peer had failed."""
_NOT_OVER = (OperationState.WAITS, OperationState.ISSUED)
_SUSPECT_FIRST: Mapping[EndKind, int] = {EndKind.KILLED: 0, EndKind.RAISED: 1, EndKind.HUNG: 1, EndKind.EXITED: 1}


@dataclass(frozen=True)
class Unmatched:
    """Operations of one rank that the other side never answered."""

    rank: int
    direction: str
    peer: int
    tag: int
    group: str
    missing: int
    """How many they are at least, from the first on."""
    first: IssuedOperation
    """The first of them that is on record."""
    answer: FinalOperation | None
    """The last operation of the rank that should have answered; None where it had none."""


@dataclass(frozen=True)
class MissingRanks:
    """A collective that has not returned, and the ranks of its group that never came to it."""

    operation: FinalOperation
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class CommState:
    """Where one rank stood with its peers when the run ended."""

    last: FinalOperation | None
    missing: MissingRanks | None
    unmatched: tuple[Unmatched, ...]


@dataclass(frozen=True)
class _Book:
    """What one rank issued, as far as it is on record; what lies between is counted, not known."""

    issued: Mapping[Channel, Sequence[Issued]]
    ids: Sequence[int]
    newest: int | None
    """Id of the last operation it issued, on record or not; None where that is not known."""
    gaps: Sequence[tuple[Channel, int, int, int]]
    """(channel, an id, a later one, how many operations of the channel in between are not on record)."""

    def at_least(self, channel: Channel) -> int:
        """Operations of a channel that the rank certainly issued."""
        return _last_of(self.issued.get(channel, ()))[1]

    def at_most(self, channel: Channel) -> float:
        """Operations of a channel that it can have issued: what is not on record is of this one unless it must be
        of another.
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
        """How many operations between two ids are not on record."""
        return max(0, before - after - 1 - max(0, bisect_left(self.ids, before) - bisect_right(self.ids, after)))


def _last_of(operations: Sequence[Issued]) -> tuple[int, int]:
    return operations[-1][:2] if operations else (0, 0)


def _book(rank: Rank) -> _Book:
    last, known = rank.final_operation, rank.operations
    columns = [column(known, name) for name in ("id", "nth", "group", "direction", "peer", "tag")]
    by_id: dict[int, tuple[int, Channel, int]] = {}
    if last is not None:
        by_id[last.id] = last.nth, _channel(last), _LAST
    channels: dict[Channel, Channel] = {}  # each once, be the operations a million
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
    """The operation that has that place in a book."""
    if place == _LAST:
        assert rank.final_operation is not None
        return rank.final_operation
    return rank.operations[place]


def _channel(operation: IssuedOperation) -> Channel:
    return operation.group, operation.direction, operation.peer, operation.tag


def _is_on_record(rank: Rank) -> bool:
    """Whether a rank issued nothing after the latest operation that is on record."""
    ended, last = rank.ended, rank.final_operation
    if last is None and rank.final_operation_known and not rank.operations:
        return True
    if last is not None and last.newest:
        return True
    if (
        ended.status in _ENDED_FOR_ALL
    ):  # what it was in the middle of is written, what was over before the step may not be
        return last is not None and last.step > ended.steps
    return ended.how in (EndKind.RAISED, EndKind.HUNG) or (ended.how == EndKind.FINISHED and not ended.error)


def _state(rank: Rank) -> OperationState | None:
    return None if rank.final_operation is None else rank.final_operation.state


def unmatched(run: Run) -> tuple[Unmatched, ...]:
    """Sends without their receive and receives without their send, the earliest first.

    Operations are counted on each channel; told is what the peer cannot have answered, whatever it did that is not
    on record. A rank that receives from anybody leaves its channels unjudged.
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
    """What there is to say of each rank of a run in which some rank did not end well; none for every other run."""
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
    """Ranks whose last operation is a collective that has not returned, each with it and those that never came to it.

    A group is known by the ranks that have used it, the default one has them all.
    """
    books = {rank.number: _book(rank) for rank in run.ranks}
    members: dict[str, set[int]] = defaultdict(set)
    for number, book in books.items():
        for group, *_ in book.issued:
            members[group].add(number)
    stuck = {}
    known: dict[tuple[Channel, int], tuple[int, ...]] = {}  # a thousand ranks wait in one and the same
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
    wait for each other; None where that says nothing.
    """
    owed = [u.peer for u in unmatched(run)] + [
        number for stuck in missing_ranks(run).values() for number in stuck.ranks
    ]
    waiting = {rank.number for rank in run.ranks if _state(rank) == OperationState.WAITS}
    free = [number for number in owed if number not in waiting]
    return next(iter(free or deadlock_cycle(run)), None)


def first_to_fail(run: Run) -> Rank | None:
    """The rank to look at first: one killed from outside, else the failing one that got least far.

    A rank whose last operation failed is taken for one whose peer had gone away. Where all were ended
    because nothing moved, it is the one that the others waited for.
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
    """Whether it was ended from outside because it, or a peer, did not get on."""
    return rank.ended.status in (*_ENDED_FOR_ALL, _TERMINATED)


def _suspicion(rank: Rank) -> tuple[int, int, int]:
    ran_out = bool(rank.allocation_failures)
    raised = rank.ended.how in (EndKind.RAISED, EndKind.HUNG)
    lost_its_peer = not ran_out and raised and _state(rank) == OperationState.FAILED
    terminated = rank.ended.how == EndKind.KILLED and rank.ended.status == _TERMINATED
    order = 3 if terminated else 2 if lost_its_peer else 0 if ran_out else _SUSPECT_FIRST.get(rank.ended.how, 4)
    return order, rank.ended.steps, rank.number


def deadlock_cycle(run: Run) -> tuple[int, ...]:
    """Ranks that wait for each other, so that none of them can go on; a rank that waits for one of them is not
    among them.
    """
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
    """The ranks that one waits for, and those that these wait for, and so on."""
    found: set[int] = set()
    ahead = [start]
    while ahead:
        more = [number for number in waits_for.get(ahead.pop(), ()) if number not in found]
        found.update(more)
        ahead += more
    return found
