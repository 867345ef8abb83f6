"""Run folders and files are readable by their owner only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakscope.run.descriptors import open_private, write_whole_for_all
from leakscope.run.writer import RankFolder, make_private, prepare_folder, write_named, write_run


@pytest.fixture(params=[0o000, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_of_a_run_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    make_private(tmp_path / "run")
    folder = RankFolder(tmp_path / "run", 0)
    folder.note("a line")
    folder.write("whole.json", {})
    folder.close()
    write_run(tmp_path / "run", {})
    (tmp_path / "run" / "open").touch()
    os.close(open_private(tmp_path / "run" / "open", os.O_WRONLY | os.O_CREAT))
    os.close(open_private(tmp_path / "run" / "new", os.O_WRONLY | os.O_CREAT))
    write_named(tmp_path / "run" / "named", b"")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"notes.jsonl", "whole.json", "run.json", "open", "new", "named"}
    assert {mode(path) for path in files} == {0o600}


def test_a_file_outside_the_run_follows_the_umask(tmp_path: Path, umask: int) -> None:
    write_named(tmp_path / "named", b"")
    write_whole_for_all(tmp_path / "whole", b"")
    assert mode(tmp_path / "named") == mode(tmp_path / "whole") == 0o666 & ~umask
    (tmp_path / "whole").chmod(0o640)
    write_whole_for_all(tmp_path / "whole", b"")
    assert mode(tmp_path / "whole") == 0o640


def test_all_folders_of_a_run_are_private(tmp_path: Path) -> None:
    (tmp_path / "replaced").mkdir(mode=0o755)
    write_run(tmp_path / "replaced", {})
    before = os.umask(0)
    try:
        prepare_folder(tmp_path / "replaced", force=True)
        prepare_folder(tmp_path / "a" / "run", force=False)
        write_run(tmp_path / "b", {})
        RankFolder(tmp_path / "c", 0).close()
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("replaced", "a/run", "b", "c", "c/rank_0000")] == [0o700] * 5
