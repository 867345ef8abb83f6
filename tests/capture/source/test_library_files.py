"""Modules are classified as library or user code."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from leakscope.process import user_code
from leakscope.process.user_code import is_users, short


@pytest.fixture(autouse=True)
def _no_module_is_known_yet() -> None:
    user_code.modules_by_file.cache_clear()


@pytest.mark.parametrize(
    ("module", "file", "told"),
    [
        ("pytest.conv_GCN_propagate", "pytest.conv_GCN_propagate_5cmue4ew.py", "<pytest/{}>"),
        ("pytest.written.cab", "ab/cab.py", "<pytest/{}>"),
        ("pytest.added", "pytest/added.py", "{}"),
        ("pytest.added", "pytest/added/__init__.py", "{}"),
        ("pytest_of_mine.train", "train.v2.py", "{}"),
        ("mine.train", "cache/train_5cmue4ew.py", "{}"),
        ("__main__", "pytest.py", "{}"),
        ("pytest", "pytest.fixed.py", "{}"),
        ("", "pytest.conv_GCN_propagate_5cmue4ew.py", "{}"),
    ],
)
def test_what_a_library_wrote_is_the_librarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, file: str, told: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    if module:
        made = ModuleType(module)
        made.__file__ = str(path)
        monkeypatch.setitem(sys.modules, module, made)
    assert short(str(path)) == told.format(path.name)
    assert is_users(str(path)) == (told == "{}")


def test_what_inductor_writes_is_torchs() -> None:
    folder = Path(tempfile.gettempdir())
    assert short(str(folder / "torchinductor_me" / "ab" / "cab.py")) == "<torch/cab.py>"
    assert is_users(str(folder / "mine" / "torchinductor_tests" / "train.py"))


def test_the_loaded_modules_are_gone_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_users(str(tmp_path / "first.py"))
    asked: list[object] = []
    monkeypatch.setattr(user_code, "_file_of", lambda module: asked.append(module) or "")
    for number in range(9):
        assert is_users(str(tmp_path / f"{number}.py"))
    assert len(asked) <= len(sys.modules)
