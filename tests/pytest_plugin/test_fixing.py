"""`--leakscope-fix` writes a patch that makes failing tests pass, also one of the test module itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TEST = """
import pytest, torch

@pytest.mark.no_tensor_leaks
def test_cycle():
    class Node:
        pass
    node = Node()
    node.me = node
    node.kept = torch.ones(100_000)
    assert node.kept.sum() > 0, "with a rewritten assertion"
"""
OPTIONS = ("-q", "--leakscope-fix", "-p", "no:cacheprovider", "-p", "no:anyio", "-p", "no:asyncio")


@pytest.mark.process
def test_a_failing_test_is_fixed(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TEST, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", *OPTIONS, "test_it.py"]
    # the bytecode of the original must not be used for the copy
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    first = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == pytest.ExitCode.TESTS_FAILED
    assert (tmp_path / "test_it.py").read_text(encoding="utf-8") == TEST
    (patch,) = (tmp_path / "leakscope_fixes").iterdir()
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout
