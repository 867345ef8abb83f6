"""Every operation is recorded once, and recording keeps no buffer alive."""

from __future__ import annotations

from typing import Any

from support.comm_examples import Pair, rank_with

from leakscope.run.rows import to_json


def rows(pair: Pair, rank: int) -> list[dict[str, Any]]:
    return [to_json(operation) for operation in rank_with(rank, wire=pair.lines[rank]).operations]


def test_everything_is_taken_out(watched: Pair) -> None:
    assert watched.answers[0]["as found"] and watched.answers[1]["as found"]


def test_each_way_to_send_is_seen_once(watched: Pair) -> None:
    sent = [(row["step"], row["tag"]) for row in rows(watched, 0) if row["direction"] == "send"]
    # synchronous, isend, batched in a group, two tensors of an object list, the group's own method, three reuses
    assert sent == [(1, 3), (2, 0), (3, 0), (4, 0), (4, 0), (5, 9), (8, 6), (8, 6), (8, 6)]
    received = [(row["step"], row["tag"]) for row in rows(watched, 1) if row["direction"] == "recv"]
    assert received == sent


def test_a_dropped_work_is_named(watched: Pair) -> None:
    for rank in (0, 1):
        assert [(row["step"], row["direction"]) for row in rows(watched, rank) if row.get("dropped")] == [
            (7, "allreduce")
        ]
