"""Reused file descriptors are left alone, and partially written lines are removed."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leakscope.recorder.steps.peers import RankStateFile
from leakscope.run import writer
from leakscope.run.descriptors import Descriptor, GrowingFile, Reserve, write_whole
from leakscope.run.writer import Places, RankFolder


@pytest.fixture
def taken_over(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Closes a descriptor and opens a file of the script's that gets its number."""
    opened: list[int] = []

    def take(number: int) -> Path:
        path = tmp_path / "the_scripts"
        os.close(number)
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
        opened.append(number)
        return path

    yield take
    for number in opened:
        os.close(number)


def number_of(file: GrowingFile | RankStateFile) -> int:
    assert file._file is not None
    return file._file.number


def test_lines_go_on_where_they_belong(tmp_path: Path, taken_over: Callable[[int], Path]) -> None:
    file = GrowingFile(tmp_path / "lines", Reserve(tmp_path))
    file.add(b"1\n")
    theirs = taken_over(number_of(file))
    file.add(b"2\n")
    assert (tmp_path / "lines").read_bytes() == b"1\n2\n" and theirs.read_bytes() == b""
    file.close()
    assert theirs.exists() and os.fstat(os.open(theirs, os.O_RDONLY)), "nor is it closed"


def test_the_ranks_state_is_written_into_no_other_file(tmp_path: Path, taken_over: Callable[[int], Path]) -> None:
    file, peer = (RankStateFile(tmp_path / "states", rank, 2) for rank in range(2))
    theirs = taken_over(number_of(file))
    theirs.write_bytes(b"x" * 4096)
    peer.update(steps=7)
    assert file.states()[1].steps == 7
    file.update(steps=5)
    assert peer.states()[0].steps == 5 and set(theirs.read_bytes()) == set(b"x")
    file.close()
    peer.close()
    assert len({state.steps for state in file.states()}) == 1, "once closed, its own for all"


def test_a_closed_state_of_a_rank_whose_folder_is_gone_is_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    file = RankStateFile(folder / "states", 0, 2)
    os.close(number_of(file))
    (folder / "states").unlink()
    folder.rmdir()
    file.update(steps=3)
    assert [state.steps for state in file.states()] == [3, 3]
    file.close()


def test_a_line_that_cannot_be_written_whole_is_taken_back(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = GrowingFile(tmp_path / "lines", Reserve(tmp_path))
    file.add(b"1234567\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (12, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            file.add(b"890abcd\n")
        with pytest.raises(OSError, match="too large"):
            write_whole(tmp_path / "whole", b"x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.add(b"again\n")
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"1234567\nagain\n"
    assert [path.name for path in tmp_path.iterdir()] == ["lines"], "nor does a half of a file stay"


def test_one_descriptor_is_kept_back(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = RankFolder(tmp_path, 0)
    theirs: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                theirs.append(os.open(os.devnull, os.O_RDONLY))
        folder.write("whole.json", {})
        folder.note("one file stays open")
        folder.write("another.json", {})
        folder.note("and is opened again")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for number in theirs:
            os.close(number)
        folder.close()
    assert sorted(path.name for path in folder.path.iterdir()) == ["another.json", "notes.jsonl", "whole.json"]
    assert len((folder.path / "notes.jsonl").read_text().splitlines()) == 2


def test_what_goes_elsewhere_is_told_once_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").write_text("no folder")
    monkeypatch.setattr(writer, "MAX_ELSEWHERE", 400)
    folder = RankFolder(tmp_path / "run", 3, [str(tmp_path / "other")])
    folder.note("one")
    folder.note("two")
    with pytest.raises(OSError, match="No space left on device"):
        folder.write("large.json", "x" * 400)
    folder.close()
    other = tmp_path / "other" / "rank_0003"
    lines = (other / "notes.jsonl").read_text().splitlines()
    assert ["one" in line for line in lines] == [True, False, False] and "two" in lines[-1]
    assert "the run's folder could not be written any more: Not a directory" in lines[1]
    assert [path.name for path in other.iterdir()] == ["notes.jsonl"]
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_elses_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "theirs")
    kept = Places(tmp_path / "missing" / "rank_0000", [tmp_path / "other" / "rank_0000"])
    with pytest.raises(OSError, match="No such file"):
        kept.write("ended.json", b"{}")
    kept.close()
    assert not list((tmp_path / "theirs").glob("*/*"))


def test_a_descriptor_that_is_ours_no_more_is_not_closed(tmp_path: Path, taken_over: Callable[[int], Path]) -> None:
    file = Descriptor(tmp_path / "ours", os.O_WRONLY | os.O_CREAT)
    taken_over(file.number)
    assert file.status() is None
    file.close()
    os.fstat(file.number)
