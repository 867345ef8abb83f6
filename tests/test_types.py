"""The types of the public API are visible to mypy in an installed package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from support import ROOT, TESTS


@pytest.mark.process
def test_mypy_finds_the_types_of_an_installed_leakscope(tmp_path: Path) -> None:
    """The example asserts what they are, and ignores what has to be wrong: an ignored line without error is one."""
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "leakscope.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    shutil.copy(TESTS / "typed_example.py", tmp_path / "train.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "train.py"]
    command += [
        "--python-executable",
        str(tmp_path / "venv" / "bin" / "python"),
        "--config-file",
        "",
        "--cache-dir",
        "cache",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_marker_for_type_checkers_ships() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    assert "py.typed" in data["leakscope"] and (ROOT / "leakscope" / "py.typed").exists()
