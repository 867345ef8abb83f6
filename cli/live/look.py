"""`leakscope look`: ask a run that goes on for a look, and judge what it has recorded so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from leakscope_cli.console import note, tell_or_fail
from leakscope_cli.first_mistakes import check_run_folder
from leakscope_cli.outputs import TEXT, for_stdout
from leakscope_cli.shared import read_and_judge
from leakscope_cli.targets import newest_run

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
    help="How long to wait for the answer of all ranks (60).",
)
@click.option("--no-wait", is_flag=True, help="Ask, and leave the judging to `leakscope report`.")
@click.pass_context
def look(ctx: click.Context, /, folder: Path | None, timeout: float, no_wait: bool) -> None:
    """Ask a RUN that goes on for a look, and report what it has recorded so far; without RUN the newest one.

    All ranks look after the same step, whatever the budget says; a rank whose step does not end is looked at in the
    middle of it, and tells the stacks of its threads. The report goes into RUN/interim, and that of the run's end stays
    what it will be.

    Exit status: 0 where all ranks have answered; 2 where one has not, where the run has ended, or where there is none.
    """
    if folder is None:
        folder = newest_run()
        note(f"the newest run is {folder}")
    check_run_folder(folder, "look")
    if is_over(live_ranks(folder)):
        raise LeakscopeError(f"the run in {folder} has ended; `leakscope report {folder}` tells it")
    number = ask(folder)
    if no_wait:
        tell_or_fail(f"asked for look {number} at {folder}; `leakscope report {folder}` tells it once it is taken")
        return
    ranks = wait_for(folder, number, timeout, time.monotonic, time.sleep)
    silent = [rank for rank in ranks if not rank.has_answered(number)]
    if all(rank.process is None for rank in ranks):
        raise LeakscopeError(f"no rank of the run in {folder} records yet: it has not come to `import torch`")
    into = _interim(folder, ranks, number)
    run, findings = report_so_far(folder, into)
    told, painted = for_stdout(format_named(TEXT), run, findings, page=str(into / "report.html"))
    assert isinstance(told, str)  # as of the text
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
        return f"{who} {have} not answered within {timeout:g} s: nothing is recorded there yet"
    return (
        f"{who} {have} not answered within {timeout:g} s, as where native code lets no other thread run; "
        f"rank {first.number} is process {first.process.number} on {first.process.machine}"
    )
