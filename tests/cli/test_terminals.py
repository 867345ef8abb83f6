"""Commands handle closed streams, full disks, unsupported encodings and lack of memory."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from leakscope_cli import main
from leakscope_cli.console import note, print_text
from support import SAMPLES

RUN = str(SAMPLES / "p2p_pipeline" / "stage-backward-cycle")


class Refusing(io.StringIO):
    """A stream that the system refuses to write."""

    encoding = "ascii"

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, "No space left on device")


@pytest.fixture(autouse=True)
def streams_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten is that of the tests."""
    monkeypatch.setattr("leakscope_cli.console._discard", lambda _: None)


LINES = {
    "--help": "cannot write to stdout: No space left on device",
    "--version": "cannot write to stdout: No space left on device",
    "run --help": "operating system error: No space left on device",
    f"report {RUN}": "cannot write to stdout: No space left on device",
    f"report --as json {RUN}": "cannot write to stdout: No space left on device",
    f"compare {RUN} {RUN}": "cannot write to stdout: No space left on device",
}


@pytest.mark.parametrize("line", LINES)
def test_a_full_disk_under_stdout_is_one_sentence_and_status_2(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Refusing(errno.ENOSPC))
    with pytest.raises(SystemExit) as end:
        main(line.split(), prog_name="leakscope")
    assert end.value.code == 2
    assert capsys.readouterr().err == f"leakscope: {LINES[line]}\n"


def test_who_reads_no_further_is_told_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Refusing(errno.EPIPE))
    with pytest.raises(SystemExit) as end:
        main(["report", RUN], prog_name="leakscope")
    assert end.value.code == 0 and capsys.readouterr().err == ""


def test_streams_that_were_closed_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert print_text("nothing") == ""
    note("nothing")
    with pytest.raises(SystemExit) as end:
        main(["report", RUN + "_not"], prog_name="leakscope")
    assert end.value.code == 2


def test_a_note_that_cannot_be_written_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Refusing(errno.ENOSPC))
    note("nothing")


def test_a_note_is_one_line_that_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    note("run é \x1b[2J\n\udcff\u202e")
    assert capsys.readouterr().err == "leakscope: run é \\x1b[2J\\n\\udcff\\u202e\n"


def test_what_an_encoding_lacks_is_written_as_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    assert print_text("run é\udcff → x") == ""
    assert written.buffer.getvalue() == b"run \\xe9\\udcff -> x\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "out of memory"),
        (ImportError("libblas.so: failed to map segment"), ": libblas.so: failed to map segment"),
        (ImportError("\nREAD THIS\n\nlast: why\n"), ": last: why"),
        (PermissionError(13, "Permission denied", "run.json"), " for run.json: Permission denied"),
        (OSError("strange"), ": strange"),
    ],
    ids=str,
)
def test_what_no_command_can_help_is_one_sentence(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setattr("leakscope.run.reader.open_run", fail)
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path)], prog_name="leakscope")
    output = capsys.readouterr().err
    assert end.value.code == 2 and sentence in output and output.count("\n") == 1


@pytest.mark.process
def test_what_was_closed_before_it_began_is_opened_on_nothing(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        closed = 'exec "$@" <&- 2>&-'
        command = ["sh", "-c", closed, "sh", sys.executable, "-m", "leakscope", "report", "--as", "json", RUN]
        assert subprocess.run(command, stdout=out, check=False).returncode == 0
    assert json.loads((tmp_path / "out").read_text())["verdict"] == "leaks"
