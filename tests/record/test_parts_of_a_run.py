"""Merging the run folders of several machines gives the run that one folder would have held."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import TESTS

from leakscope.errors import LeakscopeError
from leakscope.findings import judge
from leakscope.report.formats.as_json import as_data
from leakscope.run.multi_node import merge_parts
from leakscope.run.reader import read_run

WHOLE = TESTS.parent / "sample_runs" / "p2p_pipeline" / "stage-backward-cycle"
RANKS = (0, 1)
Split = Callable[..., tuple[Path, Path]]


@pytest.fixture
def split(tmp_path: Path) -> Split:
    """Two machines with a rank each, as scp without -p brings them: times of today, and the receiver's modes."""

    def parts(second: Mapping[str, Any] | None = None, first: Mapping[str, Any] | None = None) -> tuple[Path, Path]:
        header = json.loads((WHOLE / "run.json").read_text())
        for rank, other in zip(RANKS, (first or {}, second or {}), strict=True):
            folder = tmp_path / f"node{rank}"
            shutil.copytree(WHOLE / f"rank_{rank:04d}", folder / f"rank_{rank:04d}", copy_function=shutil.copyfile)
            (folder / "run.json").write_text(json.dumps({**header, "nodes": 2, "ranks_a_node": 1, **other}))
            (folder / "logs").mkdir()
            (folder / "logs" / "launcher.log").write_text(f"of machine {rank}\n")
        return tmp_path / "node0", tmp_path / "node1"

    return parts


def findings_of(folder: Path) -> dict[str, Any]:
    run = read_run(folder)
    data: dict[str, Any] = as_data(replace(run, folder=""), judge(run))
    return data


def everything_in(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode) for path in files}


def test_merged_parts_equal_the_whole_run(split: Split, tmp_path: Path) -> None:
    parts = split({"started": "2026-01-01T12:40:00Z"}, {"started": "2026-01-01T12:00:00Z"})
    os.utime(parts[0] / "rank_0000" / "ended.json", ns=(0, 0))
    before = [everything_in(part) for part in parts]
    merge_parts(parts, tmp_path / "merged")
    assert findings_of(tmp_path / "merged") == findings_of(WHOLE) and findings_of(WHOLE)["findings"]
    assert [everything_in(part) for part in parts] == before
    logs = {path.name: path.read_text() for path in (tmp_path / "merged" / "logs").iterdir()}
    assert logs == {"launcher.log": "of machine 0\n", "part_1_launcher.log": "of machine 1\n"}
    merge_parts([*parts, tmp_path / "merged"], tmp_path / "again")  # each rank twice, and the same both times
    assert findings_of(tmp_path / "again") == findings_of(WHOLE)


def test_one_part_alone_has_a_lost_rank_only_after_merging(split: Split, tmp_path: Path) -> None:
    first, _ = split()
    run = read_run(first)
    assert [rank.number for rank in run.ranks] == [0] and run.expected_ranks == 2
    assert "leakscope merge" in " ".join(run.notes)
    merge_parts([first], tmp_path / "merged")
    run = read_run(tmp_path / "merged")
    assert [(rank.number, str(rank.ended.how)) for rank in run.ranks] == [(0, "stopped"), (1, "lost")]
    assert not run.notes


OF_ANOTHER_JOB: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "number of ranks": ({}, {"ranks": 4}),
    "--warmup": ({}, {"warmup": 3}),
    "--horizon": ({}, {"options": {"horizon": 3}}),
    "rendezvous id": ({"job": {"id": "a"}}, {"job": {"id": "b"}}),
    "--rdzv-id": (
        {"started": "2026-01-01T12:00:00Z", "job": {"id": "none", "port": "29500"}},
        {"started": "2026-01-01T15:00:00Z", "job": {"id": "none", "port": "29500"}},
    ),
}


@pytest.mark.parametrize("word", OF_ANOTHER_JOB)
def test_parts_of_different_jobs_are_refused(split: Split, tmp_path: Path, word: str) -> None:
    first, second = OF_ANOTHER_JOB[word]
    with pytest.raises(LeakscopeError, match=word):
        merge_parts(split(second, first), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("job", [{"id": "night", "port": "29500"}, {"id": "none", "port": "40123"}])
def test_parts_of_one_rendezvous_may_differ_in_clock_and_command(
    split: Split, tmp_path: Path, job: dict[str, str]
) -> None:
    script, *words = json.loads((WHOLE / "run.json").read_text())["command"]
    parts = split(
        {"started": "2026-01-09T15:00:00Z", "job": job, "command": [f"elsewhere/{script}", *words, "--cache", "/b"]},
        {"started": "2026-01-01T12:00:00Z", "job": job},
    )
    merge_parts(parts, tmp_path / "merged")
    assert len(read_run(tmp_path / "merged").ranks) == 2


def test_a_rank_with_two_contents_is_refused(split: Split, tmp_path: Path) -> None:
    first, second = split()
    shutil.copytree(first / "rank_0000", second / "rank_0000")
    with (second / "rank_0000" / "steps.jsonl").open("a") as steps:
        steps.write("{}\n")
    with pytest.raises(LeakscopeError, match=r"rank 0 is in .*node0.*node1"):
        merge_parts([first, second], tmp_path / "merged")
