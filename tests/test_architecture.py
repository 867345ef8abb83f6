"""Packages import only what the plan allows, and everything is listed and has a docstring."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support import ROOT

PLAN: dict[str, tuple[set[str], set[str]]] = {
    **{part: (set[str](), set[str]()) for part in ("_version", "originals", "stand_ins")},
    "bootstrap": ({"capture", "shield"}, {"leakscope_cli"}),
    "native": (set(), set()),
    "shield": ({"native", "originals"}, set()),
    "errors": (set(), set()),
    "files": ({"errors"}, set()),
    "units": (set(), set()),
    "verdict": (set(), set()),
    "option": (set(), set()),
    "options": ({"option"}, set()),
    "graph": ({"errors", "native"}, {"numpy", "scipy"}),
    "allocator": ({"errors", "files", "verdict"}, {"numpy"}),
    "record": ({"graph", "allocator", "errors", "files", "options"}, set()),
    "launch": ({"bootstrap", "record", "errors", "files", "options"}, {"torch"}),
    "capture": (
        {
            "bootstrap",
            "record",
            "graph",
            "allocator",
            "errors",
            "files",
            "option",
            "options",
            "native",
            "shield",
            "findings",
            "report",
            "stand_ins",
        },
        {"torch", "numpy", "objgraph", "psutil", "leakscope_following", "sitecustomize"},
    ),
    "findings": ({"record", "graph", "allocator", "units", "verdict"}, {"numpy"}),
    "report": (
        {"findings", "record", "graph", "allocator", "units", "verdict", "errors"},
        {"matplotlib", "graphviz", "jinja2", "markupsafe", "rich"},
    ),
    "profiler": (
        {
            "capture",
            "findings",
            "report",
            "record",
            "graph",
            "units",
            "errors",
            "options",
            "native",
            "shield",
            "verdict",
        },
        {"torch"},
    ),
    "integrations": (
        {"profiler", "report", "verdict", "errors", "options"},
        {"torch", "lightning", "transformers", "accelerate", "IPython"},
    ),
    "pytest_plugin": ({"profiler", "findings", "report", "record", "units", "errors", "shield", "verdict"}, {"pytest"}),
    "testing": (
        {"profiler", "capture", "findings", "report", "record", "graph", "units", "verdict", "errors"},
        set(),
    ),
    "backward": (set(), {"torch"}),
    "__init__": ({"profiler", "findings", "report", "record", "errors"}, set()),
    "__main__": ({"bootstrap"}, {"leakscope_cli"}),
    "leakscope_cli": (
        {
            "bootstrap",
            "launch",
            "findings",
            "report",
            "record",
            "allocator",
            "units",
            "errors",
            "files",
            "option",
            "options",
            "native",
            "verdict",
        },
        {"click", "rich"},
    ),
}
"""As CONTRIBUTING.md has it: package -> (packages of leakscope it may import, third-party packages it may import)."""
INSIDE_FUNCTIONS = {
    ("bootstrap", "capture"),
    ("bootstrap", "shield"),
    ("bootstrap", "leakscope_cli"),
    ("capture", "findings"),
    ("capture", "report"),
    ("launch", "torch"),
    ("profiler", "capture"),
    ("testing", "capture"),
    ("profiler", "torch"),
    *(("pytest_plugin", package) for package in PLAN["pytest_plugin"][0] - {"shield"}),
    *(("__init__", package) for package in PLAN["__init__"][0]),
}
"""Imports that may stand inside functions only."""
JUDGING_CAPTURE = {
    "leakscope/capture/__main__.py",
    "leakscope/capture/prove/prove.py",  # makes the cut that findings would tell
}
"""The files of capture that may import findings and report."""


def sources() -> list[Path]:
    return sorted([*(ROOT / "leakscope").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def with_tests() -> list[Path]:
    return sorted([*sources(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])


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


@functools.cache
def imports(path: Path) -> tuple[tuple[str, bool, int], ...]:
    """(module, inside a function or under TYPE_CHECKING, line) of every import."""
    return tuple(_imports(tree_of(path)))


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool, int]]:
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


def target_of(module: str) -> str:
    """The part of the plan that a module of leakscope belongs to."""
    name = module.split(".")[1] if "." in module else "__init__"
    if (ROOT / "leakscope" / name).is_dir() or (ROOT / "leakscope" / f"{name}.py").is_file():
        return name
    return "__init__"


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_imports_stay_in_the_plan(path: Path) -> None:
    part = part_of(path)
    assert part in PLAN, f"{path.name} is in no part of the plan"
    packages, third_party = PLAN[part]
    for module, late, line in imports(path):
        top = module.partition(".")[0]
        where = f"{name_of(path)}:{line} imports {module}"
        if top == "leakscope":
            target = target_of(module)
            if target in (part, "_version", "originals"):  # anybody may use these two
                continue
            assert target in packages, where
            assert part != "capture" or target not in ("findings", "report") or name_of(path) in JUDGING_CAPTURE, where
        elif top in sys.stdlib_module_names or top == part:
            continue
        else:
            target = top
            assert top in third_party, where
        assert late or (part, target) not in INSIDE_FUNCTIONS, f"{where} at import time"


@pytest.mark.parametrize("path", with_tests(), ids=name_of)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), f"{name_of(path)} has no docstring"


def test_packages_listed_are_the_packages_there() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "leakscope").rglob("__init__.py")}
    commands = {
        ".".join(("leakscope_cli", *p.parent.relative_to(ROOT / "cli").parts))
        for p in (ROOT / "cli").rglob("__init__.py")
    }
    assert set(listed) == there | commands | {"leakscope.samples"}


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


def test_no_packages_import_each_other_in_a_circle() -> None:
    """Imports inside functions and under TYPE_CHECKING apart."""
    arrows: dict[str, set[str]] = {}
    for path in sources():
        own = package_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if own and path.name != "__init__.py":  # a package may offer names of what lies deeper
            found = {package_of(module) for module, late, _ in imports(path) if not late}
            arrows.setdefault(own, set()).update(found - {own, ""})
    while ends := [package for package, targets in arrows.items() if not targets & arrows.keys()]:
        for package in ends:
            del arrows[package]
    assert not arrows, "in a circle, or leading into one: " + ", ".join(
        f"{package} -> {target}" for package, targets in arrows.items() for target in sorted(targets & arrows.keys())
    )


def package_of(module: str) -> str:
    """`leakscope.capture.heap` for what stands there; a file beside packages is its own; "" for other modules."""
    parts = module.split(".")
    folders = [parts[:end] for end in range(len(parts), 0, -1) if ROOT.joinpath(*parts[:end]).is_dir()]
    if parts[0] != "leakscope" or not folders:
        return ""
    files = ROOT.joinpath(*folders[0])
    alone = any(files.glob("*/__init__.py"))
    return ".".join(parts[: len(folders[0]) + 1] if alone else folders[0])


def test_the_files_that_the_guide_names_are_there() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)`", (ROOT / "CONTRIBUTING.md").read_text()))
    missing = {name for name in named if not any((top / name).exists() for top in (ROOT, ROOT / "leakscope"))}
    assert len(named) > 20
    assert missing == {"logs/"}  # of a run's folder
