"""A repetition leaves the files that the script writes as they were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leakscope.process.written_files import restore_written_files

PROGRAM = """
import os, sys
from pathlib import Path
from leakscope.process.patches import Patches
from leakscope.process.written_files import WrittenFiles
written = WrittenFiles(Path("run"))
written.install()
import torch
written.watch_torch(Patches())
torch.save(torch.ones(3), "model.pt")
open("log.txt", "a").write("again")
open("new.txt", "w").write("new")
os.rename("old.txt", "older.txt")
Path("gone.txt").unlink()
open("model.pt", "r+b").write(b"twice")
open("read.txt").read()
if os.fork() == 0:
    open("of_fork.txt", "w").write("changed")
    os._exit(0)
os.wait()
"""


@pytest.mark.process
def test_written_files_are_restored(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    names = ("model.pt", "log.txt", "old.txt", "gone.txt", "read.txt", "of_fork.txt")
    for name in names:
        (tmp_path / name).write_text(f"first {name}")
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, check=True, timeout=100)
    assert (tmp_path / "new.txt").exists()
    assert not (tmp_path / "gone.txt").exists()
    assert restore_written_files(tmp_path / "run") == []
    assert {path.name for path in tmp_path.iterdir()} == {*names, "run"}
    assert all((tmp_path / name).read_text() == f"first {name}" for name in names)
    assert restore_written_files(tmp_path / "run") == []


@pytest.mark.process
def test_a_file_that_cannot_be_copied_is_not_overwritten(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from leakscope.process import written_files
written = written_files.WrittenFiles(Path("run"))
written.install()
Path("run/written").rmdir()
open("model.pt", "w")
"""
    (tmp_path / "run").mkdir()
    (tmp_path / "model.pt").write_text("first")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, timeout=100, check=False)
    assert done.returncode == 1
    assert (tmp_path / "model.pt").read_text() == "first"
