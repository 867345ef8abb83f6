"""Output on the terminal: progress, colours, widths, and streams that are closed or full."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from leakscope.errors import LeakscopeError
from leakscope.options import Options
from leakscope.units import bytes_text, plural

if TYPE_CHECKING:
    from rich.console import Console

    from leakscope.run.model import Run


_STDOUT, _STDERR = 1, 2


def open_missing_streams() -> None:
    """Open closed standard streams on /dev/null.

    Otherwise they would be None, and the next opened file would get the number to which C code writes its warnings.
    Child processes still find them closed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def print_text(text: str, is_styled: bool = False) -> str:
    """Write to stdout in its encoding; return the reason if that failed, "" otherwise or if the reader is gone.

    The buffer is discarded then; otherwise Python would report an ignored error at exit and return 120.

    Args:
        text: The text.
        is_styled: Keep its escape sequences.

    """
    try:
        click.echo(in_encoding_of(sys.stdout, text), nl=not text.endswith("\n"), color=is_styled or None)
    except OSError as error:
        _discard(_STDOUT)
        return "" if error.errno == errno.EPIPE else f"cannot write to stdout: {error.strerror}"
    return ""


def print_or_fail(text: str, is_styled: bool = False) -> None:
    """As `print_text`, but raise LeakscopeError if stdout cannot be written."""
    problem = print_text(text, is_styled)
    if problem:
        raise LeakscopeError(problem)


