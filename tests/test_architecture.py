"""Does every room import only what the plan allows, and is everything that ships listed?"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

DATA = {"record", "graph", "allocator", "errors", "units"}
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "units": (set(), set()),
    "graph": ({"errors"}, {"numpy", "scipy"}),
    "allocator": ({"errors"}, {"numpy"}),
    "options": (set(), set()),
    "record": ({"graph", "allocator", "errors", "options"}, set()),
    "launch": ({"options", "record", "errors"}, {"torch"}),
    "capture": (
        {"record", "options", "graph", "allocator", "errors", "findings", "report"},
        {"torch", "objgraph", "numpy"},
    ),
    "findings": ({"record", "graph", "allocator", "units"}, {"numpy"}),
    "report": ({"findings", *DATA}, {"matplotlib", "graphviz", "jinja2", "markupsafe"}),
    "profiler": ({"options", "capture", "findings", "report", "record", "graph", "units", "errors"}, set()),
    "pytest_plugin": ({"profiler", "findings", "report", "units", "errors"}, {"pytest"}),
    "backward": (set(), {"torch"}),
    "__init__": ({"profiler", "findings", "report", "record", "errors"}, set()),
    "__main__": (set(), {"leakscope_cli"}),
    "leakscope_cli": ({"options", "launch", "findings", "report", *DATA}, {"click", "rich"}),
}
"""Room -> (rooms of leakscope it may import, third-party packages it may import)."""
LATE_ONLY = {("capture", "findings"), ("capture", "report"), ("launch", "torch"), ("profiler", "capture")}
"""Imports allowed inside functions only."""


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "cli":
        return "leakscope_cli"
    return parts[1] if len(parts) > 2 else path.stem


def sources() -> list[Path]:
    return sorted([*(ROOT / "leakscope").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def imports(tree: ast.Module) -> Iterator[tuple[str, bool, int]]:
    """(module, inside a function or under TYPE_CHECKING, line) of every import."""
    late: set[int] = set()
    for node in ast.walk(tree):
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or guarded:
            late |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, id(node) in late, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "leakscope":
                for name in node.names:
                    yield f"leakscope.{name.name}", id(node) in late, node.lineno
            else:
                yield node.module, id(node) in late, node.lineno


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_stay_in_the_plan(path: Path) -> None:
    room = room_of(path)
    assert room in ALLOWED, f"{path.name} is in no room of the plan"
    rooms, packages = ALLOWED[room]
    for module, late, line in imports(ast.parse(path.read_text())):
        top = module.partition(".")[0]
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        if top == "leakscope":
            target = module.split(".")[1] if "." in module else "__init__"
            if not (ROOT / "leakscope" / target).exists() and not (ROOT / "leakscope" / f"{target}.py").exists():
                target = "__init__"  # a name of the front door
            if target in (room, "__init__"):
                continue
            assert target in rooms, where
            assert late or (room, target) not in LATE_ONLY, f"{where} at import time"
        elif top == "leakscope_cli":
            assert room in ("leakscope_cli", "__main__"), where
        elif top not in sys.stdlib_module_names:
            assert top in packages, where
            assert late or (room, top) not in LATE_ONLY, f"{where} at import time"


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc, f"{path} has no docstring"


def test_packages_listed_are_the_packages_there() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "leakscope").rglob("__init__.py")}
    assert set(listed) == there | {"leakscope_cli", "leakscope.samples"}


def test_the_library_never_prints() -> None:
    for path in sources():
        if room_of(path) == "leakscope_cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path.relative_to(ROOT)}:{node.lineno} prints"


def test_the_front_door_is_light() -> None:
    code = "import sys, leakscope, leakscope.pytest_plugin; print([m for m in ('torch', 'matplotlib', 'numpy') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


CIRCLES = {
    frozenset(("leakscope.capture.comm", "leakscope.capture.p2p")),
    frozenset(("leakscope.findings.grouping", "leakscope.findings.naming")),
}
"""Pairs of packages that still import each other: to be empty."""


def test_no_packages_import_each_other_in_a_circle() -> None:
    """Imports inside functions and under TYPE_CHECKING apart."""
    arrows: dict[str, set[str]] = {}
    for path in sources():
        own = package_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if own and path.name != "__init__.py":  # a package may offer names of what lies deeper
            found = {package_of(module) for module, late, _ in imports(ast.parse(path.read_text())) if not late}
            allowed = {own, ""} | {target for target in found if frozenset((own, target)) in CIRCLES}
            arrows.setdefault(own, set()).update(found - allowed)
    while ends := [package for package, targets in arrows.items() if not targets & arrows.keys()]:
        for package in ends:
            del arrows[package]
    assert not arrows, "in a circle, or leading into one: " + ", ".join(
        f"{package} -> {target}" for package, targets in arrows.items() for target in sorted(targets & arrows.keys())
    )


def package_of(module: str) -> str:
    """`leakscope.capture.heap` for what stands there; a file beside packages is one of its own; "" for other modules."""
    parts = module.split(".")
    folders = [parts[:end] for end in range(len(parts), 0, -1) if ROOT.joinpath(*parts[:end]).is_dir()]
    if parts[0] != "leakscope" or not folders:
        return ""
    files = ROOT.joinpath(*folders[0])
    alone = any(files.glob("*/__init__.py"))
    return ".".join(parts[: len(folders[0]) + 1] if alone else folders[0])
