"""`leakscope inspect`: take a heap snapshot of a running job and report on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from leakscope_cli.argv import check_run_folder
from leakscope_cli.console import note, tell_or_fail
from leakscope_cli.outputs import TEXT, for_stdout
from leakscope_cli.shared import newest_run, read_and_judge

from leakscope.errors import LeakscopeError
from leakscope.report.formats import format_named
from leakscope.run.live import LiveRank, ask, is_over, live_ranks
from leakscope.run.writer import INTERIM, make_private

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.run.model import Run

_POLL_S = 0.1
"""Seconds between two readings of what the ranks have answered."""


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
    if folder is None:
        folder = newest_run()
        note(f"the newest run is {folder}")
    check_run_folder(folder, "inspect")
    if is_over(live_ranks(folder)):
        raise LeakscopeError(f"the run in {folder} has ended; see `leakscope report {folder}`")
    number = ask(folder)
    if no_wait:
        tell_or_fail(f"requested heap snapshot {number} of {folder}; see `leakscope report {folder}` once it is taken")
        return
    ranks = wait_for(folder, number, timeout, time.monotonic, time.sleep)
    silent = [rank for rank in ranks if not rank.has_answered(number)]
    if all(rank.process is None for rank in ranks):
        raise LeakscopeError(f"no rank of the run in {folder} is recording yet: none has imported torch")
    into = _interim(folder, ranks, number)
    run, findings = report_so_far(folder, into)
    told, painted = for_stdout(format_named(TEXT), run, findings, page=str(into / "report.html"))
    assert isinstance(told, str)  # as for the text
    tell_or_fail(told, painted)
    if silent:
        raise LeakscopeError(_silence(silent, timeout))
    ctx.exit(0)


def wait_for(
    folder: Path, asked: int, timeout_s: float, now: Callable[[], float], sleep: Callable[[float], None]
) -> Sequence[LiveRank]:
    """The ranks, once all have answered what was asked, or once so long has passed."""
    deadline = now() + timeout_s
    while True:
        ranks = live_ranks(folder)
        if all(rank.has_answered(asked) for rank in ranks) or now() >= deadline:
            return ranks
        sleep(_POLL_S)


def _interim(folder: Path, ranks: Sequence[LiveRank], asked: int) -> Path:
    """Where the report goes: by the request up to which all that answered have, so that who asked at once finds one."""
    answered = (rank.answer.asked for rank in ranks if rank.answer is not None and rank.answer.asked >= asked)
    return folder / INTERIM / f"{min(answered, default=asked):04d}"


def report_so_far(folder: Path, into: Path) -> tuple[Run, Findings]:
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


def _silence(silent: Sequence[LiveRank], timeout: float) -> str:
    first = silent[0]
    who = f"rank {first.number}" + (f" and {len(silent) - 1} more" if len(silent) > 1 else "")
    have = "has" if len(silent) == 1 else "have"
    if first.process is None:
        return f"{who} {have} not responded within {timeout:g} s: not recording yet"
    return (
        f"{who} {have} not responded within {timeout:g} s, for example in native code that holds the GIL; "
        f"rank {first.number} is process {first.process.number} on {first.process.machine}"
    )
