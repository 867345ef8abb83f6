"""How far are the ranks? A bar on a terminal, a line a minute where there is none; read from the run's folder."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from leakscope_cli.terminal import DUMB

from leakscope.options import Options
from leakscope.units import bytes_text

_POLL_S = 0.25
"""Seconds between two readings for a bar: the eye follows it, and it costs nothing."""
_NOTE_S = 60.0
"""Seconds between two lines where there is no bar: a log of a night has some hundred of them."""

_WIDE = 110
"""Columns from which on there is room for a bar beside the words."""


@dataclass(frozen=True)
class Standing:
    """Where the ranks are."""

    step: int = 0
    """Of the rank that is furthest."""
    counted: int | None = None
    """Bytes that the rank with most had counted at its last step."""
    per_step: float | None = None
    """By which that rank's rose a step since warm-up; None before."""
    looks: int = 0
    """Of the rank that was looked at most."""
    ranks: int = 1
    steps: int | None = None
    """At which the run ends."""

    def __str__(self) -> str:
        """As in `step 1,240 of 2,000, 3.20 GiB counted (+1.20 MiB a step), 4 looks`."""
        of = " at most" if self.ranks > 1 else ""
        sign = "+" if (self.per_step or 0) >= 0 else "-"
        rate = "" if self.per_step is None else f" ({sign}{bytes_text(abs(self.per_step))} a step)"
        counted = "" if self.counted is None else f", {bytes_text(self.counted)} counted{of}{rate}"
        end = "" if self.steps is None else f" of {self.steps:,}"
        return f"step {self.step:,}{end}{counted}, {self.looks} look{'' if self.looks == 1 else 's'}"


@dataclass
class Following:
    """Reads what ranks append to their files, and nothing twice."""

    folder: Path
    warmup: int
    steps: int | None = None
    _tails: dict[Path, _Tail] = field(default_factory=dict)

    def read(self) -> Standing:
        """Where they are now."""
        for path in self.folder.glob("rank_*/steps.jsonl"):
            self._tails.setdefault(path, _Tail(path)).read(self.warmup)
        begun = [tail for tail in self._tails.values() if tail.step]
        if not begun:
            return Standing()
        most = max(begun, key=lambda tail: tail.last[1] if tail.last else -1)
        return Standing(
            step=max(tail.step for tail in begun),
            counted=most.last[1] if most.last else None,
            per_step=most.per_step,
            looks=max(sum(1 for _ in tail.path.parent.glob("heap_*.json")) for tail in begun),
            ranks=len(begun),
            steps=self.steps,
        )


@dataclass
class _Tail:
    """The end of one rank's steps."""

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
        except OSError:  # the folder is gone
            return
        whole = new[: new.rfind(b"\n") + 1]
        self.offset += len(whole)
        lines = whole.splitlines()
        self.step += len(lines)
        if lines and self.first is None and self.step > warmup:
            begin = self.step - len(lines)
            self.first = _counted(lines[max(warmup - begin, 0)])
        if lines:
            self.last = _counted(lines[-1]) or self.last

    @property
    def per_step(self) -> float | None:
        if self.first is None or self.last is None or self.last[0] <= self.first[0]:
            return None
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])


def _counted(line: bytes) -> tuple[int, int] | None:
    try:
        step: dict[str, Any] = json.loads(line)
        number, counted = step["number"], step["counted_bytes"]
    except (ValueError, KeyError, TypeError):
        return None
    return (number, counted) if type(number) is int and type(counted) is int else None


@contextmanager
def progress(options: Options, every: float = _NOTE_S) -> Iterator[None]:
    """Tell while the block runs how far the ranks are; nothing where the run is told to be quiet.

    A single rank prints straight to the terminal, and would print into a bar: there it is a line now and then, too.
    """
    if options.quiet:
        yield
        return
    alone = options.ranks * options.nnodes == 1
    into_the_bar = alone and sys.stdout.isatty() and not options.needs_stdout
    has_bar = sys.stderr.isatty() and os.environ.get("TERM") not in DUMB and not into_the_bar
    with _bar(options) if has_bar else _notes(options, every):
        yield


def follow(following: Following, over: threading.Event, every: float, tell: Callable[[Standing], None]) -> None:
    """Tell every so many seconds where the ranks are, from the first step on, until it is over."""
    while not over.wait(every):
        standing = following.read()
        if standing.step:
            tell(standing)


@contextmanager
def _meanwhile(options: Options, every: float, tell: Callable[[Standing], None]) -> Iterator[None]:
    over = threading.Event()
    following = Following(options.folder, options.warmup, options.steps)
    thread = threading.Thread(target=follow, args=(following, over, every, tell), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _notes(options: Options, every: float) -> AbstractContextManager[None]:
    def tell(standing: Standing) -> None:
        try:
            click.echo(f"[leakscope] {standing}", err=True)
        except OSError:  # nobody can be told; the run goes on
            return

    return _meanwhile(options, every, tell)


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
            _POLL_S,
            lambda standing: bar.update(task, completed=standing.step, description=str(standing)),
        ):
            yield
