"""The installed package: light to import, typed, silent, and with examples that run."""

from __future__ import annotations

import ast
import doctest
import inspect
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from support import ROOT, TESTS

import leakscope
from leakscope import backward

PUBLIC = {
    "watch": leakscope.watch,
    "Profiler": leakscope.Profiler,
    "check": leakscope.check,
    "draw": leakscope.draw,
    "holders": leakscope.holders,
    "judge": leakscope.judge,
    "read_run": leakscope.read_run,
    **{f"backward.{name}": getattr(backward, name) for name in backward.__all__ if name != "Installed"},
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    torch.manual_seed(0)
    doc = inspect.getdoc(PUBLIC[name]) or ""
    example = doctest.DocTestParser().get_doctest(doc, {}, name, None, None)
    assert example.examples, f"{name} shows no example"
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert result.attempted and not result.failed


def test_the_library_never_prints() -> None:
    for path in (ROOT / "leakscope").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno} prints"


@pytest.mark.process
def test_importing_leakscope_and_its_plugin_is_light() -> None:
    code = "import sys, leakscope, leakscope.pytest_plugin; print({'torch', 'matplotlib', 'numpy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


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
