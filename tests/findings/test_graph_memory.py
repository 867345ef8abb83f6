"""Losses that are kept after their backward hold no tensor's memory but their own four bytes, and their grad nodes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
    import ctypes
    import torch
    from torch import nn

    FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    fields = [(name, ctypes.c_size_t) for name in FIELDS.split()]
    Mallinfo2 = type("Mallinfo2", (ctypes.Structure,), {"_fields_": fields})
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2

    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.LayerNorm(32)) for _ in range(100)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(12):
        loss = model(torch.randn(8, 32)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    before = mallinfo2().uordblks
    while len(losses) > 1:
        del losses[0]  # the last graph keeps the nodes that all share, those of the parameters
    print("FREED A STEP", (before - mallinfo2().uordblks) // 11)
"""


def test_graphs_of_losses_are_found_with_the_memory_of_their_nodes(
    script: Callable[[str], Path], leakscope: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = leakscope("run", "-q", "-o", tmp_path / "run", script(SCRIPT))
    assert done.returncode == 23, done.stdout + done.stderr
    found = json.loads((tmp_path / "run" / "findings.json").read_text())["findings"]
    (finding,) = [f for f in found if f["severity"] == "leak"]
    assert finding["cut"]["references"][0]["reference"] == ".losses"
    freed = int(done.stdout.rpartition("FREED A STEP")[2].split()[0])
    assert finding["bytes_per_step"] == pytest.approx(freed, rel=0.25) and freed > 100_000
    assert finding["cut"]["frees_bytes"] == finding["retained_bytes"]
