"""How a run of one rank ends, with torch at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.launch import Outcome, launch
from leakscope.options import Options
from leakscope.run.model import Rank
from leakscope.run.reader import read_run

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("launches_copies")]

Write = Callable[..., Path]

TRAIN = """
import sys, threading
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(folder: Path, script: Path, **plan: object) -> tuple[Outcome, Rank]:
    folder.mkdir(exist_ok=True)
    outcome = launch(Options(script=str(script), folder=folder, **plan))  # type: ignore[arg-type]
    return outcome, read_run(folder).ranks[0]


def test_a_run_stops_after_the_steps_asked_for(script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = "kept = []\ntry:\n    while True: kept.append(torch.ones(3)); step()\n"
    path = script(TRAIN + loop + "finally:\n    print('cleaned up', file=open('done', 'w'))\n")
    monkeypatch.chdir(tmp_path)
    outcome, rank = run(tmp_path / "run", path, steps=5)
    assert outcome.status == 0
    assert (rank.ended.how, rank.ended.status, rank.ended.steps) == ("stopped", 0, 5)
    snapshots = [(snapshot.step, snapshot.occasion) for snapshot in rank.heap_snapshots if snapshot.occasion != "peak"]
    assert snapshots == [(3, "step"), (4, "step"), (5, "last")]
    assert rank.gc_diff is not None
    assert (tmp_path / "done").exists(), "the script's own clean-up runs"
    assert "train.py:14 <module> (aten::ones)" in {
        p for snapshot in rank.heap_snapshots for p in snapshot.heap.made_at.values()
    }


def test_a_script_that_swallows_the_stop_is_ended(script: Write, tmp_path: Path) -> None:
    path = script(TRAIN + "while True:\n    try: step()\n    except BaseException: print('swallowed', flush=True)\n")
    began = time.monotonic()
    outcome, rank = run(tmp_path / "run", path, steps=3, grace=0.5, gc_diff="never")
    assert outcome.status == 0 and rank.ended.how == "stopped" and rank.ended.steps == 3
    assert len(rank.steps) == 3, "what comes after the stop is not recorded"
    assert time.monotonic() - began < 60


def test_after_ctrl_c_the_report_is_written(script: Write, tmp_path: Path) -> None:
    path = script(TRAIN + "import time\nstep()\nprint('ready', flush=True)\nfor _ in range(600): time.sleep(0.1)\n")
    command = [sys.executable, "-m", "leakscope", "run", "-o", str(tmp_path / "run"), str(path)]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "KeyboardInterrupt" in err and "leakscope/" not in err.partition("leakscope:")[0]
    assert (tmp_path / "run" / "report.html").exists() and "Ctrl-C" in out
    assert read_run(tmp_path / "run").ranks[0].ended.error == "KeyboardInterrupt"
