"""Code that runs in the user's process uses private copies of Python's modules, which no script can replace."""

from __future__ import annotations

import ast
import os
import pathlib
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
from support import ROOT

from leakscope import originals

IN_PROCESS = (
    *("heap", "process", "comm", "dataloader", "recorder", "run"),
    *("profiler", "testing", "integrations", "pytest_plugin"),
)
COPIED = {"os", "posix", "posixpath", "pathlib", "io", "time", "_thread", "threading", "signal", "_signal", "json"} | {
    *("select", "selectors", "fcntl", "socket", "subprocess", "multiprocessing", "mmap", "resource", "atexit"),
    *("shutil", "tempfile", "random", "tokenize", "linecache", "builtins", "codecs"),
}
"""Modules whose functions scripts, tests and libraries replace."""
HARMLESS = {("io", "BytesIO"), ("io", "StringIO"), ("io", "TextIOWrapper"), ("threading", "Thread")}
"""Classes that act on nothing outside of their own objects, and one that is only recognized."""
ALLOWED = {
    ("process/site/sitecustomize.py", "os"): "runs ahead of everything, and only then",
    ("process/site/leakscope_following.py", "posix"): "is patched",
    ("recorder/children.py", "multiprocessing"): "registers with the finalizers of the process",
    ("heap/to_graph.py", "threading"): "the class of threads is recognized",
    ("recorder/lifetimes/dispatch_mode.py", "threading"): "reads the table of the threads that the script knows",
    ("process/children.py", "multiprocessing"): "is patched",
    ("process/children.py", "subprocess"): "is patched",
    ("pytest_plugin/fixing.py", "subprocess"): "starts pytest after the last test",
    ("process/watchdog.py", "threading"): "reads the table of the threads that the script knows",
    ("process/script_runner.py", "builtins"): "becomes the `__builtins__` of the script",
    ("process/script_runner.py", "io"): "reads the script, ahead of it",
    ("recorder/steps/step_function.py", "builtins"): "is patched",
    ("process/user_code.py", "linecache"): "its cache is read, where notebooks put their cells",
    ("process/user_code.py", "tokenize"): "detects an encoding; opens nothing",
    ("process/torch_compat.py", "multiprocessing"): "names the start methods",
    ("dataloader/monitor.py", "multiprocessing"): "is patched",
    ("run/reader.py", "multiprocessing"): "runs in the process of the command line",
    ("run/reader.py", "threading"): "runs in the process of the command line",
}
"""(file, module): why it uses the real one."""


def in_process() -> list[Path]:
    folders = [path for name in IN_PROCESS for path in (ROOT / "leakscope" / name).rglob("*.py")]
    return sorted([*folders, *(ROOT / "leakscope" / f"{name}.py" for name in ("files", "options", "native"))])


def real_ones(tree: ast.AST) -> set[str]:
    """Modules of `COPIED` that some code imports, and `open`, where it calls the builtin."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            top = node.module.partition(".")[0]
            found |= {top for name in node.names if (top, name.name) not in HARMLESS}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            found.add("open")
    return found & (COPIED | {"open"})


def test_code_in_the_users_process_uses_the_copies() -> None:
    used = {
        (path.relative_to(ROOT / "leakscope").as_posix(), module)
        for path in in_process()
        for module in real_ones(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert used == set(ALLOWED)


REPLACED = [
    *(f"os.{name}" for name in ("open", "close", "mkdir", "stat", "lstat", "replace", "unlink", "scandir", "listdir")),
    *(f"os.{name}" for name in ("getcwd", "readlink", "rename", "symlink", "chmod", "rmdir")),
    *("os.path.isdir", "os.path.exists", "os.path.realpath", "builtins.open", "io.open", "time.time", "time.sleep"),
    *("json.dumps", "json.loads", "signal.getsignal", "_thread.start_new_thread"),
    *(f"pathlib.Path.{name}" for name in ("stat", "open", "mkdir", "exists", "iterdir", "read_bytes", "resolve")),
    *("tempfile.mkdtemp", "shutil.rmtree", "select.select", "fcntl.flock", "gc.collect"),
]


def test_the_copies_act_whatever_has_been_replaced(tmp_path: Path) -> None:
    originals.take()
    os_, rmtree, mkdtemp = originals.os, originals.shutil.rmtree, originals.tempfile.mkdtemp
    folder = originals.Path(str(tmp_path)) / "a" / "b"
    with ExitStack() as patches:
        for name in REPLACED:
            patches.enter_context(patch(name, side_effect=AssertionError(f"{name} was called")))
        folder.mkdir(parents=True)
        file = folder / "x.json"
        file.write_text(originals.json.dumps({"a": 1}))
        assert originals.json.loads(file.read_bytes()) == {"a": 1}
        assert file.exists() and file.is_file() and folder.is_dir() and not file.is_symlink()
        assert [*folder.iterdir()] == [*folder.glob("*.json")] == [file]
        (folder / "link").symlink_to("x.json")
        assert (folder / "link").resolve() == file.resolve()
        (folder / "link").rename(folder / "other")
        (folder / "other").unlink()
        os_.makedirs(folder / "c" / "d")
        assert os_.path.isdir(folder / "c") and os_.path.realpath(folder / "c") == str(folder / "c")
        assert mkdtemp(dir=folder / "c").startswith(str(folder))
        rmtree(folder / "c")
        with os_.fdopen(os_.open(file, os_.O_RDONLY)) as stream:
            assert stream.read() == '{"a": 1}'
        originals.time.sleep(0)
        assert originals.time.time() > 0 and originals.signal.getsignal(signal.SIGINT) is not None
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["x.json"]


def test_a_path_is_equal_to_one_of_pathlib(tmp_path: Path) -> None:
    mine = originals.Path(str(tmp_path))
    assert mine == tmp_path and hash(mine) == hash(tmp_path) and isinstance(mine, pathlib.Path)
    assert type(mine / "a") is type(mine.parent) is originals.Path


@pytest.mark.parametrize("name", ["time.sleep", "_thread.allocate_lock", "posix.write", "select.select"])
def test_functions_in_c_that_have_been_replaced_before_are_made_anew(name: str) -> None:
    module, _, function = name.partition(".")
    real = vars(__import__(module))[function]
    with patch(name) as instead:
        made = vars(originals._of_c(module))[function]
    assert made is not instead and type(made) is type(real) and made.__name__ == function


def test_the_real_modules_stay_as_they_are() -> None:
    assert originals.time.sleep is time.sleep and originals.os.environ is os.environ
    assert os.path.exists.__globals__["os"] is os
