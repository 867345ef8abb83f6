"""Growing descriptors, shared memory and recompilations are reported; a clean training reports none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

Command = Callable[..., "subprocess.CompletedProcess[str]"]
SCRIPT = """
    import socket
    import sys
    import torch

    leaks = sys.argv[1] == "leaks"
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scale = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    kept = []
    for step in range(16):
        optimizer.zero_grad()
        scale(model(torch.randn(4 + step if leaks else 4, 64))).square().mean().backward()
        optimizer.step()
        opened = [open(f"part_{step}_{number}.log", "w") for number in range(2)]
        opened.append(socket.create_connection(listening.getsockname()))
        shared = torch.randn(256, 256).share_memory_()
        if leaks:
            kept += [*opened, shared]
        else:
            for one in opened:
                one.close()
"""


@pytest.mark.parametrize("way", ["leaks", "cleans up"])
def test_what_goes_on_growing_is_told_and_what_is_let_go_of_is_not(
    script: Callable[[str], Path], leakscope: Command, tmp_path: Path, way: str
) -> None:
    done = leakscope("run", "--steps", 14, "-o", "run", script(SCRIPT), way)
    told = json.loads((tmp_path / "run" / "findings.json").read_text())
    grows = {one["kind"]: one for one in told["other_growth"]}
    page = (tmp_path / "run" / "report.html").read_text()
    if way == "cleans up":
        assert done.returncode == 0 and not grows and "Also grows" not in done.stdout, done.stdout
        assert "Non-tensor growth" not in page
        return
    assert set(grows) == {"descriptors", "shared-memory", "compiled"}
    files, shared, compiled = (grows[what] for what in ("descriptors", "shared-memory", "compiled"))
    steps = files["to_step"] - files["from_step"]
    assert steps >= 9 and files["to_value"] - files["from_value"] == 4 * steps
    assert f"{2 * steps} `{tmp_path}/*.log`" in files["text"] and "`socket to 127.0.0.1:" in files["text"]
    assert shared["to_value"] - shared["from_value"] == (shared["to_step"] - shared["from_step"]) * 256 * 256 * 4
    assert (
        "`<lambda>` (train.py:9) recompiled 8 times" in compiled["text"]
        and "size mismatch at index 0" in compiled["text"]
    )
    assert "dynamo's limit, and now runs uncompiled" in compiled["text"]
    assert "Also grows" in done.stdout and "more file descriptors" in done.stdout
    assert "more file descriptors" in page
