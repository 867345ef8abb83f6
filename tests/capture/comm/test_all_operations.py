"""Two real ranks over gloo: every operation is recorded, and the lifetimes of buffers are unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.comm_examples import Pair, rank_with

from leakscope.run.rows import to_json

RANKS = (0, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, starts_processes: None) -> Path:
    made = tmp_path_factory.mktemp("all_operations")
    script = Path(__file__).with_name("all_operations.py")
    subprocess.run([sys.executable, str(script), str(made)], check=True, timeout=120)
    return made


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Pair:
    lines = [(folder / f"rank_{rank:04d}" / "wire.jsonl").read_text().splitlines() for rank in RANKS]
    rows = [[json.loads(line) for line in own] for own in lines]
    return Pair(answers(folder, True), (rows[0], rows[1]))


def answers(folder: Path, watched: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    first, second = (json.loads((folder / f"answer_{watched}_{rank}").read_text()) for rank in RANKS)
    return first, second


def rows(pair: Pair, rank: int, part: str) -> list[dict[str, Any]]:
    """What a rank wrote of one part, without the barrier that ends it."""
    step = pair.answers[rank]["parts"].index(part) + 1
    found = [to_json(o) for o in rank_with(rank, wire=pair.lines[rank]).operations if o.step == step]
    assert found.pop()["direction"] == "barrier"
    return found


def short(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_results_and_order_of_deaths_are_as_without_leakscope(recorded: Pair, folder: Path) -> None:
    for answer, unwatched in zip(recorded.answers, answers(folder, False), strict=True):
        assert answer == unwatched and answer["problems"] == []
        assert sum(name.startswith("storage") for name in answer["deaths"]) >= 12


@pytest.mark.parametrize("rank", RANKS)
def test_issue_wait_and_deaths_are_recorded_in_order(recorded: Pair, rank: int) -> None:
    for part in ("send_and_recv", "with_works", "batched", "collectives", "by_future"):
        for row in rows(recorded, rank, part):
            assert row["issued"] <= row["completed"] <= row["storage_died"], row
            assert row["issued"] <= row["tensor_died"] <= row["storage_died"], row
            assert row["work_died"] is not None and "dropped" not in row and "failed" not in row, row
    assert all(row["work_died"] < row["waited"] for row in rows(recorded, rank, "by_future"))


def test_both_ranks_record_the_same_message(recorded: Pair) -> None:
    parts = {"send_and_recv": (1, 16, [4]), "with_works": (2, 16, [4]), "batched": (3, 24, [2, 3])}
    for part, (tag, size, shape) in parts.items():
        sent, received = (rows(recorded, rank, part) for rank in RANKS)
        for rank, row in ((0, sent[0]), (1, received[-1])):
            assert short(row, "direction", "peer") == (("send", "recv")[rank], 1 - rank)
            wanted = {"tag": tag, "bytes": size, "shape": shape, "dtype": "float32", "group": "default", "nth": 1}
            assert wanted.items() <= row.items()
            assert "all_operations.py:" in row["issued_at"] and row["issued_at"].endswith(f" {part}")
            assert row["called_from"].endswith(" run")
    (row,) = rows(recorded, 1, "from_anybody")
    assert short(row, "direction", "peer", "source", "tag") == ("recv", None, 0, 6)


@pytest.mark.parametrize("rank", RANKS)
def test_a_reused_buffer_counts_its_microbatches_and_dies_once(recorded: Pair, rank: int) -> None:
    found = rows(recorded, rank, "reused")
    assert [short(row, "microbatch", "nth") for row in found] == [(0, 1), (1, 2), (2, 3)]
    assert [row["storage_died"] is not None for row in found] == [False, False, True]
    assert [row["reused"] for row in found[:2]] == [row["issued"] for row in found[1:]]


@pytest.mark.parametrize("rank", RANKS)
def test_collectives_and_functional_operators_are_recorded_with_their_bytes(recorded: Pair, rank: int) -> None:
    found = rows(recorded, rank, "collectives")
    assert [short(row, "direction", "bytes", "buffers") for row in found] == [
        ("allreduce", 16, 1), ("allgather", 48, 3), ("reduce_scatter_single", 24, 2),
    ]  # fmt: skip
    assert all(row["peer"] is None and row["tag"] is None and row["waited"] for row in found)
    total, gathered, *crossed = rows(recorded, rank, "functional")
    assert short(total, "direction", "bytes", "group") == ("all_reduce", 16, "default")
    assert short(gathered, "direction", "bytes", "buffers") == ("all_gather_into_tensor", 48, 2)
    name = ("send", "recv")[rank]
    assert [short(row, "direction", "peer", "tag", "bytes") for row in crossed] == [
        (name, 1 - rank, 7, 16), (name, 1 - rank, 8, 8), (name, 1 - rank, 9, 12),
    ]  # fmt: skip
    for row in (total, gathered, *crossed):
        assert row["issued"] < row["waited"] and row["issued_at"].endswith(" functional"), row
    (never,) = rows(recorded, rank, "never_waited")
    assert never["waited"] is None and never["storage_died"] is None
