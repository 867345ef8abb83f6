"""Does a user's type checker see the types of the public API?"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from support import ROOT

SCRIPT = """
import leakscope
from leakscope.backward import stage_backward_input

def train_step(batch: int) -> float:
    return float(batch)

with leakscope.watch(fail=True, allowance="1 MB") as block:
    train_step(1)
with leakscope.Profiler(output="run") as profiler:
    reveal_type(profiler.wrap(train_step))
reveal_type(leakscope.check(lambda: train_step(1)).verdict)
reveal_type(block.findings.findings[0].retained_bytes)
reveal_type(profiler.run)
reveal_type(stage_backward_input)
leakscope.check(train_step, repeats="7")
"""


@pytest.mark.process
def test_mypy_finds_the_types_of_an_installed_leakscope(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "leakscope.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "train.py"]
    command += [
        "--python-executable",
        str(tmp_path / "venv" / "bin" / "python"),
        "--config-file",
        "",
        "--cache-dir",
        "cache",
    ]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400).stdout
    for revealed in (
        "def (batch: int) -> float",
        '.Verdict"',
        '"int"',
        '.Run"',
        "typing.Iterable[",
    ):
        assert revealed in told, told
    errors = [line for line in told.splitlines() if ": error:" in line]
    assert len(errors) == 2 and all(line.startswith("train.py:16:") and "[arg-type]" in line for line in errors), told


def test_the_marker_for_type_checkers_ships() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    assert "py.typed" in data["leakscope"] and (ROOT / "leakscope" / "py.typed").exists()
