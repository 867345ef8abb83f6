"""Globals of a spawned script are named as in the user's code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.findings import judge
from leakscope.launch import launch
from leakscope.options import Options
from leakscope.run.reader import read_run

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("launches_copies")]

SPAWNED = """
import torch, torch.multiprocessing as mp
kept = []
def train(rank):
    torch.set_num_threads(1)
    net = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(8):
        out = net(torch.ones(512, 256))
        kept.append(out)
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
if __name__ == "__main__":
    mp.spawn(train, nprocs=1)
"""


def test_a_global_of_a_spawned_script_is_cut_as_it_is_written(script: Callable[[str], Path], tmp_path: Path) -> None:
    launch(Options(folder=tmp_path / "run", script=str(script(SPAWNED)), gc_diff="never", lifetimes=False))
    (finding,) = judge(read_run(tmp_path / "run")).findings
    assert finding.cut is not None
    assert [(reference.written, len(reference.indexes)) for reference in finding.cut.references] == [("kept", 2)]
    assert finding.trace[0].object.startswith("module __main__")
