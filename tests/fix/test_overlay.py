"""A process that tries a fix runs copies of some files in place of the originals, and writes to neither."""

from __future__ import annotations

import json
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from leakscope.overlay import install_overlay, write_overlay

PROGRAM = """
import json, sys
sys.dont_write_bytecode = False
from leakscope.overlay import install_overlay
install_overlay(sys.argv[1])
sys.path.insert(0, sys.argv[2])
import inspect, runpy, traceback
import package.module as module
from package import other
try:
    module.fails()
except ZeroDivisionError as error:
    line = traceback.extract_tb(error.__traceback__)[-1].line
print(json.dumps({
    "value": module.value(),
    "source": inspect.getsource(module.value),
    "line": line,
    "file": module.__file__,
    "main": runpy.run_path(sys.argv[2] + "/script.py")["VALUE"],
    "as_module": runpy.run_module("package.module")["NAME"],
    "other": other.NAME,
}))
"""
ORIGINAL = 'NAME = "original"\ndef value():\n    return 1\ndef fails():\n    return 1 / 0\n'
EDITED = '# one line more\nNAME = "edited"\ndef value():\n    return 2\ndef fails():\n    return 2 / 0\n'


@pytest.mark.process
def test_imports_scripts_modules_and_tracebacks_use_the_copies(tmp_path: Path) -> None:
    package, run = tmp_path / "package", tmp_path / "run"
    package.mkdir()
    run.mkdir()
    originals = {"module.py": ORIGINAL, "other.py": 'NAME = "untouched"\n', "__init__.py": ""}
    for name, text in originals.items():
        (package / name).write_text(text, encoding="utf-8")
        py_compile.compile(str(package / name))  # which would be used for the original
    (tmp_path / "script.py").write_text("VALUE = 1\n", encoding="utf-8")
    (run / "a.py").write_text(EDITED, encoding="utf-8")
    (run / "b.py").write_text("VALUE = 2\n", encoding="utf-8")
    write_overlay(
        str(run), {str(package / "module.py"): str(run / "a.py"), str(tmp_path / "script.py"): str(run / "b.py")}
    )
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    command = [sys.executable, "-c", PROGRAM, str(run), str(tmp_path)]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)

    assert shown == {
        "value": 2,
        "source": "def value():\n    return 2\n",
        "line": "return 2 / 0",
        "file": str(package / "module.py"),
        "main": 2,
        "as_module": "edited",
        "other": "untouched",
    }
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_without_copies_changes_nothing(tmp_path: Path) -> None:
    assert not install_overlay(str(tmp_path))
