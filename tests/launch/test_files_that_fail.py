"""The disk is full, descriptors are closed or used up, the folder is gone: the script's end and the verdict stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leakscope.launch.outcome import gather

pytestmark = pytest.mark.process

Write = Callable[..., Path]
Command = Callable[..., "subprocess.CompletedProcess[str]"]

STEPS = 12
TRAIN = f"""
import errno, os, resource, shutil, sys
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
rank, losses, mine = int(os.environ.get("RANK", "0")), [], []
for number in range({STEPS}):
    if number == 2 and rank == 0:
        fault()
    losses.append(net(torch.ones(4, 8)).sum() * torch.ones(1 << 18, requires_grad=True))
    losses[-1].sum().backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
print("script finished", len(losses))
"""


def with_fault(text: str) -> str:
    return f"def fault():\n    {text}\n{TRAIN}"


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """What was written elsewhere is removed in the end."""

    def there() -> set[Path]:
        name = f"leakscope_{'[0-9a-f]' * 32}"
        return {path for place in (tempfile.gettempdir(), "/dev/shm") for path in Path(place).glob(name)}

    before = there()
    yield
    deadline = time.monotonic() + 30
    while there() - before and time.monotonic() < deadline:  # of other tests beside this one
        time.sleep(0.1)
    assert there() <= before


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


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.usefixtures("nothing_left")
def test_a_full_disk(leakscope: Command, script: Write, small_disk: Path, ranks: int) -> None:
    path = script(with_fault(FILL.strip()))
    done = leakscope("run", "--ranks", ranks, "-o", "disk/run", path)
    assert done.returncode == 23, done.stderr
    assert done.stdout.count(f"script finished {STEPS}") == ranks
    assert "LEAKS" in done.stdout and "losses" in done.stdout and f"{STEPS} steps" in done.stdout
    assert "the run's folder could not be written any more: No space left on device" in done.stdout
    assert done.stderr.count("leakscope:") == 1 and "could not be written (No space left on device)" in done.stderr
    assert "Traceback" not in done.stderr
    assert not leftovers(small_disk)


FAULTS = {
    "files may not grow": "resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))",
    "descriptors closed": "os.closerange(3, 300)\n    mine.extend(open('mine', 'ab') for _ in range(40))",
    "descriptors used up": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (80, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "    try:\n        while True: mine.append(open(os.devnull))\n    except OSError: pass"
    ),
    "no memory": (
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), resource.RLIM_INFINITY))"
    ),
    "folder removed": "shutil.rmtree('run')",
    "folder in another place": "os.rename('run', 'moved'); open('run', 'w')",
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.usefixtures("nothing_left")
def test_the_scripts_end_and_the_verdict_stay(leakscope: Command, script: Write, tmp_path: Path, name: str) -> None:
    done = leakscope("run", "-o", "run", script(with_fault(FAULTS[name])))
    assert f"script finished {STEPS}" in done.stdout and "Traceback" not in done.stderr
    if name == "files may not grow":  # what is not seen is said
        assert done.returncode == 0 and "INCONCLUSIVE" in done.stdout and "File too large" in done.stdout
    elif name == "no memory":
        assert done.returncode == 0 and "INCONCLUSIVE" in done.stdout and "memory that the host lets" in done.stdout
    else:
        assert done.returncode == 23 and "LEAKS" in done.stdout and "losses" in done.stdout, done.stdout
    if name.startswith("folder"):
        why = "No such file or directory" if name == "folder removed" else "Not a directory"
        assert f"the run's folder could not be written any more: {why}" in done.stdout
        assert done.stderr.count("leakscope:") == 1 and "could not be written" in done.stderr
        assert not (tmp_path / "run").is_dir(), "what the script removed is not made again"
    else:
        assert (tmp_path / "run" / "report.html").exists() and not leftovers(tmp_path / "run")
    if name == "descriptors closed":
        assert (tmp_path / "mine").read_bytes() == b"", "nothing of ours is written into the script's files"


def test_a_page_that_cannot_be_written(leakscope: Command, script: Write, tmp_path: Path) -> None:
    path = script(with_fault("os.makedirs('run/report.html/in_the_way')"))
    done = leakscope("run", "-o", "run", path)
    assert done.returncode == 23 and "LEAKS" in done.stdout
    assert done.stderr.count("leakscope:") == 1 and "run could not be written (Is a directory)" in done.stderr
    assert not leftovers(tmp_path / "run")


def test_a_launcher_without_memory(script: Write, tmp_path: Path) -> None:
    path = script("import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nprint('script finished')\n")
    limited = ["prlimit", "--as=90000000:-1", sys.executable, "-m", "leakscope", "run", "-o", "run", str(path)]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "script finished" in done.stdout, done.stderr
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("leakscope:")]) == 1, done.stderr


def test_what_was_written_elsewhere_goes_on_where_the_folder_ends(tmp_path: Path) -> None:
    home, other = tmp_path / "run" / "rank_0000", tmp_path / "other" / "rank_0000"
    for folder in (home, other):
        folder.mkdir(parents=True)
    (home / "steps.jsonl").write_text('{"number": 1}\n{"num')
    (other / "steps.jsonl").write_text('{"number": 2}\n')
    (other / "ended.json").write_text("{}")
    gather(tmp_path / "run", [str(tmp_path / "other")], tmp_path / "run", {"ranks": 1})
    assert (home / "steps.jsonl").read_text() == '{"number": 1}\n{"number": 2}\n'
    assert sorted(path.name for path in home.iterdir()) == ["ended.json", "steps.jsonl"]
    assert (tmp_path / "run" / "run.json").exists() and not list(other.iterdir())


def test_what_somebody_else_put_there_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other, secret = tmp_path / "run", tmp_path / "other", tmp_path / "secret"
    run.mkdir()
    (other / "rank_0000").mkdir(parents=True)
    secret.write_text("of mine")
    (other / "rank_0000" / "ended.json").symlink_to(secret)
    os.mkfifo(other / "rank_0000" / "steps.jsonl")  # to be read of it would be to wait for ever
    (tmp_path / "link").symlink_to(other)
    gather(run, [str(other), str(tmp_path / "link")], run, {"ranks": 1})
    assert not list((run / "rank_0000").iterdir())
    (other / "rank_0000" / "notes.jsonl").write_text('{"note": "not mine"}\n')
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    gather(run, [str(other)], run, {"ranks": 1})
    assert not list((run / "rank_0000").iterdir())
    with pytest.raises(PermissionError):
        gather(run, [str(other)], other / "run", {"ranks": 1})
    assert not (other / "run" / "run.json").exists()
