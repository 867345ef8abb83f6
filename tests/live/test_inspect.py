"""Heap snapshots of a running job on request leave the job unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs.asked import TRAINING, at_step_20, job, let_go_on, losses, until

from leakscope.run.live import ask, last_answer, live_ranks
from leakscope.run.reader import read_run

pytestmark = pytest.mark.process

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]


UNASKED = 400
"""Steps after which, without a budget, there is no look that nobody asks for (recorder/steps/policy.py)."""


def steps_of(rank: Path) -> int:
    try:
        return (rank / "steps.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def test_a_rank_that_is_asked_answers_at_the_end_of_a_step_and_goes_on_as_before(
    script: Write, tmp_path: Path, leakscope: Command
) -> None:
    train = script(TRAINING)
    with job(tmp_path, train) as started:
        at_step_20(tmp_path)
        let_go_on(tmp_path)
        rank = tmp_path / "run" / "rank_0000"
        until(lambda: steps_of(rank) > UNASKED)
        asked = [ask(tmp_path / "run"), ask(tmp_path / "run")]
        answer = until(lambda: last_answer(rank))
        assert asked == [1, 2]
        assert (answer.asked, answer.occasion, answer.stacks) == (2, "step", ())

        told = leakscope("inspect", "run")
        (tmp_path / "enough").touch()
        assert started.wait(60) == 3
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("Verdict  LEAKS: 1 distinct leak (still running after ")
    assert "kept" in told.stdout
    assert "interim/0003/report.html" in told.stdout
    interim = json.loads((tmp_path / "run/interim/0003/findings.json").read_text())
    assert interim["verdict"] == "leaks"
    assert interim["run"]["ended"]["0"]["kind"] == "running"
    assert "so far" in (tmp_path / "run/interim/0003/report.html").read_text()
    assert json.loads((tmp_path / "run/findings.json").read_text())["run"]["ended"]["0"]["kind"] == "exited"
    assert not (tmp_path / "run/.asked").exists()

    again = leakscope("inspect", "run")
    assert (again.returncode, again.stderr) == (
        2, "leakscope: the run in run has ended; see `leakscope report run`\n"
    )  # fmt: skip

    plain = subprocess.Popen([sys.executable, train.name], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    at_step_20(tmp_path)
    let_go_on(tmp_path)
    assert (plain.communicate(timeout=60)[0], plain.returncode) == (losses(tmp_path) + "\n", 3)


def test_two_ranks_look_after_the_same_step(script: Write, tmp_path: Path) -> None:
    with job(tmp_path, script(TRAINING), ranks=2) as started:
        processes = [at_step_20(tmp_path, rank) for rank in range(2)]
        assert [rank.process and rank.process.number for rank in live_ranks(tmp_path / "run")] == processes
        for rank in range(2):
            let_go_on(tmp_path, rank)
        until(lambda: steps_of(tmp_path / "run/rank_0001") > UNASKED)
        ask(tmp_path / "run")
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


def test_native_code_that_lets_no_thread_run_is_not_waited_for(
    script: Write, tmp_path: Path, leakscope: Command
) -> None:
    with job(tmp_path, script(STUCK)) as started:
        at_step_20(tmp_path)
        told = leakscope("inspect", "run", "--timeout", 0.5)
        let_go_on(tmp_path)
        assert started.wait(60) == 0
    assert told.returncode == 2
    assert told.stderr.startswith("leakscope: rank 0 has not responded within 0.5 s")
    assert told.stdout.startswith("Verdict  INCONCLUSIVE")
    assert "opened True" in (tmp_path / "told").read_text()


def test_a_step_that_never_ends_is_looked_at_in_its_middle(script: Write, tmp_path: Path, leakscope: Command) -> None:
    with job(tmp_path, script(TRAINING)) as started:
        at_step_20(tmp_path)
        told = leakscope("inspect", "run")
        assert told.returncode == 0, told.stderr
        answer = last_answer(tmp_path / "run/rank_0000")
        run = read_run(tmp_path / "run")
        (tmp_path / "enough").touch()
        let_go_on(tmp_path)
        assert started.wait(60) == 3
    assert answer is not None
    assert (answer.step, answer.occasion) == (20, "asked")
    assert any("with open(f" in line for line in answer.stacks)
    assert "Within   rank 0: snapshot within an unfinished step (after step 20): with open" in told.stdout
    assert (run.ranks[0].ended.how, run.ranks[0].ended.steps) == ("running", 20)
