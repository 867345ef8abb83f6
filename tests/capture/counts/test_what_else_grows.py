"""Growing descriptors, shared memory and recompilations are reported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
    import socket
    import torch

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scale = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    kept = []
    for step in range(16):
        optimizer.zero_grad()
        scale(model(torch.randn(4 + step, 64))).square().mean().backward()
        optimizer.step()
        kept += [open(f"part_{step}_{number}.log", "w") for number in range(2)]
        kept.append(socket.create_connection(listening.getsockname()))
        kept.append(torch.randn(256, 256).share_memory_())
"""


@pytest.mark.process
def test_counters_that_keep_growing_are_reported(
    script: Callable[[str], Path], leakscope: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    leakscope("run", "-q", "--steps", 14, "-o", "run", script(SCRIPT))
    report = json.loads((tmp_path / "run" / "findings.json").read_text())
    grows = {row["kind"]: row for row in report["other_growth"]}
    assert set(grows) == {"descriptors", "shared-memory", "compiled"}
    files, shared, compiled = (grows[kind] for kind in ("descriptors", "shared-memory", "compiled"))
    steps = files["to_step"] - files["from_step"]
    assert steps >= 9 and files["to_value"] - files["from_value"] == 4 * steps
    assert f"{tmp_path}/*.log" in files["text"] and "socket to 127.0.0.1:" in files["text"]
    assert shared["to_value"] - shared["from_value"] == (shared["to_step"] - shared["from_step"]) * 256 * 256 * 4
    assert "train.py:7" in compiled["text"] and "size mismatch at index 0" in compiled["text"]