def flush_streams() -> None:
    """Flush the standard streams at exit, ignoring errors."""
    for stream, number in ((sys.stdout, _STDOUT), (sys.stderr, _STDERR)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _discard(number)


def note(text: str, prefix: str = "leakscope:") -> None:
    """Print a one-line note on stderr, with unprintable characters escaped."""
    try:
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        click.echo(f"{prefix} {in_encoding_of(sys.stderr, line)}", err=True)
    except OSError:
        _discard(_STDERR)


_BOX_CHARACTERS = {"┬─": "|-", "├─": "|-", "╰→": "`-", "│": "|", "─": "-", "↓": "v", "→": "->"}
"""Box characters to ASCII of the same width, for encodings that lack one of them."""


def in_encoding_of(stream: TextIO | None, text: str) -> str:
    """Replace what the encoding of the stream lacks: box characters by ASCII, others by escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if not text.isascii() and not _has(encoding, "".join(_BOX_CHARACTERS)):
        for drawn, plain in _BOX_CHARACTERS.items():
            text = text.replace(drawn, plain)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _has(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _discard(number: int) -> None:
    """Discard what is left in the buffers of a stream."""
    with suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), number)


NARROWEST, WIDEST = 60, 120
"""Limits of a report's width on a terminal (heuristic: traces need 60, long lines are hard to read)."""
DUMB = ("dumb", "unknown")
"""Values of TERM without cursor movement and colour."""
STYLES: tuple[tuple[str, str], ...] = (
    (r"`[^`\n]+`", "cyan"),
    (r"^[A-Z][a-z]+:?(?= )", "bold"),
    (r"^.+\n=+$", "bold"),
    (r"^\d+\. .+$", "bold"),
    (r"^   (?:Cut|Advice|Freed by|Made at|Added at|Cycle|Seen|See|Verified fix|Proof):", "bold"),
    (r"^   Added at \([a-z ]+\):", "bold"),
    (r"^ +\d+ \| .*$", "dim"),
    (r"^ +adds +\d+ \| .*$", "yellow"),
    (r"^ +> (?:holds|adds) +\d+ \| .*$", "bold red"),
    (r"^ {13}@@ .*$", "cyan"),
    (r"^ {13}\+.*$", "green"),
    (r"^ {13}-.*$", "red"),
    (r"^   (?:[┬├]─|╰→|[|`]-|│|\|)", "dim"),
    (r"<- cut here", "bold red"),
    (r"measured [\d.]+(?: [KMGT]?i?B)? of [\d.]+ [KMGT]?i?B", "green"),
    (r"^! .+$", "red"),
    (r"^(?:Failed|Hung|Memory)\b", "bold red"),
    (r"^Verdict:?\s+LEAKS\b", "bold red"),
    (r"^Verdict:?\s+CLEAN\b", "bold green"),
    (r"^Verdict:?\s+INCONCLUSIVE\b", "bold yellow"),
)
"""Pattern to the style of its matches; later ones take precedence."""


def console_of(stream: TextIO | None) -> Console:
    """Rich's console for a stream: it decides on colours and links, by NO_COLOR, FORCE_COLOR, TERM and the stream."""
    from rich.console import Console

    return Console(file=StringIO() if stream is None or stream.closed else stream, highlight=False)


def stdout_console() -> Console:
    """The console of the current stdout."""
    return console_of(sys.stdout)


def columns_of(console: Console) -> int:
    """Width of a report: that of the terminal within limits, else always the same."""
    on_terminal = console.file.isatty()
    if on_terminal:
        return min(max(console.width, NARROWEST), WIDEST)
    from leakscope.report.rendering import WIDTH  # not at start-up: reports import what a run is made of

    return WIDTH


def files_of(run: Run) -> dict[str, Path]:
    """Existing files as the text names them, by their path: the page and the user's sources."""
    page = [os.path.join(run.folder, "report.html")] if run.folder else []
    return {name: Path(name).absolute() for name in (*run.sources, *page) if os.path.isfile(name)}


def style_text(text: str, console: Console, files: Mapping[str, Path]) -> str:
    """The text with colours and links if the console has them."""
    if console.color_system is None:
        return text
    from rich.text import Text

    styled = Text(text, end="")
    for pattern, style in STYLES:
        styled.highlight_regex(f"(?m){pattern}", style)
    if files:
        longest_first = "|".join(re.escape(name) for name in sorted(files, key=len, reverse=True))
        for match in re.finditer(rf"(?<![\w/.-])({longest_first})(?::\d+)?(?![\w/-])", styled.plain):
            styled.stylize(f"link {files[match[1]].as_uri()}", *match.span())
    with console.capture() as captured:
        console.print(styled, soft_wrap=True, end="")
    return captured.get()


_POLL_INTERVAL_S = 0.25
"""Seconds between updates of the progress bar."""
_NOTE_INTERVAL_S = 60.0
"""Seconds between progress lines without a bar: some hundred in a log of a night."""

_WIDE = 110
"""Width from which on there is room for a bar."""


@dataclass(frozen=True)
class RunProgress:
    """Progress of the ranks."""

    step: int = 0
    """Highest step of any rank."""
    counted: int | None = None
    """Counted bytes of the rank with most memory, at its last step."""
    per_step: float | None = None
    """Growth of that rank per step since warm-up; None during it."""
    snapshots: int = 0
    """Most heap snapshots of any rank."""
    ranks: int = 1
    steps: int | None = None
    """The step at which the run ends."""

    def __str__(self) -> str:
        """As in `step 1,240 of 2,000, 3.20 GiB counted (+1.20 MiB a step), 4 snapshots`."""
        of = " at most" if self.ranks > 1 else ""
        sign = "+" if (self.per_step or 0) >= 0 else "-"
        rate = "" if self.per_step is None else f" ({sign}{bytes_text(abs(self.per_step))} a step)"
        counted = "" if self.counted is None else f", {bytes_text(self.counted)} counted{of}{rate}"
        end = "" if self.steps is None else f" of {self.steps:,}"
        return f"step {self.step:,}{end}{counted}, {plural(self.snapshots, 'snapshot')}"


@dataclass
class ProgressReader:
    """Reads new rows of the ranks' files."""

    folder: Path
    warmup: int
    steps: int | None = None
    _tails: dict[Path, _Tail] = field(default_factory=dict)

    def read(self) -> RunProgress:
        """The current progress."""
        for path in self.folder.glob("rank_*/steps.jsonl"):
            self._tails.setdefault(path, _Tail(path)).read(self.warmup)
        begun = [tail for tail in self._tails.values() if tail.step]
        if not begun:
            return RunProgress()
        most = max(begun, key=lambda tail: tail.last[1] if tail.last else -1)
        return RunProgress(
            step=max(tail.step for tail in begun),
            counted=most.last[1] if most.last else None,
            per_step=most.per_step,
            snapshots=max(sum(1 for _ in tail.path.parent.glob("heap_*.json")) for tail in begun),
            ranks=len(begun),
            steps=self.steps,
        )


@dataclass
class _Tail:
    """Reads the end of one rank's `steps.jsonl`."""

    path: Path
    offset: int = 0
    step: int = 0
    first: tuple[int, int] | None = None
    """(step, bytes) at the first step after warm-up."""
    last: tuple[int, int] | None = None

    def read(self, warmup: int) -> None:
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.offset)
                new = stream.read()
        except OSError:  # the folder was removed
            return
        whole = new[: new.rfind(b"\n") + 1]
        self.offset += len(whole)
        lines = whole.splitlines()
        self.step += len(lines)
        if lines and self.first is None and self.step > warmup:
            begin = self.step - len(lines)
            self.first = _step_and_bytes(lines[max(warmup - begin, 0)])
        if lines:
            self.last = _step_and_bytes(lines[-1]) or self.last

    @property
    def per_step(self) -> float | None:
        if self.first is None or self.last is None or self.last[0] <= self.first[0]:
            return None
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])


