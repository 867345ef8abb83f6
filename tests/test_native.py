"""The Python heap reader replaces a native one that does not load, and reports name the reader in use."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from leakscope_cli import main

from leakscope import native
from leakscope.launch.outcome import merge_run_metadata
from leakscope.run.writer import write_json, write_run


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the native reader load, or fail to in a certain way."""

    def to(outcome: Any) -> None:
        def load(_name: str) -> Any:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(native, "import_module", load)
        native._built.cache_clear()

    monkeypatch.delenv("LEAKSCOPE_PURE", raising=False)
    yield to
    monkeypatch.undo()
    native._built.cache_clear()


@pytest.mark.parametrize("problem", [ImportError("invalid ELF header"), SystemError("another interpreter")])
def test_the_python_reader_replaces_a_native_one_that_does_not_load(loads: Any, problem: Exception) -> None:
    loads(problem)
    assert native.gc_heap() is None
    assert native.heap_reader() == "Python"
    assert native.described() == "Python heap reader: the C extension was not built for this version"


@pytest.fixture
def built(tmp_path: Path) -> Any:
    """A module in C as it stands beside its sources in a checkout."""
    for name in ("_gc_heap.c", "_gc_heap.so"):
        (tmp_path / name).touch()
    return SimpleNamespace(__file__=str(tmp_path / "_gc_heap.so"))


def test_the_python_reader_replaces_a_native_one_older_than_its_sources(loads: Any, built: Any) -> None:
    loads(built)
    assert native.heap_reader() == "native"
    os.utime(built.__file__, (0, 0))
    loads(built)
    assert native.heap_reader() == "Python"


def test_the_python_reader_is_used_on_request(loads: Any, built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loads(built)
    assert native.described() == "native heap reader"
    monkeypatch.setenv("LEAKSCOPE_PURE", "1")
    assert native.gc_heap() is None
    assert native.described() == "Python heap reader: LEAKSCOPE_PURE is set"
    monkeypatch.setenv("LEAKSCOPE_PURE", "0")
    assert native.heap_reader() == "native"


def test_the_version_names_the_reader() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"leakscope {version('leakscope')} ({native.described()})\n"


def test_a_run_names_the_readers_of_its_ranks(tmp_path: Path) -> None:
    write_run(tmp_path, {"command": ["train.py"], "ranks": 2})
    for rank, reader in enumerate(("native", "Python")):
        (tmp_path / f"rank_{rank:04d}").mkdir()
        about = {"device": "cpu", "torch": "2.13.0", "heap_reader": reader, "sources": {}}
        write_json(tmp_path / f"rank_{rank:04d}" / "about.json", about)
    merge_run_metadata(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["heap_reader"] == "Python and native"
