"""Results do not depend on the number of reading processes, and each file is opened once."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from support import ROOT

from leakscope import originals
from leakscope.errors import LeakscopeError
from leakscope.findings.judge import judge, judge_rank, judge_together
from leakscope.report import FORMATS
from leakscope.run.model import Rank, Run
from leakscope.run.reader import open_run, read_each, read_run

RUNS = ROOT / "sample_runs" / "p2p_pipeline"
LIKE = (("none", 0), ("stage-backward-cycle", 0), ("kept-outputs", 1), ("none", 1), ("param-group-cycle", 1))


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A run of ten ranks, two of them lost and one damaged."""
    folder = tmp_path / "run"
    folder.mkdir()
    data = (RUNS / "none" / "run.json").read_text()
    (folder / "run.json").write_text(data.replace('"ranks": 2', '"ranks": 10'))
    for number in (0, 1, 2, 3, 5, 6, 7, 8):
        name, rank = LIKE[number % len(LIKE)]
        shutil.copytree(RUNS / name / f"rank_{rank:04d}", folder / f"rank_{number:04d}")
    (folder / "rank_0003" / "steps.jsonl").write_text("no step")
    return folder


@pytest.mark.process
def test_findings_do_not_depend_on_the_number_of_processes(many: Path) -> None:
    whole = read_run(many)
    run, ranks = read_each(open_run(many), judge_rank, 3)
    found, as_a_whole = judge_together(run, ranks), judge(whole)
    assert [rank.number for rank in run.ranks] == list(range(10)) == [rank.number for rank in ranks]
    assert found == as_a_whole and len(found.findings) >= 3
    for form in ("text", "json", "sarif", "junit"):
        assert FORMATS[form](run, found) == FORMATS[form](whole, as_a_whole)


@pytest.mark.process
def test_each_file_is_opened_once(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Counter[str] = Counter()
    open_one = originals.os.open

    def noted(path: str | Path, *arguments: int) -> int:
        opened[str(path)] += str(path).startswith(str(many))
        return open_one(path, *arguments)

    monkeypatch.setattr(originals.os, "open", noted)
    run, ranks = read_each(open_run(many), judge_rank, 1)
    found = judge_together(run, ranks)
    for form in FORMATS:
        FORMATS[form](run, found)
    assert len([name for name, times in opened.items() if times and "heap_" in name]) > 20
    assert {name for name, times in opened.items() if times > 1} == set()


def _ends(_: Run, rank: Rank) -> None:
    if rank.number == 5:
        os.kill(os.getpid(), signal.SIGKILL)


def _has_no_room(_: Run, rank: Rank) -> None:
    if rank.number == 5:
        raise MemoryError


@pytest.mark.process
def test_a_killed_reader_and_one_out_of_memory_are_reported(many: Path) -> None:
    with pytest.raises(LeakscopeError, match="memory ran out"):
        read_each(open_run(many), _ends, 2)
    with pytest.raises(MemoryError):
        read_each(open_run(many), _has_no_room, 2)
