"""Terminal output has colours, links and the terminal's width; pipes and ASCII terminals do not."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest
from leakscope_cli.console import NARROWEST, WIDEST, columns_of, console_of, files_of, in_encoding_of, style_text
from rich.console import Console
from support import SAMPLES, examples

from leakscope.report.rendering import WIDTH, cells
from leakscope.report.text.page import render

CODES = re.compile(r"\x1b\[[\d;]*m|\x1b\]8;[^\x1b]*\x1b\\")


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(**environ: str) -> Console:
    """A console that takes colours and links, whatever the tests run in."""
    return Console(file=Screen(), width=WIDTH, color_system="standard", force_terminal=True, _environ=environ)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", examples.ALL)
def test_beneath_its_colours_the_text_is_what_it_was(name: str, verbose: bool) -> None:
    run, findings = examples.ALL[name]()
    text = render(run, findings, verbose=verbose)
    shown = style_text(text, terminal(), {file: Path("/there", file) for file in run.sources})
    assert shown != text and CODES.sub("", shown) == text
    assert style_text(text, console_of(io.StringIO()), {}) == text


def test_the_verdict_and_the_guilty_line_stand_out() -> None:
    shown = style_text(render(*examples.leaking()), terminal(), {})
    assert re.search(r"\x1b\[1;31m *LEAKS\x1b\[0m", shown)
    assert re.search(r"\x1b\[1;31m +> holds 12 \|     self.losses.append\(loss\)\x1b\[0m", shown)
    assert re.search(r"\x1b\[1;32m *CLEAN\x1b\[0m", style_text(render(*examples.clean()), terminal(), {}))


def test_places_are_links_to_files_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    run, _ = examples.leaking()
    assert files_of(run) == {"train.py": tmp_path / "train.py"}, "stage.py is not there"
    shown = style_text("at train.py:12, my_train.py:3, a/train.py:9", terminal(), files_of(run))
    link = re.escape((tmp_path / "train.py").as_uri())
    assert re.fullmatch(
        rf"at \x1b\]8;id=\d+;{link}\x1b\\train.py:12\x1b\]8;;\x1b\\, my_train.py:3, a/train.py:9", shown
    )


def test_no_terminal_has_no_colour_and_a_width_of_its_own() -> None:
    for stream in (io.StringIO(), None):
        console = console_of(stream)
        assert (console.color_system, columns_of(console)) == (None, WIDTH)


@pytest.mark.parametrize(("columns", "width"), [(20, NARROWEST), (90, 90), (300, WIDEST)])
def test_the_width_is_the_terminals_within_reason(columns: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert columns_of(console_of(Screen())) == width


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1"])
def test_a_trace_is_drawn_in_ascii_where_there_are_no_boxes(encoding: str) -> None:
    text = render(*examples.leaking(), verbose=True)
    shown = in_encoding_of(io.TextIOWrapper(io.BytesIO(), encoding=encoding), text)
    assert "   `- storage, 64.00 KiB" in shown and "   |- Trainer" in shown and "   |    v .losses   <- cut" in shown
    assert "\\u" not in shown and [*map(cells, shown.splitlines())] == [*map(cells, text.splitlines())]
    assert in_encoding_of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), text) == text


def shown_in_a_terminal(columns: int, *words: str, **environ: str) -> str:
    """What a command writes to a pseudo-terminal."""
    child, screen = pty.fork()
    if child == 0:
        os.environ.pop("COLUMNS", None)  # it would count for more than the terminal
        os.environ.update({"TERM": "xterm-256color", **environ})
        os.execv(sys.executable, [sys.executable, "-m", "leakscope", *words])
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    written = b""
    try:
        while piece := os.read(screen, 65536):
            written += piece
    except OSError:  # Linux says so of a terminal that everybody has closed
        pass
    os.close(screen)
    assert os.waitpid(child, 0)[1] == 0, written.decode()
    return written.decode().replace("\r\n", "\n")


@pytest.mark.process
def test_a_real_terminal() -> None:
    columns = 60
    shown = shown_in_a_terminal(columns, "report", str(SAMPLES / "p2p_pipeline" / "stage-backward-cycle"))
    lines = CODES.sub("", shown).splitlines()
    assert re.search(r"\x1b\[1;31m[^\x1b]*LEAKS\x1b", shown) and columns - 9 < max(map(cells, lines)) <= columns
    assert lines[0] == "Verdict  LEAKS: 1 distinct leak" and "exit status" not in lines[-1], "report returns 0"


@pytest.mark.process
def test_a_real_terminal_without_colour() -> None:
    words = ("report", str(SAMPLES / "p2p_pipeline" / "none"))
    shown = shown_in_a_terminal(100, *words, NO_COLOR="1")
    assert "\x1b[1m" in shown and not re.search(r"\x1b\[(?:\d;)?3\d", shown), "bold, but not in colour"
