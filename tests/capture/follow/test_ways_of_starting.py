"""The findings do not depend on what starts the training processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.findings import judge
from leakscope.findings.model import Findings
from leakscope.launch import Outcome, launch
from leakscope.options import Options
from leakscope.run.model import Run
from leakscope.run.reader import read_run

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("launches_copies")]

Write = Callable[..., Path]

TRAIN = """
import os, sys
import torch, torch.distributed as dist
torch.set_num_threads(1)
def train(rank=None, meet="", world=2):
    if rank is None:
        dist.init_process_group("gloo")
    elif meet:
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    net = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    kept = []
    for step in range(12):
        out = net(torch.ones(512, 256)).relu()
        kept.append(out)
        out.sum().backward()
        if dist.is_initialized():
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    return rank
"""
BY_SCRIPT = {
    "torch.multiprocessing.spawn": """
import torch.multiprocessing as mp
if __name__ == "__main__":
    mp.spawn(train, args=(os.path.abspath("meet"),), nprocs=2)
""",
    "ProcessPoolExecutor, forked": """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
if __name__ == "__main__":
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        print(list(pool.map(train, range(2), [os.path.abspath("meet")] * 2)))
""",
    "ProcessPoolExecutor, from a server": """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
if __name__ == "__main__":
    with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as pool:
        print(list(pool.map(train, range(2), [os.path.abspath("meet")] * 2)))
""",
}


def judged(folder: Path, **plan: object) -> tuple[Outcome, Run, Findings]:
    folder.mkdir(exist_ok=True)
    outcome = launch(Options(folder=folder, gc_diff="never", lifetimes=False, **plan))  # type: ignore[arg-type]
    run = read_run(folder)
    return outcome, run, judge(run)


def told(findings: Findings) -> list[tuple[object, ...]]:
    """Rule, holder, bytes and ranks of each leak."""
    return [
        (f.rule, f.fingerprint, f.retained_bytes, f.ranks, f.first_step)
        for f in findings.findings
        if f.severity == "leak"
    ]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Findings]:
    folder = tmp_path_factory.mktemp("expected")
    (folder / "train.py").write_text(TRAIN + "train()\n")
    _, run, findings = judged(folder / "run", script=str(folder / "train.py"), ranks=2)
    assert len(told(findings)) == 1
    return run, findings


def same(outcome: Outcome, run: Run, findings: Findings, expected: tuple[Run, Findings]) -> None:
    assert (outcome.status, outcome.failed) == (0, None)
    assert [(r.number, r.ended.how, len(r.steps)) for r in run.ranks] == [(0, "finished", 12), (1, "finished", 12)]
    assert run.expected_ranks == 2 and not any(rank.processes for rank in run.ranks)
    assert told(findings) == told(expected[1])
    assert findings.verdict == "leaks"
    assert {line.strip() for lines in run.sources.values() for line in lines} >= {"kept.append(out)"}


@pytest.mark.parametrize("way", [way for way in BY_SCRIPT if way.startswith("ProcessPool")])
def test_of_the_script_itself(
    way: str,
    expected: tuple[Run, Findings],
    script: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    same(*judged(tmp_path / "run", script=str(script(TRAIN + BY_SCRIPT[way]))), expected)


def test_of_children_that_are_left_alone(script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = script(TRAIN + BY_SCRIPT["torch.multiprocessing.spawn"])
    outcome, run, findings = judged(tmp_path / "run", script=str(path), follow=False)
    assert outcome.status == 0 and [len(rank.steps) for rank in run.ranks] == [0]
    assert [started.through for started in run.ranks[0].processes] == ["torch.multiprocessing.spawn"] * 2
    assert findings.verdict == "inconclusive"


def test_children_are_stopped_without_an_error(
    script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    way = "torch.multiprocessing.spawn"
    monkeypatch.chdir(tmp_path)
    outcome, run, findings = judged(tmp_path / "run", script=str(script(TRAIN + BY_SCRIPT[way])), steps=6)
    assert outcome.status == 0
    assert [(r.ended.how, len(r.steps)) for r in run.ranks] == [("stopped", 6)] * 2
    assert "Traceback" not in capfd.readouterr().err and len(told(findings)) == 1
