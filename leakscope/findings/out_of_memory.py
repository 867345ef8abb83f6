"""What held the memory when an allocation failed, or when the host's limit came near?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leakscope.findings.groups import Group, group_storages
from leakscope.findings.saying import along_way
from leakscope.graph.model import HeapGraph
from leakscope.record import Look, Rank, Run
from leakscope.units import bytes_text

MOST_HOLDERS = 8
PEERS_HOLDERS = 3
"""Holders told of a rank whose own allocations did not fail."""
CAUGHT = "An allocation on the CPU that fails and is caught by the script is not seen; only the one that ended it is."


def out_of_memory_told(run: Run) -> tuple[str, ...]:
    """Sentences on the rank that failed to allocate, the first to fail first, on its peers then, and on limits that came near."""
    ranks = sorted(run.ranks, key=lambda rank: (_failed_at(rank), rank.number))
    told = [f"Rank {rank.number}: {text}" for rank in ranks for text in (*_of_failure(rank), *_of_peer(rank))]
    told += [f"Rank {rank.number}: {text}" for rank in ranks for text in _of_limit(rank)]
    return (*told, CAUGHT) if told and run.device == "cpu" else tuple(told)


def _failed_at(rank: Rank) -> float:
    return min((float(row.get("time", 0.0)) for row in rank.extras.get("out_of_memory", ())), default=float("inf"))


def _of_failure(rank: Rank) -> Iterator[str]:
    rows = rank.extras.get("out_of_memory", ())
    for row in rows:
        wanted = row.get("wanted_bytes")
        many = f": {bytes_text(wanted)} were wanted" if wanted is not None else ""
        yield f"out of memory in step {row['step'] + 1} at {row.get('at') or 'an unknown line'}{many}. {row['error']}"
    look = _look_at(rank, rows[-1]["step"]) if rows else None
    if look is not None:
        yield from holders_told(look, True)
    elif rows and rank.extras.get("short_of_memory"):
        yield "there was no room to look at what was alive when the allocation failed; what is told below was seen before."


def _of_peer(rank: Rank) -> Iterator[str]:
    """What a rank held when the allocation of another had failed."""
    rows = _peers_rows(rank)
    look = _look_at(rank, rows[-1]["step"]) if rows and not rank.extras.get("out_of_memory") else None
    if look is not None:
        yield from _held(look, f"when rank {rows[-1]['of']}'s allocation failed", PEERS_HOLDERS)


def _of_limit(rank: Rank) -> Iterator[str]:
    """A limit that came near; who held the memory then, where no look later in the same step says more."""
    later = {row["step"] for row in (*rank.extras.get("out_of_memory", ()), *_peers_rows(rank))}
    for row in rank.extras.get("short_of_memory", ()):
        if row["kind"] == "near":
            # a look later in the same step has taken the place of this one
            when = f"in step {row['step'] + 1}" if row["inside"] else f"after step {row['step']}"
            yield (
                f"{when}, {bytes_text(row['used_bytes'])} of {row['limit']} of "
                f"{bytes_text(row['limit_bytes'])} were in use."
            )
            look = None if row["step"] in later else _look_at(rank, row["step"])
            if look is not None:
                yield from holders_told(look, False)


def _peers_rows(rank: Rank) -> list[Mapping[str, Any]]:
    return [row for row in rank.extras.get("short_of_memory", ()) if row["kind"] == "peer"]


def _look_at(rank: Rank, step: int) -> Look | None:
    return next((look for look in rank.looks if look.occasion == "memory" and look.step == step), None)


def holders_told(look: Look, failed: bool) -> list[str]:
    """What was alive at a look, the largest holders first; `failed` where an allocation had just failed."""
    return _held(look, "when the allocation failed" if failed else "then")


def _held(look: Look, when: str, most: int = MOST_HOLDERS) -> list[str]:
    graph = look.heap
    told = [f"{when}, storages of {bytes_text(look.explained_bytes)} were alive; the largest holders:"]
    groups = sorted(group_storages(graph), key=lambda g: -g.bytes)[:most]
    return told + [f"{bytes_text(g.bytes)} in {len(g.storages)} storage{'s' * (len(g.storages) != 1)}: {_spoken(graph, g)}" for g in groups]


def _spoken(graph: HeapGraph, group: Group) -> str:
    if group.freed:
        return "garbage that waits for gc" if group.freed > 0 else "a cycle that gc never frees"
    local = _local(graph, group.way)
    if local:
        return local
    tensor = next((r for r in group.way if graph.object(int(graph.held[r])).kind in ("tensor", "parameter")), None)
    return along_way(graph, group.way, tensor) if tensor is not None else graph.object(group.start).label


def _local(graph: HeapGraph, way: Sequence[int]) -> str:
    """`hidden in forward(), train.py:31`, for the frame nearest to the memory that the error's traceback, or nothing, keeps."""
    for place in range(len(way) - 1, -1, -1):
        holder = graph.object(int(graph.holder[way[place]]))
        if holder.kind == "frame":
            r = graph.reference(way[place])
            where = r.where or holder.where
            return f"{r.name.removeprefix('local ')} in {holder.name}(){', ' + where if where else ''}"
    return ""
