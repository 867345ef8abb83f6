"""Who waited for whom? Sends matched with receives over the ranks, and what each rank did last."""

from __future__ import annotations

import math
import signal
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from leakscope.findings.comm.operations import wire_rows
from leakscope.record.kinds import EndKind
from leakscope.record.model import Rank, Run

Row = Mapping[str, Any]
Channel = tuple[str, str, Any, Any]
"""(group, direction, peer, tag)."""
_WELL = ("finished", "stopped")
_POINT_TO_POINT = {"send": "recv", "recv": "send"}
_GAVE_UP = (124, 130)
"""Statuses of ranks that `--hang-timeout` or Ctrl-C ended: no rank failed before the others."""
_TERMINATED = 128 + signal.SIGTERM
"""Status of a rank that the launcher is taken to have ended because a peer had failed."""
_MOST_TOLD = 4


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
    first: Row
    """The first of them that is on record."""
    answer: Row | None
    """The last operation of the rank that should have answered; None where it had none."""


@dataclass(frozen=True)
class _Book:
    """What one rank issued, as far as it is on record; what lies between is counted, not known."""

    rows: Mapping[Channel, Sequence[Row]]
    ids: Sequence[int]
    newest: int | None
    """Id of the last operation it issued, on record or not; None where that is not known."""
    gaps: Sequence[tuple[Channel, int, int, int]]
    """(channel, an id, a later one, how many operations of the channel in between are not on record)."""

    def at_least(self, channel: Channel) -> int:
        """Operations of a channel that the rank certainly issued."""
        return _last_of(self.rows.get(channel, ()))[1]

    def at_most(self, channel: Channel) -> float:
        """Operations of a channel that it can have issued: what is not on record is of this one unless it must be of another."""
        if self.newest is None:
            return math.inf
        number, nth = _last_of(self.rows.get(channel, ()))
        hidden = self._hidden(number, self.newest + 1)
        if hidden:
            later = [gap for gap in self.gaps if gap[0] != channel and gap[2] > number]
            hidden -= sum(max(0, count - self._hidden(after, number)) for _, after, _, count in later)
        return nth + hidden

    def _hidden(self, after: int, before: int) -> int:
        """How many operations between two ids are not on record."""
        return max(0, before - after - 1 - max(0, bisect_left(self.ids, before) - bisect_right(self.ids, after)))


def _last_of(rows: Sequence[Row]) -> tuple[int, int]:
    return (int(rows[-1]["id"]), int(rows[-1]["nth"])) if rows else (0, 0)


def _book(rank: Rank) -> _Book:
    last = last_operation(rank)
    found = {
        int(row["id"]): row for row in (*([last] if last else []), *wire_rows(rank)) if "id" in row and "nth" in row
    }
    rows: dict[Channel, list[Row]] = defaultdict(list)
    for number in sorted(found):
        rows[_channel(found[number])].append(found[number])
    gaps = []
    for channel, ordered in rows.items():
        places = [(0, 0), *((int(row["id"]), int(row["nth"])) for row in ordered)]
        gaps += [(channel, a, b, n - m - 1) for (a, m), (b, n) in pairwise(places) if n - m > 1]
    return _Book(dict(rows), sorted(found), max(found, default=0) if _all_told(rank, last) else None, gaps)


def _channel(row: Row) -> Channel:
    return str(row.get("group")), str(row.get("direction")), row.get("peer"), row.get("tag")


def _all_told(rank: Rank, last: Row | None) -> bool:
    """Whether a rank issued nothing after the latest operation that is on record."""
    ended = rank.ended
    if last is None and "wire_last" in rank.extras and not wire_rows(rank):
        return True
    if last is not None and last.get("newest"):
        return True
    if ended.status in _GAVE_UP:  # what it was in the middle of is written, what was over before the step may not be
        return last is not None and int(last.get("step", 0)) > ended.steps
    return ended.how in (EndKind.FINISHED, EndKind.RAISED) and (ended.how == EndKind.RAISED or not ended.error)


