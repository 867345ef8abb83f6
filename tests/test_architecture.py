"""The commands and files that README and the guide name exist, and importing leakscope is light.

Which package imports which is a contract of import-linter, in pyproject.toml.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support import ROOT


def sources() -> list[Path]:
    return sorted([*(ROOT / "leakscope").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part_of(path: Path) -> str:
    """The part of the plan that a file belongs to."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "cli":
        return "leakscope_cli"
    return parts[1] if len(parts) > 2 else path.stem


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_the_library_never_prints() -> None:
    for path in sources():
        if part_of(path) == "leakscope_cli":
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{name_of(path)}:{node.lineno} prints"


@pytest.mark.process
def test_importing_leakscope_and_its_plugin_is_light() -> None:
    code = "import sys, leakscope, leakscope.pytest_plugin; print({'torch', 'matplotlib', 'numpy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


@pytest.mark.process
def test_a_rank_imports_neither_torch_nor_numpy_before_its_script() -> None:
    """The script may set what they read from the environment when they are imported."""
    code = "import sys, leakscope.recorder.__main__; print({'torch', 'numpy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


def test_the_commands_that_the_readme_shows_exist() -> None:
    """Each with its own options; what follows the script is the script's."""
    from leakscope_cli import main

    context = click.Context(main)
    shown = re.findall(r"(?:^ {4}|`)leakscope ([a-z]+)\b([^#`\n]*)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {"run", "report", "compare", "snapshot"} <= {name for name, _ in shown}
    for name, words in shown:
        command = main.get_command(context, name)
        assert command is not None, f"leakscope {name}"
        own = re.split(r"\S+\.py\b|-m\b", words)[0]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        known |= {"--help"}
        assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", own)) <= known, f"leakscope {name}{words}"


def test_the_files_that_the_guide_names_are_there() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)`", (ROOT / "CONTRIBUTING.md").read_text()))
    missing = {name for name in named if not any((top / name).exists() for top in (ROOT, ROOT / "leakscope"))}
    assert len(named) > 10
    assert missing == set()
