"""Training processes are recorded as ranks whatever starts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.findings import judge
from leakscope.findings.model import Finding
from leakscope.launch import Outcome, launch
from leakscope.options import Options
from leakscope.run.model import Run
from leakscope.run.reader import read_run

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("launches_copies")]

Write = Callable[..., Path]

TRAIN = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import torch, torch.distributed as dist, torch.multiprocessing as mp
torch.set_num_threads(1)
kept = []
def train(rank, meet="", steps=12):
    if meet:
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    net = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(steps):
        out = net(torch.ones(512, 256)).relu()
        kept.append(out)
        out.sum().backward()
        if meet:
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    return rank
if __name__ == "__main__":
    meet = os.path.abspath("meet")
    """
SPAWN = "mp.spawn(train, args=(meet,), nprocs=2)"
FORK_SERVER = """with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as pool:
        print(list(pool.map(train, range(2), [meet] * 2)))"""
FORKED_POOL = """with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.starmap(train, [(0, "", 6), (1, "", 6)]) == [0, 1]
        pool.close()
        pool.join()"""


@pytest.fixture
def start(script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Outcome, Run]]:
    def launched(main: str, **options: object) -> tuple[Outcome, Run]:
        monkeypatch.chdir(tmp_path)
        options = {"folder": tmp_path / "run", "script": str(script(TRAIN + main)), **options}
        outcome = launch(Options(gc_diff="never", lifetimes=False, **options))  # type: ignore[arg-type]
        return outcome, read_run(tmp_path / "run")

    return launched


Start = Callable[..., tuple[Outcome, Run]]


def leak_of(run: Run) -> Finding:
    (leak,) = (finding for finding in judge(run).findings if finding.severity == "leak")
    return leak


def test_spawned_ranks_stop_after_their_steps(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    outcome, run = start(SPAWN, steps=6)
    assert (outcome.status, outcome.failed) == (0, None)
    assert [(rank.ended.how, len(rank.steps)) for rank in run.ranks] == [("stopped", 6)] * 2
    assert "Traceback" not in capfd.readouterr().err
    leak = leak_of(run)
    assert leak.ranks == (0, 1) and leak.cut is not None
    assert [reference.written for reference in leak.cut.references] == ["kept"]
    assert leak.trace[0].object.startswith("module __main__"), "the spawned script is the user's main module"


def test_ranks_from_a_fork_server_are_recorded(start: Start) -> None:
    outcome, run = start(FORK_SERVER)
    assert (outcome.status, outcome.failed, run.expected_ranks) == (0, None, 2)
    assert [(r.number, r.ended.how, len(r.steps)) for r in run.ranks] == [(0, "finished", 12), (1, "finished", 12)]
    assert not any(rank.processes for rank in run.ranks)
    assert leak_of(run).ranks == (0, 1)
    assert {line.strip() for lines in run.sources.values() for line in lines} >= {"kept.append(out)"}


def test_a_worker_of_a_pool_is_not_stopped(start: Start) -> None:
    outcome, run = start(FORKED_POOL, steps=4)
    (rank,) = run.ranks
    assert (outcome.status, len(rank.steps)) == (0, 12)
    assert any("Pool" in note and "--steps" in note for note in rank.notes)


def test_children_that_are_not_followed_are_counted(start: Start) -> None:
    outcome, run = start(SPAWN, follow=False)
    assert outcome.status == 0 and [len(rank.steps) for rank in run.ranks] == [0]
    assert [started.through for started in run.ranks[0].processes] == ["torch.multiprocessing.spawn"] * 2
    assert judge(run).verdict == "inconclusive"
