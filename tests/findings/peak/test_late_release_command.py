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
ORDINARY = """
    import torch
    from torch import nn

    def main():
        net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for _ in range(10):
            out = net(torch.randn(4096, 64))
            loss = out.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    main()
"""
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_batch_is_found_and_named_and_never_a_leak(script: Callable[[str], Path], leakscope: Command) -> None:
    done = leakscope("run", "-q", "--json", "-o", "run", script(SCRIPT))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (finding,) = told["findings"]
    assert (told["verdict"], finding["rule"], finding["severity"]) == ("clean", "late-release", "avoidable")
    assert finding["freed_by"] == "program"
    (reference,), freed = finding["cut"]["references"], finding["cut"]["frees_bytes"]
    assert (reference["reference"], reference["where"], freed) == ("local batch", "train.py:13", 4 << 20)
    assert "argument of a running call" in finding["advice"]
    assert told["ranks"]["0"]["avoidable_peak_bytes"] == 4 << 20

    page = leakscope("report", "run", "--verbose").stdout
    (line,) = [paragraph for paragraph in page.split("\n- ") if paragraph.startswith("`batch")]
    line = " ".join(line.split("\n\n")[0].split())
    assert "Avoidable memory (1): not a leak\n" in page
    assert line == (
        "`batch in train()` at train.py:13: 4.00 MiB at the step's peak, last used at train.py:9; let go of it and the "
        "peak falls by 4.00 MiB. batch is an argument of a running call: hand it over in a list that the callee "
        "empties."
    )
    assert leakscope("report", "run", "--fail-on-avoidable", "4 MiB").returncode == 0
    failed = leakscope("report", "run", "--leak-exit-code", "23", "--fail-on-avoidable", "3 MiB")
    assert failed.returncode == 23
    assert "Verdict  CLEAN (exit status 23)" in failed.stdout
    assert "4.00 MiB avoidable, more than --fail-on-avoidable allows" in " ".join(failed.stdout.split())


def test_an_ordinary_loop_whose_output_lives_until_the_next_step_is_clean(
    script: Callable[[str], Path], leakscope: Command
) -> None:
    done = leakscope("run", "-o", "run", script(ORDINARY))
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    assert "Verdict  CLEAN (exit status 0)" in told
    assert "\nAvoidable  2.00 MiB: `out in main()` at train.py:9: 2.00 MiB at the step's peak" in told
