"""Runs write no secrets, no source with `--no-source`, and listen on the loopback interface only."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.launch.start import in_repository

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

TELL = """
import os, sys
import torch
import torch.distributed as dist

def listening(process):
    own = {os.readlink(f"/proc/{process}/fd/{n}") for n in os.listdir(f"/proc/{process}/fd")}
    rows = [row.split() for name in ("tcp", "tcp6") for row in open(f"/proc/net/{name}").readlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]

torch.set_num_threads(1)
dist.init_process_group("gloo")
dist.barrier()
words = "stripes of a zebra"
if dist.get_rank() == 0:
    print("heard at", sorted(set(listening(os.getppid()))), os.environ["MASTER_ADDR"])
dist.barrier()
print("told", sys.argv[1:])
raise ValueError("no such token as " + sys.argv[2])
"""


def test_a_run_keeps_no_source_and_shows_no_secret_and_its_ranks_meet_on_the_loopback(
    leakscope: Command, script: Write, tmp_path: Path
) -> None:
    script(TELL)
    run = tmp_path / "run"
    done = leakscope("run", "--no-source", "-n", 2, "-o", "run", "train.py", "--api-key", "abcdefgh-12345")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "heard at ['0100007F'] 127.0.0.1" in done.stdout, "the store of the launcher"
    assert done.stdout.count("told ['--api-key', 'abcdefgh-12345']") == 2, "what the script prints is its own"
    assert "Run        train.py --api-key ****: 2 ranks" in done.stdout
    assert "ValueError: no such token as ****" in done.stdout, "what is said of its end is ours"
    assert "failed with status 1: ValueError: no such token as ****" in done.stderr
    assert json.loads((run / "findings.json").read_text())["run"]["command"] == ["train.py", "--api-key", "****"]
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.parent.name != "logs"}
    assert len(kept) > 5
    for path, data in kept.items():
        assert b"stripes" not in data and b"raise ValueError" not in data and b"abcdefgh" not in data, path
    files = {path for path in run.rglob("*") if path.is_file()}
    assert {path.name for path in files} >= {"launcher.log", "rank_0001.stderr.log"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    folders = [run, *(path for path in run.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_paths_are_from_the_nearest_root_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "outer" / "inner"
    (inner / "work dir").mkdir(parents=True)
    (tmp_path / "outer" / ".git").mkdir()
    monkeypatch.chdir(inner / "work dir")
    assert in_repository("train.py") == {"folder": "inner/work dir", "script": "inner/work dir/train.py"}
    assert in_repository("") == {"folder": "inner/work dir"}
    (inner / ".git").write_text("gitdir: elsewhere")
    assert in_repository("../train.py") == {"folder": "work dir", "script": "train.py"}
    monkeypatch.chdir(tmp_path)
    assert in_repository("outer/train.py") == {"script": "train.py"}
    monkeypatch.chdir(tmp_path / "outer")
    assert in_repository("train.py") == {"folder": ".", "script": "train.py"}
