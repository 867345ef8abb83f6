"""Compiled jinja2 templates are cached in the bytecode folder and recompiled when the cache is damaged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leakscope.report.html import environment


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    environment().get_template("device_memory.html")
    return tmp_path


def test_a_compiled_template_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len([path for path in cache.rglob("*") if path.is_file()]) == 1
    monkeypatch.setattr("jinja2.environment.Environment.compile", lambda *_, **__: pytest.fail("compiled again"))
    environment().get_template("device_memory.html")


@pytest.mark.parametrize("length", [0, 40])
def test_a_damaged_file_is_compiled_again(cache: Path, length: int) -> None:
    (file,) = (path for path in cache.rglob("*") if path.is_file())
    file.write_bytes(file.read_bytes()[:length])
    assert environment().get_template("device_memory.html").render(ranks=[], any_records=False).strip() == ""
