"""Compiled regions stay compiled, and garbage of a recorded step has its allocation site."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

Command = Callable[..., "subprocess.CompletedProcess[str]"]
GARBAGE = """
    import gc
    import torch
    from torch import nn

    class Kept:
        pass

    gc.disable()
    layer = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    for step in range(1, 11):
        kept = Kept()
        if step == 3:  # takes what step 2 made, whose makers were watched
            gc.collect()
        kept.itself = kept
        kept.seen = torch.randn(1024, 64).tanh()
        layer(kept.seen).sum().backward()
        optimizer.step()
"""


def test_the_allocation_site_of_garbage_survives_its_collection(
    script: Callable[[str], Path], leakscope: Command, tmp_path: Path
) -> None:
    assert leakscope("run", "-q", "-o", "run", script(GARBAGE)).returncode == 23
    findings = json.loads((tmp_path / "run" / "findings.json").read_text())["findings"]
    (leak,) = [finding for finding in findings if finding["severity"] == "leak"]
    assert leak["rule"] == "tensor-cycle"
    assert leak["allocated_at"] == ["train.py:17 <module> (aten::tanh)"]


COMPILING = """
    import torch

    torch.set_num_threads(1)
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    region = lambda x: x
    for step in range(8):
        if step == 3:
            region = torch.compile(lambda x: x * 2 + 1, backend="eager")
        net(region(torch.ones(8, 64))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch._dynamo.utils.counters["frames"]["ok"])
"""


def test_compiled_regions_stay_compiled_and_are_reported_as_unseen(
    script: Callable[[str], Path], leakscope: Command, tmp_path: Path
) -> None:
    done = leakscope("run", "-q", "-o", "run", script(COMPILING))
    assert done.stdout.splitlines()[0] == "1", "what was compiled without leakscope is compiled with it"
    (unjudged,) = json.loads((tmp_path / "run" / "findings.json").read_text())["unjudged"]
    assert unjudged["rule"] == "late-release" and "1 compiled region" in unjudged["why"]
