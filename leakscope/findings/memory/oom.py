"""What held the memory when an allocation failed, or when the host's limit came near?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leakscope.findings.compare_ranks import is_model
from leakscope.findings.grouping.groups import Group, group_storages
from leakscope.findings.naming.expressions import as_expression
from leakscope.findings.naming.trace import generic
from leakscope.graph.model import HeapGraph, ObjectKind
from leakscope.record.kinds import Occasion
from leakscope.record.model import Look, Rank, Run
from leakscope.record.rows.host import LimitNear, PeerOutOfMemory
from leakscope.units import bytes_text

MOST_HOLDERS = 8
PEERS_HOLDERS = 3
"""Holders told of a rank whose own allocations did not fail."""
CAUGHT = "An allocation on the CPU that fails and is caught by the script is not seen; only the one that ended it is."


@dataclass(frozen=True)
class Holder:
    """What held most on the rank whose allocation failed."""

    name: str
    """As its user would write it: `cache in main()`."""
    where: str
    bytes: int
    alive_bytes: int
    """Of all storages then."""


def ranks_out_of_memory(run: Run) -> tuple[Rank, ...]:
    """The ranks that a failed allocation ended, the first to fail first."""
    failed = [rank for rank in run.ranks if rank.allocation_failures]
    return tuple(sorted(failed, key=lambda rank: (_failed_at(rank), rank.number)))


def largest_holder(rank: Rank) -> Holder | None:
    """The largest holder when a rank's allocation failed; None where it was not looked at, or is nothing that a
    user lets go of.
    """
    step = rank.allocation_failures[-1].step
    look = _look_at(rank, step) or _look_at(rank, step, "oom")
    if look is None:
        return None
    graph = look.heap
    groups = [(_bytes(look, group), group) for group in group_storages(graph)]
    size, group = max(groups, key=lambda found: found[0], default=(0, None))
    if group is None or group.freed or is_model(graph, group) or not _is_named(graph, group):
        return None
    return Holder(*_named(graph, group), size, look.explained_bytes)


def _bytes(look: Look, group: Group) -> int:
    """Of a group; where the device ran out of memory, those on a device."""
    graph = look.heap
    return (
        sum(int(graph.bytes[s]) for s in group.storages if s in graph.device)
        if look.occasion == Occasion.OOM
        else group.bytes
    )


def out_of_memory_told(run: Run) -> tuple[str, ...]:
    """Sentences on the rank that failed to allocate, the first to fail first, on its peers then, and on limits
    that came near.
    """
    ranks = sorted(run.ranks, key=lambda rank: (_failed_at(rank), rank.number))
    told = [f"Rank {rank.number}: {text}" for rank in ranks for text in (*_of_failure(rank), *_of_peer(rank))]
    told += [f"Rank {rank.number}: {text}" for rank in ranks for text in _of_limit(rank)]
    return (*told, CAUGHT) if told and run.device == "cpu" else tuple(told)


def _failed_at(rank: Rank) -> float:
    return min((row.time for row in rank.allocation_failures), default=float("inf"))


def _of_failure(rank: Rank) -> Iterator[str]:
    rows = rank.allocation_failures
    for row in rows:
        many = f": {bytes_text(row.wanted_bytes)} were wanted" if row.wanted_bytes is not None else ""
        yield f"out of memory in step {row.step + 1} at {row.at or 'an unknown line'}{many}. {row.error}"
    look = _look_at(rank, rows[-1].step) if rows else None
    if look is not None:
        yield from holders_told(look, True)
    elif rows and rank.memory_shortages:
        yield (
            "there was no room to look at what was alive when the allocation failed; what is told below was "
            "seen before."
        )


def _of_peer(rank: Rank) -> Iterator[str]:
    """What a rank held when the allocation of another had failed."""
    rows = _peers_rows(rank)
    look = _look_at(rank, rows[-1].step) if rows and not rank.allocation_failures else None
    if look is not None:
        yield from _held(look, f"when rank {rows[-1].of}'s allocation failed", PEERS_HOLDERS)


def _of_limit(rank: Rank) -> Iterator[str]:
    """A limit that came near; who held the memory then, where no look later in the same step says more."""
    later = {row.step for row in rank.allocation_failures} | {row.step for row in _peers_rows(rank)}
    for row in rank.memory_shortages:
        if isinstance(row, LimitNear):
            # a look later in the same step has taken the place of this one
            when = f"in step {row.step + 1}" if row.inside else f"after step {row.step}"
            yield (f"{when}, {bytes_text(row.used_bytes)} of {row.limit} of {bytes_text(row.limit_bytes)} were in use.")
            look = None if row.step in later else _look_at(rank, row.step)
            if look is not None:
                yield from holders_told(look, False)


def _peers_rows(rank: Rank) -> list[PeerOutOfMemory]:
    return [row for row in rank.memory_shortages if isinstance(row, PeerOutOfMemory)]


def _look_at(rank: Rank, step: int, occasion: str = "memory") -> Look | None:
    return next((look for look in rank.looks if look.occasion == occasion and look.step == step), None)


def holders_told(look: Look, failed: bool) -> list[str]:
    """What was alive at a look, the largest holders first; `failed` where an allocation had just failed."""
    return _held(look, "when the allocation failed" if failed else "then")


def _held(look: Look, when: str, most: int = MOST_HOLDERS) -> list[str]:
    rows: dict[str, tuple[int, int]] = {}
    for group in group_storages(look.heap):
        said = _spoken(look.heap, group)
        size, count = rows.get(said, (0, 0))
        rows[said] = (size + group.bytes, count + len(group.storages))
    told = [f"{when}, storages of {bytes_text(look.explained_bytes)} were alive; the largest holders:"]
    largest = sorted(rows.items(), key=lambda row: -row[1][0])[:most]
    return told + [
        f"{bytes_text(size)} in {count} storage{'s' * (count != 1)}: {said}" for said, (size, count) in largest
    ]


def _spoken(graph: HeapGraph, group: Group) -> str:
    if group.freed:
        return "garbage that waits for gc" if group.freed > 0 else "a cycle that gc never frees"
    return ", ".join(part for part in _named(graph, group) if part)


def _is_named(graph: HeapGraph, group: Group) -> bool:
    """Whether a variable of a function or of a module leads there."""
    return any(graph.object(int(graph.holder[r])).kind in (ObjectKind.FRAME, ObjectKind.NAMESPACE) for r in group.path)


def _named(graph: HeapGraph, group: Group) -> tuple[str, str]:
    """`net.weight in main()` and the line, from the frame nearest to the memory, which the error's traceback may
    keep.
    """
    frames = [k for k, r in enumerate(group.path) if graph.object(int(graph.holder[r])).kind == ObjectKind.FRAME]
    way = _down_to_holder(graph, group.path[frames[-1] :] if frames else group.path)
    if not way:
        return graph.object(group.start).label, ""
    said = as_expression(graph, way, way[-1])
    if not frames:
        return said, ""
    local = graph.reference(way[0])
    frame = graph.object(local.holder)
    inside = f" in {frame.name}()"
    said = said if said.endswith(inside) else local.name.removeprefix("local ") + inside
    return said, local.where or frame.where


def _down_to_holder(graph: HeapGraph, way: tuple[int, ...]) -> tuple[int, ...]:
    """A way as far as the first tensor, or the container of many."""
    tensor = next(
        (
            k
            for k, r in enumerate(way)
            if graph.object(int(graph.held[r])).kind in (ObjectKind.TENSOR, ObjectKind.PARAMETER)
        ),
        None,
    )
    if tensor is None:
        return ()
    upto = way[: tensor + 1]
    while len(upto) > 1 and generic(graph.reference(upto[-1]).name) == "[i]":
        upto = upto[:-1]
    return upto
