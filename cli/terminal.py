"""What does the terminal take: how wide is it, which colours and links? The text stays what it is beneath them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from leakscope.report.text.lines import WIDTH

if TYPE_CHECKING:
    from rich.text import Text

    from leakscope.record.model import Run

NARROWEST, WIDEST = 60, 120
"""Columns between which the text is set, however narrow or wide the terminal is; chosen."""
DUMB = ("dumb", "unknown")
"""TERM of what moves no cursor and has no colours."""
_LINK_PROGRAMS = ("iTerm.app", "WezTerm", "vscode", "Hyper", "ghostty", "Tabby", "rio", "mintty", "WarpTerminal")
"""TERM_PROGRAM of terminals that open links (OSC 8); the others print them as text, or show nothing."""
_LINK_TERMS = ("xterm-kitty", "xterm-ghostty", "foot", "foot-extra", "alacritty", "contour")
"""TERM of such terminals."""
_LINK_MARKS = ("KITTY_WINDOW_ID", "WT_SESSION", "KONSOLE_VERSION", "ALACRITTY_WINDOW_ID", "DOMTERM")
"""Variables that such terminals set."""
_VTE = 5000
"""VTE_VERSION of the first VTE (GNOME Terminal, Tilix, ...) that opens links: 0.50."""
STYLES: tuple[tuple[str, str], ...] = (
    (r"`[^`\n]+`", "cyan"),
    (r"^[A-Z][a-z]+:?(?= )", "bold"),
    (r"^.+\n=+$", "bold"),
    (r"^\d+\. .+$", "bold"),
    (r"^   (?:cut|edit|advice|freed by|made at|added at|suggestion|cycle|seen|see)\b(?= )", "bold"),
    (r"^ +\d+ \| .*$", "dim"),
    (r"^ +(?:adds|edit) +\d+ \| .*$", "yellow"),
    (r"^ +> (?:holds|adds|edit) +\d+ \| .*$", "bold red"),
    (r"^ {13}\+.*$", "green"),
    (r"^ {13}-.*$", "red"),
    (r"^   (?:[┬├]─|╰→|[|`]-|│|\|)", "dim"),
    (r"<- cut here", "bold red"),
    (r"measured [\d.]+(?: [KMGT]?i?B)? of [\d.]+ [KMGT]?i?B", "green"),
    (r"^! .+$", "red"),
    (r"^(?:Failed|Hung|Memory)\b", "bold red"),
    (r"^Verdict:?\s+(?P<word>LEAKS)\b", "bold red"),
    (r"^Verdict:?\s+(?P<word>CLEAN)\b", "bold green"),
    (r"^Verdict:?\s+(?P<word>INCONCLUSIVE)\b", "bold yellow"),
)
"""Pattern to the style of what it finds, of its group `word` where it has one; a later one is laid over an earlier."""


@dataclass(frozen=True)
class Terminal:
    """What stdout, or another stream, can show."""

    width: int = WIDTH
    colour: bool = False
    links: bool = False


def terminal_of(stream: TextIO | None, environ: Mapping[str, str]) -> Terminal:
    """`NO_COLOR` and `TERM=dumb` switch colours off, `FORCE_COLOR` on; no terminal has none, and 110 columns."""
    is_terminal = stream is not None and not stream.closed and stream.isatty()
    plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") in DUMB
    colour = not plain and (is_terminal or bool(environ.get("FORCE_COLOR")))
    if not is_terminal:
        return Terminal(colour=colour)
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    return Terminal(min(max(columns, NARROWEST), WIDEST), colour, _takes_links(environ))


def _takes_links(environ: Mapping[str, str]) -> bool:
    if environ.get("TERM") in DUMB or "TMUX" in environ or "STY" in environ:
        return False
    vte = environ.get("VTE_VERSION", "")
    return (
        environ.get("TERM_PROGRAM") in _LINK_PROGRAMS
        or environ.get("TERM") in _LINK_TERMS
        or any(environ.get(mark) for mark in _LINK_MARKS)
        or (vte.isdigit() and int(vte) >= _VTE)
    )


def stdout_terminal() -> Terminal:
    """What stdout is now."""
    return terminal_of(sys.stdout, os.environ)


def files_of(run: Run) -> dict[str, Path]:
    """Files as the text names them to where they lie: the page, and those of the user's source that are there."""
    page = [os.path.join(run.folder, "report.html")] if run.folder else []
    return {name: Path(name).absolute() for name in (*run.sources, *page) if os.path.isfile(name)}


def painted(text: str, terminal: Terminal, files: Mapping[str, Path]) -> str:
    """The text with colours and links as far as the terminal takes them; without their codes it is what it was."""
    if not terminal.colour and not terminal.links:
        return text
    from rich.color import ColorSystem
    from rich.console import Console
    from rich.text import Text

    told = Text(text, end="")
    if terminal.colour:
        _colour(told)
    if terminal.links:
        _link(told, files)
    styled = told.render(Console(file=StringIO()))
    return "".join(s.style.render(s.text, color_system=ColorSystem.STANDARD) if s.style else s.text for s in styled)


def _colour(told: Text) -> None:
    for pattern, style in STYLES:
        for match in re.finditer(pattern, told.plain, re.MULTILINE):
            told.stylize(style, *match.span("word" if "word" in match.re.groupindex else 0))


def _link(told: Text, files: Mapping[str, Path]) -> None:
    if not files:
        return
    longest_first = "|".join(re.escape(name) for name in sorted(files, key=len, reverse=True))
    for match in re.finditer(rf"(?<![\w/.-])({longest_first})(?::\d+)?(?![\w/-])", told.plain):
        told.stylize(f"link {files[match[1]].as_uri()}", *match.span())
