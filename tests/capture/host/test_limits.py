"""Approaching memory limits are reported for real processes and control groups."""

from __future__ import annotations

import re
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.findings import judge
from leakscope.recorder.memory_limits import ControlGroup, HostLimits, control_groups
from leakscope.report.run_text import run_text
from leakscope.run.reader import read_run

MIB = 1 << 20
Command = Callable[..., "subprocess.CompletedProcess[str]"]

GROWING = """
    import resource
    import torch

    torch.set_num_threads(1)
    kept = []

    def limit():
        now = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (now + (600 << 20), resource.RLIM_INFINITY))

    def main():
        net = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(100):
            net(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                limit()
            kept.append(torch.ones(8 << 20))

    main()
"""


def test_a_near_limit_is_reported_before_an_allocation_fails(
    script: Callable[[str], Path], leakscope: Command, tmp_path: Path
) -> None:
    recorded = leakscope("run", "-q", "-o", "run", "--no-lifetimes", script(GROWING))
    assert recorded.returncode == 1
    assert "you tried to allocate 33554432 bytes" in recorded.stderr
    (rank,) = read_run(tmp_path / "run").ranks
    (near,) = rank.memory_shortages
    (failed,) = rank.allocation_failures
    assert "RLIMIT_DATA" in near.limit
    assert 0.75 * near.limit_bytes <= near.used_bytes <= near.limit_bytes
    assert 5 < near.step < failed.step
    assert [snapshot.step for snapshot in rank.heap_snapshots if snapshot.occasion == "memory"] == [
        near.step,
        failed.step,
    ]
    held = [text for text in run_text(judge(read_run(tmp_path / "run")).out_of_memory) if ": kept" in text]
    sizes = [int(re.findall(r"in (\d+) storages", text)[0]) for text in held]
    assert sizes[0] == failed.step - 1, "as many storages as the list held, the failure first"
    assert sizes[1] in ((near.step - 1, near.step) if near.inside else (near.step - 1,))


def kernel(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_container_sees_its_own_group_at_the_mount(tmp_path: Path) -> None:
    top = kernel(
        tmp_path,
        {
            "self/cgroup": "4:memory:/docker/abc\n1:cpu:/docker/abc\n",
            "self/mountinfo": f"41 32 0:29 /docker/abc {tmp_path}/fs ro - cgroup cgroup rw,memory\n"
            "42 32 0:30 / /other rw - cgroup cgroup rw,cpu\n",
            "fs/memory.limit_in_bytes": "1000\n",
            "fs/memory.usage_in_bytes": "990\n",
            "fs/memory.stat": "cache 900\ntotal_inactive_file 800\n",
        },
    )
    assert list(control_groups(top / "self")) == [
        ControlGroup(1000, tmp_path / "fs/memory.usage_in_bytes", tmp_path / "fs/memory.stat", "total_inactive_file")
    ]
    assert next(iter(control_groups(top / "self"))).used() == 190, (
        "page cache that the kernel drops first is not in the way"
    )


@pytest.mark.parametrize(("available", "resident", "counts"), [(90, 91, True), (90, 89, False), (101, 400, False)])
def test_the_memory_of_the_machine_counts_if_this_process_uses_it(
    available: int, resident: int, counts: bool, tmp_path: Path
) -> None:
    gib = 1024 * MIB
    pages = gib // resource.getpagesize()
    files = {
        "self/statm": f"{resident * pages} {resident * pages} 0 0 0 0 0\n",
        "meminfo": f"MemTotal: {1000 * gib // 1024} kB\nMemFree: 1 kB\nMemAvailable: {available * gib // 1024} kB\n",
    }
    limits = HostLimits(kernel(tmp_path, files))
    near = limits.near()
    assert (near is not None) == counts
    if near is not None:
        assert (near.limit_bytes, near.used_bytes) == (1000 * gib, (1000 - available) * gib)
        assert limits.near() is None, "once"
