"""The allocation site of garbage is reported even if gc freed what the instrumented step made."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

SCRIPT = """
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
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_steps_watched_for_lifetimes_tell_it(script: Callable[[str], Path], leakscope: Command) -> None:
    done = leakscope("run", "-q", "--json", "-o", "run", script(SCRIPT))
    assert done.returncode == 23, done.stderr
    leak = next(f for f in json.loads(done.stdout)["findings"] if f["severity"] == "leak")
    assert leak["rule"] == "tensor-cycle"
    assert leak["allocated_at"] == ["train.py:17 <module> (aten::tanh)"]
