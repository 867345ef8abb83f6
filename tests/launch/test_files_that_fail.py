"""A run that can no longer be written leaves the script alone, and what was recorded is judged."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

Write = Callable[..., Path]
Command = Callable[..., "subprocess.CompletedProcess[str]"]

STEPS, FAULT = 12, 9
TRAIN = f"""
import errno, os, resource, shutil, sys
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
rank, losses, mine = int(os.environ.get("RANK", "0")), [], []
for number in range({STEPS}):
    if number == {FAULT} and rank == 0:
        fault()
    losses.append(net(torch.ones(4, 8)).sum() * torch.ones(1 << 18, requires_grad=True))
    losses[-1].sum().backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
print("script finished", len(losses))
"""


def with_fault(text: str, at: int = FAULT) -> str:
    return f"def fault():\n    {text}\n{TRAIN.replace(f'== {FAULT} and', f'== {at} and')}"


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.startswith(".") or path.suffix == ".tmp"]


@pytest.fixture
def small_disk(tmp_path: Path, starts_processes: None) -> Iterator[Path]:
    """A file system of a few hundred KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


FILL = """
    filler = open("disk/filler", "wb", buffering=0)
    try:
        while True: filler.write(b"x" * 512)
    except OSError as error: assert error.errno == errno.ENOSPC
"""


def test_a_full_disk(leakscope: Command, script: Write, small_disk: Path) -> None:
    path = script(with_fault(FILL.strip()))
    done = leakscope("run", "--ranks", 2, "-o", "disk/run", path)
    assert done.returncode == 23 and "LEAKS" in done.stdout and "losses" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count(f"script finished {STEPS}") == 2
    assert done.stderr.count("leakscope: recording ended at step") == done.stderr.count("leakscope:") == 2
    assert done.stderr.count("No space left on device") == 2 and "Traceback" not in done.stderr
    assert not leftovers(small_disk)


def test_closed_descriptors(leakscope: Command, script: Write, tmp_path: Path) -> None:
    path = script(with_fault("os.closerange(3, 300)\n    mine.extend(open('mine', 'ab') for _ in range(40))"))
    done = leakscope("run", "-o", "run", path)
    assert done.returncode == 23 and "LEAKS" in done.stdout and "losses" in done.stdout, done.stdout + done.stderr
    assert f"script finished {STEPS}" in done.stdout and "Traceback" not in done.stderr
    assert done.stderr.count("recording ended at step") == done.stderr.count("leakscope:") == 1
    assert (tmp_path / "run" / "report.html").exists() and not leftovers(tmp_path / "run")
    assert (tmp_path / "mine").read_bytes() == b"", "nothing of ours is written into the script's files"
