"""An allocation that fails on the CPU ends the script as it would without leakscope, and its holders are told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands.recorded_runs import RecordedRun, Runs

from leakscope.findings import judge
from leakscope.recorder.memory_limits import failure
from leakscope.report.run_text import run_text
from leakscope.run.reader import read_run

SCRIPT = """
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def forward(net, batch, step):
        hidden = torch.ones(1 << 20)
        if step == 2:
            torch.empty(1 << 50)
        return net(batch).sum() + hidden[0]

    def main():
        net = nn.Linear(64, 64)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            forward(net, torch.ones(8, 64), step).backward()
            optimizer.step()

    main()
"""


@pytest.fixture(scope="session")
def failed(runs: Runs) -> RecordedRun:
    return runs.recorded(SCRIPT, "-q", "--no-lifetimes")


def test_an_uncaught_failure_is_told_with_its_holders(failed: RecordedRun, runs: Runs) -> None:
    plain = runs.plain(SCRIPT)
    assert failed.done.returncode == plain.returncode == 1
    assert plain.stderr.splitlines()[-1] in failed.done.stderr
    run = read_run(failed.folder)
    assert run.ranks[0].lifetimes == (), "--no-lifetimes"
    told = run_text(judge(run).out_of_memory)
    assert "step 3 at train.py:10 forward" in told[0] and "hidden in forward()" in told[2]


def test_what_an_error_keeps_is_not_held_by_leakscope(failed: RecordedRun) -> None:
    (look,) = [look for look in read_run(failed.folder).ranks[0].looks if look.occasion == "memory"]
    frames = {look.heap.object(k).label: look.heap.object(k).where for k in look.heap.of_kind("frame").tolist()}
    assert set(frames) == {"frame of main", "frame of forward"} and all(
        w.startswith("train.py:") for w in frames.values()
    )
    assert "RuntimeError exception" in {look.heap.object(k).label for k in look.heap.roots.tolist()}
    assert not {kind for k in range(len(look.heap)) if (kind := look.heap.object(k).type).startswith("leakscope")}


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error 12"), 4096),
        (RuntimeError("shape mismatch"), None),
        (ValueError("DefaultCPUAllocator: can't allocate memory"), None),
    ],
)
def test_the_wanted_bytes_are_read(error: Exception, wanted: int | None) -> None:
    found = failure(error)
    assert (found and found["wanted_bytes"]) == wanted


CAUGHT = """
    import sys, traceback
    import torch

    torch.set_num_threads(1)
    failing = int(sys.argv[1])

    def forward(net, step):
        if step == failing:
            torch.empty(1 << 50)
        return net(torch.ones(8, 64)).sum()

    def main():
        net = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            try:
                forward(net, step).backward()
            except RuntimeError as error:
                print(type(error), error, traceback.format_exc())
                raise
            optimizer.step()

    main()
"""


def test_the_error_reaches_the_script_as_it_is(
    script: Callable[[str], Path], leakscope: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    path = script(CAUGHT)
    plain = subprocess.run([sys.executable, path, "3"], capture_output=True, text=True, check=False)
    recorded = leakscope("run", "-q", "-o", "run", path, 3)
    assert recorded.returncode == plain.returncode == 1
    assert plain.stdout.count("File ") == 2, plain.stdout
    assert recorded.stdout.startswith(plain.stdout), "type, message and traceback as the script sees them"
    assert plain.stderr in recorded.stderr, "and as python prints them"


TWO = """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def train(net, optimizer):
        for step in range(4):
            loss = net(torch.ones(8, 64)).sum()
            loss.backward()
            mine = torch.ones(1 << (18 + 2 * dist.get_rank()))
            if step == 2 and dist.get_rank() == 1:
                torch.empty(1 << 50)
            dist.all_reduce(net.weight.grad)
            optimizer.step()
            optimizer.zero_grad()

    net = torch.nn.Linear(64, 64)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))
"""


def test_the_peers_of_a_failing_rank_are_looked_at_too(
    script: Callable[[str], Path], leakscope: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    recorded = leakscope("run", "-q", "-o", "run", "--ranks", "2", "--no-lifetimes", script(TWO))
    assert recorded.returncode == 1
    run = read_run(tmp_path / "run")
    assert run.ranks[0].ended.how in ("killed", "raised"), "by the launcher, or of the peer that is gone"
    told = run_text(judge(run).out_of_memory)
    assert "Rank 1" in told[0] and "4.00 MiB in 1 storage: mine in train()" in told[2]
    place = next(k for k, text in enumerate(told) if text.startswith("Rank 0: "))
    assert "1.00 MiB in 1 storage: mine in train()" in told[place + 1]
    assert not any(text.startswith("Rank 1: ") for text in told[place:]), "the failing rank first"
