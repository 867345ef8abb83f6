"""A module beside the script, or in the working directory, that has the name of one that leakscope imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from leakscope.run.reader import read_run

pytestmark = pytest.mark.process

TRAIN = """
import torch
{ahead}
model = torch.nn.Linear(4, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(6):
    out = model(torch.randn(64, 4))
    out.sum().backward()
    optimizer.step()
    kept.append(out)
"""
OWN = ("resource",)
"""Of the script's own folder. Neither torch nor an optimizer imports it; the recorder does, after the script has."""
ELSEWHERE = tuple(sorted({*sys.stdlib_module_names, "click", "leakscope", "leakscope_cli", "numpy", "rich", "torch"}))
"""Of the working directory, which no plain Python looks into for `python sub/train.py`."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory full of modules that must not be imported, with a script in a folder of its own."""
    for name in ELSEWHERE:
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the working directory')")
    (tmp_path / "sub").mkdir()
    for name in OWN:
        (tmp_path / "sub" / f"{name}.py").write_text("MINE = True")
    mine = "\n".join(f"import {name}\nassert {name}.MINE" for name in OWN)
    child = "import subprocess, sys\nassert subprocess.run([sys.executable, 'sub/child.py']).returncode == 0"
    (tmp_path / "sub" / "train.py").write_text(TRAIN.format(ahead=f"{mine}\n{child}"))
    (tmp_path / "sub" / "child.py").write_text(TRAIN.format(ahead=mine))
    return tmp_path


def test_the_script_and_leakscope_each_find_their_own(folder: Path) -> None:
    words = ["run", "-q", "-o", "run", "--steps", "6", "--prove", "sub/train.py"]
    command = [sys.executable, str(ROOT / "leakscope" / "__main__.py"), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (23, "")
    run = read_run(folder / "run")
    assert [(rank.ended.how, len(rank.steps)) for rank in run.ranks] == [("stopped", 6)] * 2
    assert not any(rank.recording_ended for rank in run.ranks)
    assert run.ranks[0].proved
