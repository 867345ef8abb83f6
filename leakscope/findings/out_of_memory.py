"""What held the memory when an allocation failed, or when the host's limit came near?"""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.findings.groups import Group, group_storages
from leakscope.findings.saying import along_way
from leakscope.graph.model import HeapGraph
from leakscope.record import Look, Rank, Run
from leakscope.units import bytes_text

MOST_HOLDERS = 8


def out_of_memory_told(run: Run) -> tuple[str, ...]:
    """Sentences for each rank that failed to allocate or came near its limit: what was wanted, where, and the largest holders."""
    told: list[str] = []
    for rank in run.ranks:
        look = next((look for look in rank.looks if look.occasion == "memory"), None)
        rows = rank.extras.get("out_of_memory", ())
        for row in rows:
            told.append(f"Rank {rank.number}: {_failure(row, rank)}")
        if look is not None:
            told += [f"Rank {rank.number}: {text}" for text in _holders(look, bool(rows))]
    return tuple(told)


def _failure(row: object, rank: Rank) -> str:
    assert hasattr(row, "get")
    wanted = row.get("wanted_bytes")
    many = f": {bytes_text(wanted)} were wanted" if wanted is not None else ""
    return f"out of memory in step {row['step'] + 1} at {row.get('at') or 'an unknown line'}{many}. {row['error']}"  # type: ignore[index]


def _holders(look: Look, failed: bool) -> list[str]:
    graph = look.heap
    when = "when the allocation failed" if failed else f"after step {look.step}, when the host's memory limit came near"
    told = [f"{when}, storages of {bytes_text(look.explained_bytes)} were alive; the largest holders:"]
    groups = sorted(group_storages(graph), key=lambda g: -g.bytes)[:MOST_HOLDERS]
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
