"""`leakscope report` without a run uses the most recent one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from leakscope_cli import main
from leakscope_cli.recorded import newest_run

from leakscope.errors import LeakscopeError


def begun(folder: str, seconds: int) -> Path:
    path = Path("leakscope_runs", folder)
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}")
    os.utime(path / "run.json", (seconds, seconds))
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_one_that_was_begun_last() -> None:
    begun("train_20260102_000000", 1000)
    newest = begun("eval_20260101_000000", 2000)
    Path("leakscope_runs", "no_run").mkdir()
    assert newest_run() == newest


def test_without_any_it_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LeakscopeError, match="no run found in leakscope_runs"):
        newest_run()
    with pytest.raises(SystemExit) as end:
        main(["report"], prog_name="leakscope")
    output = capsys.readouterr().err
    assert end.value.code == 2 and output.count("\n") == 1 and "no run found in leakscope_runs" in output


def test_which_one_it_is_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    newest = begun("train_20260102_000000", 1000)
    with pytest.raises(SystemExit):
        main(["report"], prog_name="leakscope")
    assert capsys.readouterr().err.splitlines()[0] == f"leakscope: the newest run is {newest}"
