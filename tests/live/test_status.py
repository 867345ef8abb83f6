"""`leakscope status` reports the progress of each rank without disturbing the job."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.runs.asked import TRAINING, at_step_20, job, release_job

from leakscope.run.live import RecordingProcess, this_process
from leakscope.run.status import status_of

Write = Callable[..., Path]

MIB = 1 << 20


def recorded(folder: Path, steps: int, process: RecordingProcess, since: float = 0.0, rank: int = 0) -> Path:
    """A run of which this rank has taken so many steps of 10 ms, the last one so long ago, each gaining 1 MiB."""
    of_rank = folder / f"rank_{rank:04d}"
    of_rank.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"format": 1, "command": ["train.py"], "ranks": rank + 1, "warmup": 2}))
    (of_rank / "process.json").write_text(json.dumps(asdict(process)))
    rows = (
        {"number": n, "seconds": 0.01, "counted_bytes": (n + 7 * (n < 3)) * MIB, "peak_bytes": None}
        for n in range(1, steps + 1)
    )
    (of_rank / "steps.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"number": 9')
    then = time.time() - since
    os.utime(of_rank / "steps.jsonl", (then, then))
    return folder


@pytest.mark.parametrize(
    ("steps", "since", "state", "over"), [(8, 0.0, "running", 6), (400, 0.0, "running", 50), (8, 31.0, "stuck", 6)]
)
def test_the_trend_is_that_of_the_last_steps_after_warmup(
    tmp_path: Path, steps: int, since: float, state: str, over: int
) -> None:
    (rank,) = status_of(recorded(tmp_path / "run", steps, this_process(), since)).ranks
    assert (rank.step, rank.state, rank.over_steps, rank.counted_bytes) == (steps, state, over, steps * MIB)
    assert rank.bytes_per_step == pytest.approx(MIB)
    assert rank.since_step == pytest.approx(since, abs=5)


def test_a_process_that_has_ended_is_lost(tmp_path: Path) -> None:
    here = this_process()
    for process, state in (
        (replace(here, began=here.began - 1), "lost"),  # its number is another's now
        (replace(here, machine="another", number=1), "running"),
    ):
        assert status_of(recorded(tmp_path / state, 8, process)).ranks[0].state == state


@pytest.mark.process
def test_a_terminal_is_refreshed_until_ctrl_c(script: Write, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "leakscope", "status", "run"]
    with job(tmp_path, script(TRAINING)) as started:
        process = at_step_20(tmp_path)
        wide = {**os.environ, "COLUMNS": "140"}
        once = subprocess.run(command, cwd=tmp_path, env=wide, capture_output=True, text=True, timeout=60, check=True)
        data = json.loads(subprocess.check_output([*command, "--json"], cwd=tmp_path, timeout=60))
        terminal, ours = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "140"}
        watching = subprocess.Popen([*command, "--every", "0.1"], cwd=tmp_path, stdout=ours, stderr=ours, env=env)
        os.close(ours)
        shown = b""
        while shown.count(b"running") < 3:
            shown += os.read(terminal, 1 << 16)
        watching.send_signal(signal.SIGINT)
        with suppress(OSError):  # the other end is closed
            while last := os.read(terminal, 1 << 16):
                shown += last
        os.close(terminal)
        assert watching.wait(60) == 0
        (tmp_path / "enough").touch()
        release_job(tmp_path)
        assert started.wait(60) == 3
    assert b"\x1b[" in shown and b"Traceback" not in shown
    assert "running, step 20" in once.stdout
    (rank,) = data["ranks"]
    assert (data["goes_on"], rank["state"], rank["step"], rank["process"]) == (True, "running", 20, process)
    assert rank["bytes_per_step"] > 100_000
    after = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert "finished" in after.stdout and "exited" in after.stdout
    assert not (tmp_path / "run" / "interim").exists()
