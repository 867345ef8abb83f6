"""`leakscope run` on a script whose caller holds the batch through the peak."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

SCRIPT = """
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def forward_loss(net, box):
        taken = box.pop()
        hidden = taken.to(torch.float16).float()[:, :64]
        del taken
        return net(hidden).pow(2).mean()

    def train(net, optimizer, batch):
        box = [batch]
        loss = forward_loss(net, box)
        optimizer.zero_grad()
        torch.zeros(1 << 21)
        loss.backward()
        optimizer.step()

    def main():
        net = nn.Linear(64, 64)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for _ in range(6):
            train(net, optimizer, torch.randn(1024, 1024))

    main()
"""
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_variable_that_is_a_small_part_of_the_peak_is_a_note(
    script: Callable[[str], Path], leakscope: Command
) -> None:
    larger = SCRIPT.replace("net = ", "others = torch.ones(8 << 20)\n        net = ", 1)
    done = leakscope("run", "-q", "--json", "-o", "run", script(larger))
    assert done.returncode == 0, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["rule"], finding["severity"]) == ("late-release", "note")


def test_the_batch_is_found_and_named(script: Callable[[str], Path], leakscope: Command) -> None:
    done = leakscope("run", "-q", "--json", "-o", "run", script(SCRIPT))
    assert done.returncode == 23, done.stderr
    told = json.loads(done.stdout)
    (finding,) = told["findings"]
    assert finding["rule"] == "late-release"
    assert finding["severity"] == "leak"
    assert finding["freed_by"] == "program"
    cut = finding["cut"]
    assert (cut["reference"], cut["where"], cut["frees_bytes"]) == ("local batch", "train.py:13", 4 << 20)
    assert "argument of a running call" in finding["advice"]
    assert told["ranks"]["0"]["avoidable_peak_bytes"] == 4 << 20
