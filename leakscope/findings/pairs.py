"""Who waited for whom? Sends matched with receives over the ranks, and what each rank did last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leakscope.findings.wire import wire_rows
from leakscope.record import Rank, Run

Row = Mapping[str, Any]
_WELL = ("finished", "stopped")
_POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True)
class Unmatched:
    """Operations of one rank that the other side never answered."""

    rank: int
    direction: str
    peer: int
    tag: int
    group: str
    missing: int
    """How many more this rank issued than its peer answered."""
    first: Row
    """The first of them that is on record."""
    answer: Row | None
    """The last operation of the rank that should have answered; None where nothing is known of it."""


def last_operation(rank: Rank) -> Row | None:
    """What a rank did last on the wire, with its `state`: issued, waits, waited or failed."""
    rows = [row for row in rank.extras.get("wire_last", ()) if "direction" in row]
    return {**rows[-1], "state": str(rows[-1].get("state", "")).strip()} if rows else None


def unmatched(run: Run) -> tuple[Unmatched, ...]:
    """Sends without their receive and receives without their send, the earliest first.

    Operations are counted on each channel (group, sender, receiver, tag); a rank that receives from anybody, or of
    which nothing is known, leaves its channels unjudged.
    """
    counts: dict[tuple[str, int, int, Any], dict[str, int]] = defaultdict(dict)
    anybody = set()
    for rank in run.ranks:
        for row in [*wire_rows(rank), *([last_operation(rank)] if last_operation(rank) else [])]:
            if row is None or row.get("direction") not in _POINT_TO_POINT:
                continue
            if row.get("peer") is None:
                anybody.add((row.get("group"), rank.number, row.get("tag")))
                continue
            ends = (rank.number, int(row["peer"])) if row["direction"] == "send" else (int(row["peer"]), rank.number)
            channel = (str(row.get("group")), *ends, row.get("tag"))
            counts[channel][row["direction"]] = max(counts[channel].get(row["direction"], 0), int(row.get("nth", 0)))
    found = []
    known = {rank.number: rank for rank in run.ranks}
    for (group, sender, receiver, tag), seen in counts.items():
        sent, received = seen.get("send", 0), seen.get("recv", 0)
        if sent == received or (group, receiver, tag) in anybody or sender not in known or receiver not in known:
            continue
        me, other, direction = (sender, receiver, "send") if sent > received else (receiver, sender, "recv")
        first = _nth(known[me], direction, other, tag, group, min(sent, received) + 1)
        if first is not None:
            answer = last_operation(known[other])
            found.append(Unmatched(me, direction, other, int(tag or 0), group, abs(sent - received), first, answer))
    return tuple(sorted(found, key=lambda u: (float(u.first.get("issued", 0.0)), u.rank)))


def _nth(rank: Rank, direction: str, peer: int, tag: Any, group: str, nth: int) -> Row | None:
    """The n-th operation of a channel, or the earliest later one on record."""
    rows = [*wire_rows(rank), *([last_operation(rank)] if last_operation(rank) else [])]
    later = [
        row for row in rows
        if row is not None and row.get("direction") == direction and row.get("peer") == peer and row.get("tag") == tag
        and row.get("group") == group and int(row.get("nth", 0)) >= nth
    ]  # fmt: skip
    return min(later, key=lambda row: int(row["nth"]), default=None)


def wire_notes(run: Run, number: int) -> tuple[str, ...]:
    """Sentences for one rank of a run in which some rank did not end well; () for every other run."""
    if all(rank.ended.how in _WELL and not rank.ended.status for rank in run.ranks):
        return ()
    notes = []
    rank = next(rank for rank in run.ranks if rank.number == number)
    last = last_operation(rank)
    if last is not None:
        notes.append(f"last on the wire: {_told(last)}")
    if number in absent(run):
        row, missing = absent(run)[number]
        others = ", ".join(map(str, missing))
        notes.append(f"in {row.get('direction')} #{row.get('nth')} of group {row.get('group')}, to which rank{'s' if len(missing) > 1 else ''} {others} never came")
    for lost in unmatched(run):
        if lost.rank != number:
            continue
        verb = "received" if lost.direction == "send" else "sent"
        more = f" and {lost.missing - 1} after it" if lost.missing > 1 else ""
        answer = "of which nothing is known" if lost.answer is None else f"whose last operation was: {_told(lost.answer)}"
        notes.append(f"never {verb} by rank {lost.peer}: {_told(lost.first, state=False)}{more}; rank {lost.peer}, {answer}")
    return tuple(notes)


def _told(row: Row, state: bool = True) -> str:
    """`recv #12 from rank 0, tag 3 (step 4, microbatch 1, at train.py:40 forward), still waiting`."""
    direction, peer, tag = str(row.get("direction")), row.get("peer"), row.get("tag")
    towards = "" if direction not in _POINT_TO_POINT else " from any rank" if peer is None else f" {'to' if direction == 'send' else 'from'} rank {peer}"
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
    last = {rank.number: row for rank in run.ranks if (row := last_operation(rank)) is not None}
    members: dict[str, set[int]] = defaultdict(set)
    calls: dict[tuple[int, str, str], int] = {}
    for rank in run.ranks:
        for row in [*wire_rows(rank), *([last[rank.number]] if rank.number in last else [])]:
            group, direction = str(row.get("group")), str(row.get("direction"))
            members[group].add(rank.number)
            key = (rank.number, group, direction)
            calls[key] = max(calls.get(key, 0), int(row.get("nth", 0)))
    found = {}
    for number, row in last.items():
        group, direction = str(row.get("group")), str(row.get("direction"))
        if direction in _POINT_TO_POINT or row["state"] not in ("waits", "issued"):
            continue
        missing = tuple(m for m in sorted(members[group]) if m in last and calls.get((m, group, direction), 0) < int(row.get("nth", 0)))
        if missing:
            found[number] = (row, missing)
    return found


def first_to_blame(run: Run) -> int | None:
    """The rank that the others waited for: it owes an answer and is not itself waiting; None where that says nothing."""
    owed = [u.peer for u in unmatched(run)] + [number for _, missing in absent(run).values() for number in missing]
    waiting = {rank.number for rank in run.ranks if (last_operation(rank) or {}).get("state") == "waits"}
    free = [number for number in owed if number not in waiting]
    return free[0] if free else None
