"""A script that puts functions of its own in the place of Python's, as tests do, is recorded as any other."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.run.reader import read_run

pytestmark = pytest.mark.process

SCRIPT = """
import builtins, gc, io, json, os, time
import torch

def refuse(*_, **__):
    raise RuntimeError("not in this script")

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
builtins.open = json.dump = json.dumps = json.loads = os.replace = refuse
gc.get_objects = gc.get_referents = gc.get_referrers = gc.collect = gc.disable = gc.get_count = refuse
gc.isenabled = gc.get_freeze_count = gc.is_tracked = lambda *_: "nonsense"
time.time = time.sleep = refuse
time.perf_counter = time.monotonic = time.thread_time = lambda: 0.0
for _ in range(9):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
print("done")
"""


def test_nothing_of_ours_depends_on_what_the_script_has_replaced(
    leakscope: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = leakscope("run", "--steps", 9, "-o", "run", "train.py")
    assert done.returncode == 0 and "recording ended" not in done.stderr, done.stderr
    (rank,) = read_run(tmp_path / "run").ranks
    assert len(rank.steps) == 9 and len(rank.looks) >= 4
    assert not [note for note in rank.notes if "failed" in note]
