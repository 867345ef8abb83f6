"""`Profiler` counts blocks, calls and wrapped functions as steps and overwrites only its own runs."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import leakscope

LOSSES: list[torch.Tensor] = []


def steps(profiler: leakscope.Profiler) -> int:
    return len(profiler.run.ranks[0].steps)


def test_a_step_is_a_block_a_plain_call_or_a_wrapped_function() -> None:
    profiler, kept = leakscope.Profiler(warmup=20), []

    async def later() -> int:
        await asyncio.sleep(0)
        return 3

    with pytest.raises(RuntimeError, match="nothing is being recorded"):
        profiler.step()
    with profiler:
        with profiler.step():
            pass
        profiler.step()
        for _ in range(2):  # as a notebook keeps the last value of a cell
            kept.append(profiler.step())
        with pytest.raises(ZeroDivisionError), profiler.step():
            print(1 / 0)
        assert profiler.wrap(len)([1]) == 1
        assert asyncio.run(profiler.wrap(later)()) == 3
    kept.clear()
    assert steps(profiler) == 6
    with pytest.raises(TypeError, match="generator function"):
        profiler.wrap(lambda: (yield))


def test_a_decorated_function_is_recorded_call_by_call_be_it_awaited_or_within_itself() -> None:
    profiler = leakscope.Profiler(warmup=20)

    @profiler
    def train(count: int) -> int:
        for _ in range(count):
            with profiler.step():
                pass
        return train(count - 1) + 1 if count else 0

    assert (train(3), steps(profiler)) == (3, 6)
    assert (train(1), steps(profiler)) == (1, 1)

    @profiler
    async def train_later() -> None:
        await asyncio.sleep(0)
        profiler.step()

    asyncio.run(train_later())
    assert steps(profiler) == 1 and gc.isenabled()

    async def block() -> None:
        async with profiler:
            async with profiler.step():
                await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="already recording"), profiler:
                pass

    asyncio.run(block())
    assert steps(profiler) == 1


@pytest.mark.process
def test_over_several_cells_and_again_in_the_same_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    profiler = leakscope.Profiler(output=tmp_path / "run", warmup=20)
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        profiler.stop()
    for count in (2, 1):
        assert profiler.start() is profiler
        for _ in range(count):
            profiler.step()
        found = profiler.stop()
        assert profiler.stop() is found and found is profiler.findings and steps(profiler) == count
    (tmp_path / "run" / "mine.txt").touch()
    forgotten = leakscope.Profiler(output=tmp_path / "run").start()
    again = leakscope.Profiler(output=tmp_path / "other").start()
    assert "was not stopped" in capfd.readouterr().err and forgotten.findings
    again.stop()
    assert {"mine.txt", "run.json", "report.html"} <= {path.name for path in (tmp_path / "run").iterdir()}


@pytest.mark.process
def test_what_is_no_run_of_a_profilers_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "command": [], "ranks": 1}))
    for place in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(leakscope.LeakscopeError, match="choose another output="), leakscope.Profiler(output=place):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "run.json"]


FORGOTTEN = """
import os, sys, torch, leakscope

profiler = leakscope.Profiler(output=sys.argv[1], warmup=1).start()
for _ in range(3):
    torch.ones(8)
    profiler.step()
if os.fork() == 0:
    sys.exit()
os.wait()
print("the end")
"""


@pytest.mark.process
def test_what_nobody_stops_ends_with_the_program_and_is_told_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORGOTTEN, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "the end\n") and "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert found["run"]["steps"] == 3 and found["run"]["ended"]["0"]["kind"] == "finished"
    assert (tmp_path / "run" / "report.html").exists()