def last_operation(rank: Rank) -> Row | None:
    """What a rank did last on the wire, with its `state`: issued, waits, waited or failed."""
    rows = [row for row in rank.extras.get("wire_last", ()) if "direction" in row]
    return {**rows[-1], "state": str(rows[-1].get("state", "")).strip()} if rows else None


def unmatched(run: Run) -> tuple[Unmatched, ...]:
    """Sends without their receive and receives without their send, the earliest first.

    Operations are counted on each channel; told is what the peer cannot have answered, whatever it did that is not
    on record. A rank that receives from anybody leaves its channels unjudged.
    """
    books = {rank.number: _book(rank) for rank in run.ranks}
    last = {rank.number: last_operation(rank) for rank in run.ranks}
    anybody = {
        (group, number, tag) for number, book in books.items() for group, _, peer, tag in book.rows if peer is None
    }
    found = []
    for number, book in books.items():
        for (group, direction, peer, tag), rows in book.rows.items():
            receiver = peer if direction == "send" else number
            if direction not in _POINT_TO_POINT or peer not in books or (group, receiver, tag) in anybody:
                continue
            answered = books[peer].at_most((group, _POINT_TO_POINT[direction], number, tag))
            lost = [row for row in rows if int(row["nth"]) > answered]
            if lost:
                missing = int(lost[-1]["nth"]) - int(lost[0]["nth"]) + 1
                found.append(Unmatched(number, direction, peer, int(tag or 0), group, missing, lost[0], last[peer]))
    return tuple(sorted(found, key=lambda u: (float(u.first.get("issued", 0.0)), u.rank)))


def wire_notes(run: Run) -> Mapping[int, tuple[str, ...]]:
    """Sentences for each rank of a run in which some rank did not end well; none for every other run."""
    if all(rank.ended.how in _WELL and not rank.ended.status for rank in run.ranks):
        return {}
    notes: dict[int, list[str]] = defaultdict(list)
    for rank in run.ranks:
        last = last_operation(rank)
        if last is not None:
            notes[rank.number].append(f"last on the wire: {_told(last)}")
    for number, (row, missing) in absent(run).items():
        who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        notes[number].append(
            f"in {row.get('direction')} #{row.get('nth')} of group {row.get('group')}, to which {who} never came"
        )
    for lost in unmatched(run):
        verb = "received" if lost.direction == "send" else "sent"
        more = f" and {lost.missing - 1} after it" if lost.missing > 1 else ""
        answer = (
            "which did nothing on the wire"
            if lost.answer is None
            else f"whose last operation was: {_told(lost.answer)}"
        )
        said = f"never {verb} by rank {lost.peer}: {_told(lost.first, state=False)}{more}; rank {lost.peer}, {answer}"
        notes[lost.rank].append(said)
    return {number: tuple(said) for number, said in notes.items()}


def _told(row: Row, state: bool = True) -> str:
    """`recv #12 from rank 0, tag 3 (step 4, microbatch 1, at train.py:40 forward), still waiting`."""
    direction, peer, tag = str(row.get("direction")), row.get("peer"), row.get("tag")
    towards = (
        ""
        if direction not in _POINT_TO_POINT
        else " from any rank"
        if peer is None
        else f" {'to' if direction == 'send' else 'from'} rank {peer}"
    )
    tagged = f", tag {tag}" if tag else ""
    at = f", at {row['issued_at']}" if row.get("issued_at") else ""
    text = f"{direction} #{row.get('nth')}{towards}{tagged} (step {row.get('step')}, microbatch {row.get('microbatch')}{at})"
    if not state:
        return text
    doing = {"issued": "issued, not waited for", "waits": "still waiting", "waited": "done", "failed": "failed"}
    return f"{text}, {doing.get(str(row.get('state')), 'state unknown')}"


