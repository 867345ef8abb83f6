"""Compiled jinja2 templates are cached in the bytecode folder and recompiled when stale or damaged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2.environment import Template

from leakscope.report.html.filters import templates


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "page.html").write_text("<p>{{ text }}</p>", encoding="utf-8")
    return tmp_path / "own"


def kept(folder: Path) -> list[Path]:
    return [path for path in (folder.parent / "kept").rglob("*") if path.is_file()]


def page(folder: Path) -> Template:
    return templates(folder).get_template("page.html")


def test_it_is_kept_and_taken_from_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page(folder).render(text="<") == "<p>&lt;</p>"
    assert len(kept(folder)) == 1
    monkeypatch.setattr("jinja2.environment.Environment.compile", lambda *_, **__: pytest.fail("compiled again"))
    assert page(folder).render(text="<") == "<p>&lt;</p>"


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_what_is_damaged_or_out_of_date_is_compiled_again(folder: Path, damage: bytes | None) -> None:
    page(folder)
    (file,) = kept(folder)
    if damage is None:
        (folder / "page.html").write_text("<b>{{ text }}</b>", encoding="utf-8")
    else:
        file.write_bytes(file.read_bytes()[:40] if damage == b"junk" else damage)
    assert page(folder).render(text="x") == ("<b>x</b>" if damage is None else "<p>x</p>")
    assert kept(folder) == [file]


def test_nothing_is_kept_where_python_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert page(folder).render(text="x") == "<p>x</p>" and not kept(folder)


def test_a_folder_that_cannot_be_written_is_no_trouble(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(folder / "page.html"))  # a file, where a folder is wanted
    assert page(folder).render(text="x") == "<p>x</p>"
