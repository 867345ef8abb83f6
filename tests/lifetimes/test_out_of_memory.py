"""An allocation that fails on the CPU ends the script as it would without leakscope, and its holders are told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.capture.out_of_memory import HostLimit, failure, host_limit
from leakscope.findings import judge
from leakscope.record import read_run
from leakscope.report import FORMATS

SCRIPT = """
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def forward(net, batch, step):
        hidden = torch.ones(1 << 20)
        if step == 2:
            torch.empty(1 << 50)
        return net(batch).sum() + hidden[0]

    def main():
        net = nn.Linear(64, 64)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            forward(net, torch.ones(8, 64), step).backward()
            optimizer.step()

    main()
"""


def test_an_uncaught_failure_is_told_with_its_holders(
    script: Callable[[str], Path], leakscope: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    path = script(SCRIPT)
    recorded = leakscope("run", "-q", "-o", "run", "--no-lifetimes", path)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert recorded.returncode == plain.returncode == 1
    assert plain.stderr.splitlines()[-1] in recorded.stderr
    run = read_run(tmp_path / "run")
    assert "lifetimes" not in run.ranks[0].extras, "--no-lifetimes"
    told = judge(run).out_of_memory
    assert "out of memory in step 3 at train.py:10 forward: 4096.00 TiB were wanted" in told[0]
    assert "4.00 MiB in 1 storage: hidden in forward(), train.py:8" in told[2]
    text = FORMATS["text"](run, judge(run))
    assert text.index("out of memory in step 3") < text.index("Ranks")


def test_other_errors_are_no_failed_allocation() -> None:
    assert failure(None) is None
    assert failure(RuntimeError("shape mismatch")) is None
    assert failure(ValueError("DefaultCPUAllocator: can't allocate memory")) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12", 4096),
        ("DefaultCPUAllocator: not enough memory: you tried to allocate 10 bytes.", None),
    ],
)
def test_the_wanted_bytes_are_read(text: str, wanted: int | None) -> None:
    found = failure(RuntimeError(text))
    assert (found and found["wanted_bytes"]) == wanted


def test_an_accelerators_failure_is_one_too() -> None:
    import torch

    found = failure(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"))
    assert found is not None
    assert found["wanted_bytes"] == 2 << 30


def test_the_hosts_limit_is_said_once() -> None:
    assert host_limit() > 0
    near = HostLimit(limit=1)
    assert (near.reached(), near.reached()) == (True, False)
    assert not HostLimit(limit=1 << 60).reached()
