"""The files and functions that CONTRIBUTING names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = [
    tuple(re.findall(r"`([^`]+)`", cell) for cell in row) for row in re.findall(r"^\| (.*?) \| (.*?) \|", TEXT, re.M)
]


def _path(name: str) -> Path:
    return ROOT / name if name.startswith("cli/") else ROOT / "leakscope" / name


@pytest.mark.parametrize(("files", "functions"), [row for row in ROWS if row[0] and row[0][0].endswith(".py")], ids=str)
def test_route_of_a_tensor_exists(files: list[str], functions: list[str]) -> None:
    (first, *_) = [_path(name) for name in files if "*" not in name]
    text = first.read_text(encoding="utf-8") if "*" not in files[0] else ""
    names = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for function in functions if text else ():
        assert function.rpartition(".")[2] in names, (first, function)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/pages/architecture.md", "docs/pages/memory.md"])
def test_files_in_backticks_exist(page: str) -> None:
    for name in re.findall(r"`(\w+/[\w/]+\.(?:py|c|md))`", (ROOT / page).read_text(encoding="utf-8")):
        found = (folder / name for folder in (ROOT, ROOT / "leakscope"))
        assert "NAME" in name or any(path.exists() for path in found), name
