"""Heap snapshots of a running job on request leave the job unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs.asked import TRAINING, at_step_20, job, losses, release_job, until

from leakscope.run.live import last_answer, live_ranks, request_snapshot
from leakscope.run.reader import read_run

pytestmark = pytest.mark.process

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]


UNREQUESTED = 400
"""Steps after which, without a budget, only requested snapshots are taken (recorder/steps/policy.py)."""


def steps_of(rank: Path) -> int:
    try:
        return (rank / "steps.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def test_a_running_rank_answers_in_a_step_and_at_its_end_and_is_unchanged(
    script: Write, tmp_path: Path, leakscope: Command
) -> None:
    train, run = script(TRAINING), tmp_path / "run"
    with job(tmp_path, train) as started:
        at_step_20(tmp_path)
        unfinished = leakscope("inspect", "run")
        assert unfinished.returncode == 0, unfinished.stderr
        in_step, until_then = last_answer(run / "rank_0000"), read_run(run)
        release_job(tmp_path)
        until(lambda: steps_of(run / "rank_0000") > UNREQUESTED)
        assert [request_snapshot(run), request_snapshot(run)] == [2, 3]
        answer = until(lambda: (last := last_answer(run / "rank_0000")) and last.asked == 3 and last)
        assert (answer.occasion, answer.stacks) == ("step", ())
        inspected = leakscope("inspect", "run")
        (tmp_path / "enough").touch()
        assert started.wait(60) == 3
    assert in_step is not None
    assert (in_step.step, in_step.occasion) == (20, "asked")
    assert any("with open(f" in line for line in in_step.stacks)
    assert (until_then.ranks[0].ended.how, until_then.ranks[0].ended.steps) == ("running", 20)
    assert (inspected.returncode, inspected.stderr) == (0, "")
    assert inspected.stdout.startswith("Verdict  LEAKS") and "kept" in inspected.stdout
    interim = json.loads((run / "interim/0004/findings.json").read_text())
    assert interim["verdict"] == "leaks" and interim["run"]["ended"]["0"]["kind"] == "running"
    assert (run / "interim/0004/report.html").exists() and not (run / ".asked").exists()
    assert json.loads((run / "findings.json").read_text())["run"]["ended"]["0"]["kind"] == "exited"
    again = leakscope("inspect", "run")
    assert again.returncode == 2 and again.stderr.startswith("leakscope: the run in run has ended")
    plain = subprocess.Popen([sys.executable, train.name], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    at_step_20(tmp_path)
    release_job(tmp_path)
    assert (plain.communicate(timeout=60)[0], plain.returncode) == (losses(tmp_path) + "\n", 3)


def test_two_ranks_answer_after_the_same_step(script: Write, tmp_path: Path) -> None:
    with job(tmp_path, script(TRAINING), ranks=2) as started:
        processes = [at_step_20(tmp_path, rank) for rank in range(2)]
        assert [rank.process and rank.process.number for rank in live_ranks(tmp_path / "run")] == processes
        for rank in range(2):
            release_job(tmp_path, rank)
        until(lambda: steps_of(tmp_path / "run/rank_0001") > UNREQUESTED)
        request_snapshot(tmp_path / "run")
        answers = [until(lambda rank=rank: last_answer(tmp_path / f"run/rank_000{rank}")) for rank in range(2)]
        (tmp_path / "enough").touch()
        assert started.wait(60) == 3
    assert [answer.occasion for answer in answers] == ["step", "step"]
    assert answers[0].step == answers[1].step


STUCK = """
import ctypes, os
import torch
with open("at_20_0", "w") as begun:
    begun.write(str(os.getpid()))
print("opened", ctypes.PyDLL(None).open(b"go_on_0", os.O_RDONLY) > 2)  # no other thread of Python runs meanwhile
"""


def test_native_code_that_holds_the_gil_is_not_waited_for(script: Write, tmp_path: Path, leakscope: Command) -> None:
    with job(tmp_path, script(STUCK)) as started:
        at_step_20(tmp_path)
        result = leakscope("inspect", "run", "--timeout", 0.5)
        release_job(tmp_path)
        assert started.wait(60) == 0
    assert result.returncode == 2
    assert "rank 0" in result.stderr and result.stdout.startswith("Verdict  INCONCLUSIVE")
    assert "opened True" in (tmp_path / "told").read_text()
