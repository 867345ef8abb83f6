"""Losses that are kept after their backward hold no tensor's memory but their own four bytes, and their grad nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
    import collections
    import ctypes
    import sys
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
    losses, files = collections.deque(maxlen=30) if sys.argv[1] == "bounded" else [], []
    for step in range(12):
        loss = model(torch.randn(8, 32)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach() if sys.argv[1] == "other" else loss)
        if sys.argv[1] == "other":
            files.append(memoryview(bytearray(1 << 18)).cast("B")[:].tobytes().hex())
    before = mallinfo2().uordblks
    while len(losses) > 1:
        del losses[0]  # the last graph keeps the nodes that all share, those of the parameters
    print("FREED A STEP", (before - mallinfo2().uordblks) // 11)
"""


@pytest.mark.parametrize("how", ["graphs", "bounded", "other"])
def test_the_graphs_are_told_with_what_keeps_them(
    script: Callable[[str], Path], leakscope: Callable[..., object], tmp_path: Path, how: str
) -> None:
    options = ["--prove", "--steps", 40] * (how == "other")
    done = leakscope("run", "-q", *options, "-o", tmp_path / "run", script(SCRIPT), how)
    assert done.returncode == 23, done.stdout + done.stderr  # type: ignore[attr-defined]
    told = json.loads((tmp_path / "run" / "findings.json").read_text())["findings"]
    (finding,) = [f for f in told if f["severity"] == "leak"]
    if how != "other":
        assert finding["title"].startswith("losses gains tensors and their autograd graphs every step")
        assert finding["title"].endswith("so far" if how == "bounded" else "and is never emptied")
        assert ("each item keeps an autograd graph" in finding["advice"]) == (how == "bounded")
        assert (
            finding["cut"]["references"][0]["reference"] == ".losses"
            and "losses.item()" not in finding["advice"]
            and "x.item()" in finding["advice"]
        )
        freed = int(done.stdout.rpartition("FREED A STEP")[2].split()[0])  # type: ignore[attr-defined]
        assert finding["bytes_per_step"] == pytest.approx(freed, rel=0.25) and freed > 100_000
        assert finding["cut"]["frees_bytes"] == finding["retained_bytes"]
    else:  # memory that no node accounts for is not said to be of graphs
        assert finding["rule"] == "object-growth" and not finding["advice"].startswith("Keep numbers")
        assert "no cut was verified: the script ended after 12 of 40 steps" in done.stdout  # type: ignore[attr-defined]
