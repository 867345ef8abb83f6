"""A bar on stderr while the ranks work; it reads how far they are from the run's folder."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leakscope.options import Options

_POLL_S = 0.25
"""Seconds between two readings: the eye follows it, and it costs nothing."""


@contextmanager
def progress(options: Options) -> Iterator[None]:
    """Show a bar while the block runs, where there is a terminal that nobody else writes to.

    A single rank prints straight to the terminal, and would print into the bar.
    """
    alone = options.ranks * options.nnodes == 1
    if options.quiet or not sys.stderr.isatty() or (alone and sys.stdout.isatty() and not options.needs_stdout):
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    over = threading.Event()
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("starting the ranks", total=options.steps)

        def follow() -> None:
            counts: dict[Path, tuple[int, int]] = {}
            while not over.wait(_POLL_S):
                step = max((_lines(path, counts) for path in options.folder.glob("rank_*/steps.jsonl")), default=0)
                if step:
                    bar.update(task, completed=step, description=f"step {step}")

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _lines(path: Path, counts: dict[Path, tuple[int, int]]) -> int:
    """Lines of a growing file; only what is new is read."""
    offset, lines = counts.get(path, (0, 0))
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            new = stream.read()
    except OSError:  # the folder is gone
        return lines
    counts[path] = (offset + len(new), lines + new.count(b"\n"))
    return counts[path][1]
