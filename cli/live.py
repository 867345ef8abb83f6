"""`leakscope status` and `leakscope inspect`: the progress of a running job, and a report on it so far."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from leakscope_cli.console import DUMB, in_encoding_of, print_or_fail
from leakscope_cli.outputs import TEXT, render_for_stdout
from leakscope_cli.recorded import read_and_judge, run_folder

from leakscope.errors import LeakscopeError
from leakscope.report.formats import format_named
from leakscope.report.rendering import Line, fitting, laid_out, width_of
from leakscope.run.live import LiveRank, is_over, live_ranks, request_snapshot
from leakscope.run.status import RankStatus, RunStatus, status_of
from leakscope.run.writer import INTERIM, make_private
from leakscope.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from rich.table import Table

    from leakscope.findings.model import Findings
    from leakscope.run.model import Run

HEADS = ("rank", "process", "state", "step", "each", "last step", "counted", "a step", "snapshots", "last snapshot")
_RIGHT = ("rank", "process", "step", "each", "counted", "a step", "snapshots")
_COLOURS = {"stuck": "bold red", "raised": "red", "killed": "red", "hung": "red", "lost": "red", "looking": "cyan"}
_HIDDEN_FIRST = ("process", "snapshots", "last snapshot", "each", "last step")
"""Columns hidden on a narrow terminal, in this order."""
_OTHER_LINES = 6
"""Lines of the terminal not used by rows of the table."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option("--watch/--once", default=None, help="Refresh until the run ends [default on a terminal], or print once.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=1.0,
    metavar="SECONDS",
    help="Time between refreshes [default: 1].",
)
@click.option("--json", "as_json", is_flag=True, help="Print once, as JSON.")
def status(folder: Path | None, watch: bool | None, every: float, as_json: bool) -> None:
    """Show the steps, memory, trend and heap snapshots of each rank of a RUN [default: the newest run].

    Only reads the folder of the run: the job is not disturbed, and may have ended. A rank is `stuck` if its step takes
    longer than 30 s and longer than ten previous steps. Ctrl-C exits with status 0.
    """
    folder = run_folder(folder, "status")
    can_watch = sys.stdout.isatty() and os.environ.get("TERM") not in DUMB
    if watch and (as_json or not can_watch):
        raise LeakscopeError("--watch requires a terminal and cannot be combined with --json")
    progress = status_of(folder)
    if as_json:
        print_or_fail(json.dumps({"format": 1, **asdict(progress)}, indent=2))
    elif (can_watch if watch is None else watch) and progress.goes_on:
        _watch(folder, every)
    else:
        print_or_fail(as_text(progress, shutil.get_terminal_size().columns))