def _step_and_bytes(line: bytes) -> tuple[int, int] | None:
    try:
        step: dict[str, Any] = json.loads(line)
        number, counted = step["number"], step["counted_bytes"]
    except (ValueError, KeyError, TypeError):
        return None
    return (number, counted) if type(number) is int and type(counted) is int else None


@contextmanager
def progress(options: Options, every: float = _NOTE_INTERVAL_S) -> Iterator[None]:
    """Show the progress of the ranks while the block runs, unless the run is quiet.

    A bar needs a terminal on stderr that the script does not print to; otherwise there is a line every minute.
    """
    if options.quiet:
        yield
        return
    alone = options.ranks * options.nnodes == 1
    into_the_bar = alone and sys.stdout.isatty() and not options.needs_stdout
    has_bar = sys.stderr.isatty() and os.environ.get("TERM") not in DUMB and not into_the_bar
    with _bar(options) if has_bar else _notes(options, every):
        yield


def poll_progress(
    reader: ProgressReader, over: threading.Event, every: float, show: Callable[[RunProgress], None]
) -> None:
    """Report progress every `every` seconds, from the first step until `over` is set."""
    while not over.wait(every):
        now = reader.read()
        if now.step:
            show(now)


@contextmanager
def _meanwhile(options: Options, every: float, show: Callable[[RunProgress], None]) -> Iterator[None]:
    over = threading.Event()
    reader = ProgressReader(options.folder, options.warmup, options.steps)
    thread = threading.Thread(target=poll_progress, args=(reader, over, every, show), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _notes(options: Options, every: float) -> AbstractContextManager[None]:
    def show(now: RunProgress) -> None:
        try:
            click.echo(f"[leakscope] {now}", err=True)
        except OSError:  # stderr is gone; the run continues
            return

    return _meanwhile(options, every, show)


@contextmanager
def _bar(options: Options) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    drawn = [BarColumn(bar_width=20)] if console.width >= _WIDE else []
    columns = (SpinnerColumn(), TimeElapsedColumn(), *drawn, TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("starting the ranks", total=options.steps)
        with _meanwhile(
            options,
            _POLL_INTERVAL_S,
            lambda now: bar.update(task, completed=now.step, description=str(now)),
        ):
            yield


def reason_of(error: Exception) -> str:
    """Why something could not be written, in a few words."""
    if isinstance(error, MemoryError):
        return "out of memory"
    return (isinstance(error, OSError) and error.strerror) or str(error).partition("\n")[0] or type(error).__name__
