"""`--steps` does not stop the workers of a process pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.launch import launch
from leakscope.options import Options
from leakscope.run.reader import read_run

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("launches_copies")]

POOLED = """
import multiprocessing, signal, torch
def train(number):
    torch.set_num_threads(1)
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(6):
        net(torch.ones(8, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return number
if __name__ == "__main__":
    signal.alarm(100)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(train, range(2)) == [0, 1]
        pool.close()
        pool.join()
"""


def test_a_worker_of_a_pool_takes_all_its_steps(script: Callable[[str], Path], tmp_path: Path) -> None:
    outcome = launch(Options(folder=tmp_path / "run", script=str(script(POOLED)), steps=4, lifetimes=False))
    (rank,) = read_run(tmp_path / "run").ranks
    assert (outcome.status, len(rank.steps)) == (0, 12)
    assert any("Pool is not stopped" in note for note in rank.notes)
