"""Every kind of communication is recorded completely, and the lifetimes of buffers are unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from support.comm_examples import Pair, rank_with

from leakscope.run.rows import to_json


def rows(pair: Pair, rank: int, part: str) -> list[dict[str, Any]]:
    """What a rank wrote of one part, without the barrier that ends it."""
    step = pair.answers[rank]["parts"].index(part) + 1
    found = [to_json(o) for o in rank_with(rank, wire=pair.lines[rank]).operations if o.step == step]
    assert found.pop()["direction"] == "barrier"
    return found


def short(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_everything_dies_in_the_same_order_and_computes_the_same(
    all_operations: Pair, all_operations_unwatched: Pair
) -> None:
    for rank in (0, 1):
        assert all_operations.answers[rank] == all_operations_unwatched.answers[rank]
        assert all_operations.answers[rank]["problems"] == []
        assert sum(name.startswith("storage") for name in all_operations.answers[rank]["deaths"]) >= 14


@pytest.mark.parametrize(
    "part",
    [
        "send_and_recv", "with_works", "batched", "collectives", "by_future",
    ],
)  # fmt: skip
def test_issue_wait_and_deaths_stand_in_their_order(all_operations: Pair, part: str) -> None:
    for rank in (0, 1):
        for row in rows(all_operations, rank, part):
            assert row["issued"] <= row["completed"] <= row["storage_died"], row
            assert row["issued"] <= row["tensor_died"] <= row["storage_died"], row
            assert row["work_died"] is not None and "dropped" not in row and "failed" not in row, row


def test_what_two_ranks_say_of_one_message(all_operations: Pair) -> None:
    for part, tag, size, shape in (
        ("send_and_recv", 1, 16, [4]),
        ("with_works", 2, 16, [4]),
        ("batched", 3, 24, [2, 3]),
    ):
        sent, received = (rows(all_operations, rank, part) for rank in (0, 1))
        for rank, row in ((0, sent[0]), (1, received[-1])):
            assert short(row, "direction", "peer") == (("send", "recv")[rank], 1 - rank)
            wanted = {"tag": tag, "bytes": size, "shape": shape, "dtype": "float32", "group": "default", "nth": 1}
            assert wanted.items() <= row.items()
            assert "all_operations.py:" in row["issued_at"] and row["issued_at"].endswith(f" {part}")
            assert row["called_from"].endswith(" <module>")


def test_a_reused_buffer_counts_its_microbatches_and_dies_once(all_operations: Pair) -> None:
    for rank in (0, 1):
        found = rows(all_operations, rank, "reused")
        assert [short(row, "microbatch", "nth") for row in found] == [(0, 1), (1, 2), (2, 3)]
        assert [row["storage_died"] is not None for row in found] == [False, False, True]
        assert [row["reused"] for row in found[:2]] == [row["issued"] for row in found[1:]]


def test_a_receive_from_anybody_says_whose_it_was(all_operations: Pair) -> None:
    (row,) = rows(all_operations, 1, "from_anybody")
    assert short(row, "direction", "peer", "source", "tag") == ("recv", None, 0, 6)


def test_collectives_tell_all_their_bytes(all_operations: Pair) -> None:
    for rank in (0, 1):
        found = [short(row, "direction", "bytes", "buffers") for row in rows(all_operations, rank, "collectives")]
        assert found == [
            ("allreduce", 16, 1), ("allgather", 48, 3), ("reduce_scatter_single", 24, 2),
            ("gather", *((48, 3), (16, 1))[rank]),
        ]  # fmt: skip
        assert all(
            row["peer"] is None and row["tag"] is None and row["waited"]
            for row in rows(all_operations, rank, "collectives")
        )


def test_a_future_waits_for_its_work(all_operations: Pair) -> None:
    for rank in (0, 1):
        for row in rows(all_operations, rank, "by_future"):
            assert row["work_died"] < row["waited"] and "dropped" not in row


def test_functional_operators_are_seen(all_operations: Pair) -> None:
    for rank in (0, 1):
        total, gathered, *crossed = rows(all_operations, rank, "functional")
        assert short(total, "direction", "bytes", "group") == ("all_reduce", 16, "default")
        assert short(gathered, "direction", "bytes", "buffers") == ("all_gather_into_tensor", 48, 2)
        name = ("send", "recv")[rank]
        assert [short(row, "direction", "peer", "tag", "bytes") for row in crossed] == [
            (name, 1 - rank, 7, 16), (name, 1 - rank, 8, 8), (name, 1 - rank, 9, 12),
        ]  # fmt: skip
        for row in (total, gathered, *crossed):
            assert row["issued"] < row["waited"] and row["issued_at"].endswith(" functional"), row
        assert total["waited"] < total["storage_died"]


def test_a_functional_collective_that_nobody_waits_for_never_dies(all_operations: Pair) -> None:
    for rank in (0, 1):
        (row,) = rows(all_operations, rank, "never_waited")
        assert row["waited"] is None and row["storage_died"] is None
