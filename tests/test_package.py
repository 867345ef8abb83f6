"""The installed package is light to import and typed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support import ROOT, TESTS

LIGHT = """
import sys, leakscope, leakscope.pytest_plugin, leakscope_cli
try:
    leakscope_cli.main(["--help"])
except SystemExit:
    pass
assert not {"numpy", "leakscope.report"} & set(sys.modules)
leakscope.watch, leakscope.Profiler, leakscope.LeaksFound
with leakscope.watch(fail=True):
    pass
print(sorted({"torch", "matplotlib"} & set(sys.modules)))
"""


@pytest.mark.process
def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    answer = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert answer.stdout.endswith("[]\n")


@pytest.mark.process
def test_mypy_finds_the_types_of_an_installed_leakscope(tmp_path: Path) -> None:
    """The example asserts what they are, and ignores what has to be wrong: an ignored line without error is one."""
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "leakscope.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    shutil.copy(TESTS / "typed_example.py", tmp_path / "train.py")
    python = str(tmp_path / "venv" / "bin" / "python")
    options = ["--strict", "--no-error-summary", "--python-executable", python, "--config-file", "", "--cache-dir", "c"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "train.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