def _watch(folder: Path, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    try:
        with Live(console=Console(), auto_refresh=False, transient=True) as shown:
            while (progress := status_of(folder)).goes_on:
                size = shutil.get_terminal_size()
                shown.update(_live_table(progress, size.lines - _OTHER_LINES, size.columns), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        progress = status_of(folder)
    print_or_fail(as_text(progress, shutil.get_terminal_size().columns))


def as_text(progress: RunStatus, columns: int = 80) -> str:
    """The status of all ranks; the table is at most `columns` wide."""
    rows = [*map(cells, progress.ranks)]
    shown = fitting(HEADS, rows, _HIDDEN_FIRST, columns)
    table = _table(shown)
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    lines: list[Line] = [*_headline(progress), "", table, *_hidden_columns(shown), *_footer(progress)]
    text: str = in_encoding_of(sys.stdout, "\n".join(laid_out(lines, max(columns, width_of(table)))))
    return text


def _table(shown: Sequence[int]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="", title_justify="left")
    for place in shown:
        table.add_column(HEADS[place], justify="right" if HEADS[place] in _RIGHT else "left", no_wrap=True)
    return table


def _hidden_columns(shown: Sequence[int]) -> Iterator[str]:
    missing = [head for place, head in enumerate(HEADS) if place not in shown]
    if missing:
        yield f"hidden in a terminal this narrow: {', '.join(missing)}; use --json for all"


def _live_table(progress: RunStatus, most: int, columns: int) -> Table:
    """The table that is refreshed in place, at most `most` ranks: those in trouble first."""
    from rich.text import Text

    shown = fitting(HEADS, [*map(cells, progress.ranks)], _HIDDEN_FIRST, columns)
    table = _table(shown)
    table.title, table.caption = Text("\n".join(_headline(progress))), Text("\n".join(_footer(progress)).strip())
    table.caption_justify = "left"
    first = sorted(progress.ranks, key=lambda rank: (rank.state not in _COLOURS, rank.rank))
    ranks = sorted(first[: max(most, 1)], key=lambda rank: rank.rank)
    for rank in ranks:
        row = cells(rank)
        table.add_row(*(row[place] for place in shown), style=_COLOURS.get(rank.state, ""))
    if len(ranks) < len(progress.ranks):
        table.add_row("", f"and {len(progress.ranks) - len(ranks)} more ranks: --once shows all")
    return table


def _headline(progress: RunStatus) -> Iterator[str]:
    state = "running" if progress.goes_on else "finished"
    of = f" of {progress.steps:,}" if progress.steps is not None else ""
    step = max((rank.step for rank in progress.ranks), default=0)
    yield f"{' '.join(progress.command)}: {state}, step {step:,}{of}"
    yield f"{progress.folder}, started {progress.started}" if progress.started else progress.folder


def _footer(progress: RunStatus) -> Iterator[str]:
    if progress.interim or not progress.goes_on:
        yield ""
    if progress.interim:
        yield f"report so far: {progress.interim}"
    if not progress.goes_on:
        yield f"see `leakscope report {progress.folder}`"


def cells(rank: RankStatus) -> tuple[str, ...]:
    """The cells of a rank."""
    ago = "" if rank.since_step is None else f"{seconds_text(rank.since_step)} ago"
    snapshot = "" if rank.last_look_step is None else f"at step {rank.last_look_step:,}"
    since_snapshot = f", {seconds_text(rank.since_look)} ago" if rank.since_look is not None and ago else ""
    rate = rank.bytes_per_step
    return (
        str(rank.rank),
        "" if rank.process is None else str(rank.process),
        rank.state,
        f"{rank.step:,}",
        "" if rank.step_seconds is None else seconds_text(rank.step_seconds),
        ago if rank.step or not ago else f"none yet, recording for {ago.removesuffix(' ago')}",
        "" if rank.counted_bytes is None else bytes_text(rank.counted_bytes),
        "" if rate is None else f"{'+' if rate >= 0 else '-'}{bytes_text(abs(rate))}",
        str(rank.looks),
        snapshot + since_snapshot,
    )


_POLL_S = 0.1
"""Seconds between two checks for answers."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="SECONDS",
    help="How long to wait for all ranks [default: 60].",
)
@click.option("--no-wait", is_flag=True, help="Request the snapshot and return; `leakscope report` reports on it.")
@click.pass_context
def inspect(ctx: click.Context, /, folder: Path | None, timeout: float, no_wait: bool) -> None:
    """Take a heap snapshot of a running RUN and report on it so far [default: the newest run].

    All ranks take the snapshot after the same step, whatever the budget. A rank whose step does not end is inspected
    in the middle of it, with the stacks of its threads. The report goes to RUN/interim; the final report is not
    affected.

    Exit status: 0 if all ranks responded; 2 if one did not, if the run has ended, or if there is no run.
    """
    folder = run_folder(folder, "inspect")
    if is_over(live_ranks(folder)):
        raise LeakscopeError(f"the run in {folder} has ended; see `leakscope report {folder}`")
    number = request_snapshot(folder)
    if no_wait:
        print_or_fail(f"requested heap snapshot {number} of {folder}; see `leakscope report {folder}` once it is taken")
        return
    ranks = _wait_for_answers(folder, number, timeout)
    silent = [rank for rank in ranks if not rank.has_answered(number)]
    if all(rank.process is None for rank in ranks):
        raise LeakscopeError(f"no rank of the run in {folder} is recording yet: none has imported torch")
    into = _interim_folder(folder, ranks, number)
    run, findings = _report_so_far(folder, into)
    text, is_styled = render_for_stdout(format_named(TEXT), run, findings, page=str(into / "report.html"))
    assert isinstance(text, str)
    print_or_fail(text, is_styled)
    if silent:
        raise LeakscopeError(_no_answer_text(silent, timeout))
    ctx.exit(0)


def _wait_for_answers(folder: Path, number: int, timeout_s: float) -> Sequence[LiveRank]:
    """Wait until all ranks have answered the request of this number, at most `timeout_s`; return them."""
    deadline = time.monotonic() + timeout_s
    while True:
        ranks = live_ranks(folder)
        if all(rank.has_answered(number) for rank in ranks) or time.monotonic() >= deadline:
            return ranks
        time.sleep(_POLL_S)


def _interim_folder(folder: Path, ranks: Sequence[LiveRank], number: int) -> Path:
    """The folder of the report, named after the newest request that all answering ranks have answered."""
    answered = (rank.answer.asked for rank in ranks if rank.answer is not None and rank.answer.asked >= number)
    return folder / INTERIM / f"{min(answered, default=number):04d}"


def _report_so_far(folder: Path, into: Path) -> tuple[Run, Findings]:
    """Judge what a run has recorded, and write `findings.json` and `report.html` of that into another folder."""
    from leakscope.report import write

    run, findings = read_and_judge(folder)
    try:
        make_private(into.parent)
        make_private(into)
        write(run, findings, into)
    except OSError as error:
        raise LeakscopeError(f"cannot write to {into}: {error.strerror}") from None
    return run, findings


def _no_answer_text(silent: Sequence[LiveRank], timeout: float) -> str:
    first = silent[0]
    who = f"rank {first.number}" + (f" and {len(silent) - 1} more" if len(silent) > 1 else "")
    have = "has" if len(silent) == 1 else "have"
    if first.process is None:
        return f"{who} {have} not responded within {timeout:g} s: not recording yet"
    return (
        f"{who} {have} not responded within {timeout:g} s, for example in native code that holds the GIL; "
        f"rank {first.number} is process {first.process.number} on {first.process.machine}"
    )
