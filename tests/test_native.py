"""The Python heap reader replaces a native one that does not load, and reports name the reader in use."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from leakscope_cli import main
from support import examples

from leakscope import native
from leakscope.launch.outcome import merge_run_metadata
from leakscope.report import FORMATS
from leakscope.report.text.page import render
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
def test_the_python_reader_serves_where_the_native_one_does_not_load(loads: Any, problem: Exception) -> None:
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


def test_the_python_reader_serves_where_the_native_one_is_older_than_its_sources(loads: Any, built: Any) -> None:
    loads(built)
    assert native.heap_reader() == "native"
    os.utime(built.__file__, (0, 0))
    loads(built)
    assert native.heap_reader() == "Python"


def test_the_python_reader_serves_where_it_is_asked_for(
    loads: Any, built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads(built)
    assert native.described() == "native heap reader"
    monkeypatch.setenv("LEAKSCOPE_PURE", "1")
    assert native.gc_heap() is None
    assert native.described() == "Python heap reader: LEAKSCOPE_PURE is set"
    monkeypatch.setenv("LEAKSCOPE_PURE", "0")
    assert native.heap_reader() == "native"


def test_the_version_says_which_reader_serves() -> None:
    told = CliRunner().invoke(main, ["--version"])
    assert told.exit_code == 0
    assert told.output == f"leakscope {version('leakscope')} ({native.described()})\n"


def test_a_run_says_which_readers_its_ranks_had(tmp_path: Path) -> None:
    write_run(tmp_path, {"command": ["train.py"], "ranks": 2})
    for rank, reader in enumerate(("native", "Python")):
        (tmp_path / f"rank_{rank:04d}").mkdir()
        about = {"device": "cpu", "torch": "2.13.0", "heap_reader": reader, "sources": {}}
        write_json(tmp_path / f"rank_{rank:04d}" / "about.json", about)
    merge_run_metadata(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["heap_reader"] == "Python and native"


@pytest.mark.process  # the page draws with graphviz
def test_reports_say_which_reader_served() -> None:
    run, findings = examples.leaking()
    told = replace(run, heap_reader="native")
    assert "native heap reader" in " ".join(render(told, findings, verbose=True).split())
    assert ", native heap reader</span>" in FORMATS["html"](told, findings)
    assert '"heap_reader": "native"' in FORMATS["json"](told, findings)
    assert "heap reader" not in FORMATS["text"](run, findings)
