"""Files of a run are private, never written into files of the script, and contain no partial lines."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leakscope.recorder.steps.peers import RankStateFile
from leakscope.run.descriptors import Descriptor, GrowingFile, open_private, write_whole, write_whole_for_all
from leakscope.run.writer import RankFolder, make_private, prepare_folder, write_named, write_run


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


def test_lines_are_not_written_into_a_file_of_the_script(tmp_path: Path, taken_over: Callable[[int], Path]) -> None:
    file = GrowingFile(tmp_path / "lines")
    file.add(b"1\n")
    theirs = taken_over(number_of(file))
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.add(b"2\n")
    assert (tmp_path / "lines").read_bytes() == b"1\n" and theirs.read_bytes() == b""
    file.close()
    assert theirs.exists() and os.fstat(os.open(theirs, os.O_RDONLY)), "nor is it closed"


def test_the_state_is_not_written_into_a_file_of_the_script(tmp_path: Path, taken_over: Callable[[int], Path]) -> None:
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


def test_a_partly_written_line_is_removed(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = GrowingFile(tmp_path / "lines")
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


@pytest.mark.process
def test_a_file_never_has_the_number_of_a_standard_stream(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)
        number = Descriptor(tmp_path / "steps.jsonl", os.O_WRONLY | os.O_CREAT).number
        open_now = [n for n in range(3) if os.path.exists(f"/proc/self/fd/{n}")]
        os._exit(0 if number > 2 and not open_now and not os.get_inheritable(number) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
