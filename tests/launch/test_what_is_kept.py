"""Runs write no secrets, no source with `--no-source`, and listen on the loopback interface only."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.launch.start import in_repository


def test_paths_are_from_the_nearest_root_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "outer" / "inner"
    (inner / "work dir").mkdir(parents=True)
    (tmp_path / "outer" / ".git").mkdir()
    monkeypatch.chdir(inner / "work dir")
    assert in_repository("train.py") == {"folder": "inner/work dir", "script": "inner/work dir/train.py"}
    assert in_repository("") == {"folder": "inner/work dir"}
    (inner / ".git").write_text("gitdir: elsewhere")
    assert in_repository("../train.py") == {"folder": "work dir", "script": "train.py"}
    monkeypatch.chdir(tmp_path)
    assert in_repository("outer/train.py") == {"script": "train.py"}
    monkeypatch.chdir(tmp_path / "outer")
    assert in_repository("train.py") == {"folder": ".", "script": "train.py"}
