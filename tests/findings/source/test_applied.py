"""The edits that are offered for a real script are applied: the leaks are gone, and the script does as before."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from findings.source.applied import LONGEST_S, faults
from support.commands.preloaded import Copies

SCRIPT = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
rows, seen, unread, by_kind = [], [], (), {}
average = net.weight.detach().clone()

def mean(values):
    return torch.stack(values).mean().item()

for step in range(14):
    out = net(torch.randn(512, 64))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rows.append(out.detach())
    seen.append(torch.sigmoid(net(torch.randn(512, 64))).mean())
    unread = unread + (out.detach().clone(),)
    average.mul_(0.9).add_(net.weight, alpha=0.1)
    for kind in ("first", "second"):
        by_kind.setdefault(kind, []).append(torch.full((64, 64), loss.item()))
    print(f"{loss.item():.6f}")
print(f"{mean(seen):.6f}", rows[-1].shape)
"""


def test_the_edits_of_a_script_are_right(tmp_path: Path, copies: Copies) -> None:
    def run(program: str, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        return copies.run(words, folder, dict(os.environ), LONGEST_S, program)

    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert faults(script, at_once=True, run=run) == (6, [])
