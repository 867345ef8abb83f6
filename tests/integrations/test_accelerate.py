"""The accelerate tracker finds what a training loop retains, on every process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT

pytest.importorskip("accelerate")
from accelerate import Accelerator
from accelerate.state import AcceleratorState

import leakscope
from leakscope.integrations.accelerate import LeakTracker

pytestmark = pytest.mark.integrations


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """All Accelerators of a process share one."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def run_a_loop(kept: list[Any], by_hand: bool = False, **given: Any) -> LeakTracker:
    accelerator = Accelerator(cpu=True, **given)
    leaks = LeakTracker(accelerator, budget=1.0)
    model = torch.nn.Linear(64, 64)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for _ in range(2)]
    model, optimizer, critic = accelerator.prepare(model, *optimizers)
    for _ in range(20):
        with accelerator.accumulate(model):
            loss = model(torch.randn(512, 64)).mean()
            accelerator.backward(loss)
            optimizer.step()
            critic.step()
            optimizer.zero_grad()
        kept.append(model(torch.randn(512, 64)).mean())
        if by_hand:
            leaks.step()
    accelerator.end_training()
    return leaks


def test_what_a_loop_keeps_is_named_as_its_user_would() -> None:
    kept: list[torch.Tensor] = []
    leaks = run_a_loop(kept, gradient_accumulation_steps=2)
    assert leaks.findings is not None
    [finding] = leaks.findings.findings
    # the caller has it by a name as well as the loop
    assert finding.cut is not None and finding.cut.written.startswith("kept in "), str(leaks.findings)
    assert finding.rule == "retained-graph"
    # accumulated batches are one step, and so are the steps of two optimizers
    assert len(leaks.findings.run.ranks[0].steps) == 10


def test_steps_can_be_marked_and_nothing_stays_installed_or_alive() -> None:
    from torch.optim import optimizer as of_torch

    hooks = dict(of_torch._global_optimizer_post_hooks)
    leaks = run_a_loop([], by_hand=True)
    assert leaks.findings is not None
    assert len(leaks.findings.run.ranks[0].steps) == 21  # the first optimizer's, before anybody marked one
    assert dict(of_torch._global_optimizer_post_hooks) == hooks
    accelerator = Accelerator(cpu=True)
    watched = LeakTracker(accelerator)
    gone = weakref.ref(accelerator)
    del accelerator
    gc.collect()
    assert gone() is None
    watched.finish()


TWO = """
    import sys, torch
    from accelerate import Accelerator
    from leakscope.integrations.accelerate import LeakTracker

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    leaks = LeakTracker(accelerator, sys.argv[1], budget=1.0)
    model = torch.nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    losses = []
    for _ in range(10):
        loss = model(torch.randn(512, 64)).mean()
        accelerator.backward(loss)
        optimizer.step()
        if rank == 1:
            losses.append(accelerator.unwrap_model(model)(torch.randn(512, 64)).mean())
    accelerator.end_training()
    found = leaks.findings
    print("FOUND", rank, found.verdict.value, len(found.run.ranks), found.run.ranks[0].number, flush=True)
"""


def test_each_of_two_processes_judges_itself_and_one_report_tells_of_both(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(textwrap.dedent(TWO))
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    ran = subprocess.run(
        [*launch, str(script), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = {line.split("FOUND ")[1] for line in ran.stdout.splitlines() if "FOUND " in line}
    assert found == {"0 clean 1 0", "1 leaks 1 1"}, ran.stderr
    assert "rank 1: " in ran.stderr and "Cut `losses` at two.py:17" in ran.stderr
    both = leakscope.judge(leakscope.read_run(tmp_path / "run"))
    assert [finding.ranks for finding in both.findings if finding.severity == "leak"] == [(1,)]
