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
        for _ in range(10):
            train(net, optimizer, torch.randn(1024, 1024))

    main()
"""
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_batch_is_found_and_never_a_leak(script: Callable[[str], Path], leakscope: Command) -> None:
    done = leakscope("run", "-q", "--json", "-o", "run", script(SCRIPT))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (finding,) = found["findings"]
    assert (found["verdict"], finding["rule"], finding["severity"]) == ("clean", "late-release", "avoidable")
    assert finding["freed_by"] == "program"
    (reference,), freed = finding["cut"]["references"], finding["cut"]["frees_bytes"]
    assert (reference["reference"], reference["where"], freed) == ("local batch", "train.py:13", 4 << 20)
    assert found["ranks"]["0"]["avoidable_peak_bytes"] == 4 << 20
    assert leakscope("report", "run", "--fail-on-avoidable", "4 MiB").returncode == 0
    assert leakscope("report", "run", "--leak-exit-code", "23", "--fail-on-avoidable", "3 MiB").returncode == 23