def absent(run: Run) -> dict[int, tuple[Row, tuple[int, ...]]]:
    """Ranks whose last operation is a collective that has not returned, each with it and the ranks that have not come to it.

    A group is known by the ranks that have used it, the default one has them all.
    """
    books = {rank.number: _book(rank) for rank in run.ranks}
    members: dict[str, set[int]] = defaultdict(set)
    for number, book in books.items():
        for group, *_ in book.rows:
            members[group].add(number)
    found = {}
    for rank in run.ranks:
        row = last_operation(rank)
        if row is None or row.get("direction") in _POINT_TO_POINT or row["state"] not in ("waits", "issued"):
            continue
        channel, nth = _channel(row), int(row.get("nth", 0))
        missing = tuple(m for m in sorted(members[channel[0]]) if books[m].at_most(channel) < nth)
        if missing:
            found[rank.number] = (row, missing)
    return found


def first_to_blame(run: Run) -> int | None:
    """The rank that the others waited for: it owes an answer and is not itself waiting, else the first of those that
    wait for each other; None where that says nothing.
    """
    owed = [u.peer for u in unmatched(run)] + [number for _, missing in absent(run).values() for number in missing]
    waiting = {rank.number for rank in run.ranks if (last_operation(rank) or {}).get("state") == "waits"}
    free = [number for number in owed if number not in waiting]
    return next(iter(free or waiting_circle(run)), None)


def first_to_fail(run: Run) -> Rank | None:
    """The rank to look at first: one killed from outside, else the failing one that got least far.

    A rank whose last operation on the wire raised is taken for one whose peer had gone away. Where all were ended
    because nothing moved, it is the one that the others waited for.
    """
    failed = [
        rank
        for rank in run.ranks
        if rank.ended.how not in _WELL and (rank.ended.status or rank.ended.how != EndKind.EXITED)
    ]
    if any(rank.ended.status in _GAVE_UP for rank in failed) and all(map(gave_up, failed)):
        blamed = first_to_blame(run)
        failed = [rank for rank in failed if rank.number == blamed] or failed
    return min(failed, key=_suspicion, default=None)


def gave_up(rank: Rank) -> bool:
    """Whether it was ended from outside because it, or a peer, did not get on."""
    return rank.ended.status in (*_GAVE_UP, _TERMINATED)


def _suspicion(rank: Rank) -> tuple[int, int, int]:
    ran_out = bool(rank.extras.get("out_of_memory"))
    lost_its_peer = (
        not ran_out and rank.ended.how == EndKind.RAISED and (last_operation(rank) or {}).get("state") == "failed"
    )
    terminated = rank.ended.how == EndKind.KILLED and rank.ended.status == _TERMINATED
    order = (
        3
        if terminated
        else 2
        if lost_its_peer
        else 0
        if ran_out
        else {"killed": 0, "raised": 1, "exited": 1}.get(rank.ended.how, 4)
    )
    return order, rank.ended.steps, rank.number


def waiting_circle(run: Run) -> tuple[int, ...]:
    """Ranks that wait for each other, so that none of them can go on; a rank that waits for one of them is not among them."""
    books = {rank.number: _book(rank) for rank in run.ranks}
    waits_for = {number: missing for number, (row, missing) in absent(run).items() if row["state"] == "waits"}
    for rank in run.ranks:
        row = last_operation(rank)
        if (
            row is None
            or row["state"] != "waits"
            or row["direction"] not in _POINT_TO_POINT
            or row.get("peer") not in books
        ):
            continue
        other = (str(row.get("group")), _POINT_TO_POINT[row["direction"]], rank.number, row.get("tag"))
        if books[row["peer"]].at_least(other) < int(row["nth"]):
            waits_for[rank.number] = (row["peer"],)
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


def circle_told(run: Run, circle: Sequence[int]) -> str:
    """`rank 1 in recv #2 from rank 2 (step 2, microbatch 0, at train.py:40 forward), rank 2 in ...`."""
    told = [
        f"rank {r.number} in {_told(row, state=False)}"
        for r in run.ranks
        if r.number in circle and (row := last_operation(r))
    ]
    return ", ".join(told[:_MOST_TOLD]) + (f" and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else "")
