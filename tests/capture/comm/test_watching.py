"""Every operation is recorded once, and recording keeps no buffer alive."""

from __future__ import annotations

from typing import Any

from support.comm_examples import Pair, rank_with

from leakscope.run.rows import to_json


def rows(pair: Pair, rank: int) -> list[dict[str, Any]]:
    return [to_json(operation) for operation in rank_with(rank, wire=pair.lines[rank]).operations]


def test_no_buffer_lives_longer_and_nothing_computes_differently(watched: Pair, unwatched: Pair) -> None:
    for rank in (0, 1):
        assert watched.answers[rank]["alive"] == unwatched.answers[rank]["alive"]
        assert watched.answers[rank]["sums"] == unwatched.answers[rank]["sums"]
    assert True in watched.answers[0]["alive"] and False in watched.answers[0]["alive"]


def test_everything_is_taken_out(watched: Pair) -> None:
    assert watched.answers[0]["as found"] and watched.answers[1]["as found"]


def test_each_way_to_send_is_seen_once(watched: Pair) -> None:
    sent = [(row["step"], row["tag"]) for row in rows(watched, 0) if row["direction"] == "send"]
    # synchronous, isend, batched in a group, two tensors of an object list, the group's own method, three reuses
    assert sent == [(1, 3), (2, 0), (3, 0), (4, 0), (4, 0), (5, 9), (8, 6), (8, 6), (8, 6)]
    received = [(row["step"], row["tag"]) for row in rows(watched, 1) if row["direction"] == "recv"]
    assert received == sent


def test_what_is_written_of_an_operation(watched: Pair) -> None:
    first = next(row for row in rows(watched, 1) if row["direction"] == "recv")
    assert first["peer"] == 0 and first["bytes"] == 128 and first["shape"] == [4, 8] and first["dtype"] == "float32"
    assert first["group"] == "default" and first["nth"] == 1 and first["microbatch"] == 0
    assert "two_ranks.py:" in first["issued_at"] and first["issued_at"].endswith(" synchronous")
    assert first["issued"] <= first["waited"] <= first["tensor_died"] <= first["storage_died"]


def test_peers_of_a_group_are_ranks_of_the_world(watched: Pair) -> None:
    for rank in (0, 1):
        crossed = [row for row in rows(watched, rank) if row["step"] == 3 and row["direction"] in ("send", "recv")]
        assert [row["peer"] for row in crossed] == [1 - rank] * 2 and crossed[0]["group"] != "default"


def test_a_work_kept_is_a_buffer_kept(watched: Pair) -> None:
    kept = next(row for row in rows(watched, 0) if row["step"] == 2 and row["direction"] == "send")
    assert kept["waited"] < kept["storage_died"] and kept["waited"] < kept["work_died"]


def test_a_dropped_work_is_named(watched: Pair) -> None:
    for rank in (0, 1):
        assert [(row["step"], row["direction"]) for row in rows(watched, rank) if row.get("dropped")] == [
            (7, "allreduce")
        ]


def test_a_buffer_used_again_is_followed_for_its_last_use(watched: Pair) -> None:
    same = [row for row in rows(watched, 1) if row["step"] == 8 and row["direction"] == "recv"]
    assert [row["microbatch"] for row in same] == [0, 1, 2]
    assert ["reused" in row for row in same] == [True, True, False]
    assert same[-1]["storage_died"] is not None and same[0]["storage_died"] is None


def test_collectives_are_seen(watched: Pair) -> None:
    seen = [row["direction"] for row in rows(watched, 0) if row["step"] == 6]
    assert seen[:2] == ["allreduce", "allgather"] and "barrier" in seen
    gathered = next(row for row in rows(watched, 0) if row["direction"] == "allgather")
    assert gathered["bytes"] == 48 and gathered["buffers"] == 3
