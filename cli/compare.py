"""`leakscope compare`: what leaks in one run and not in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from leakscope_cli.argv import check_run_folder
from leakscope_cli.console import note, tell_or_fail
from leakscope_cli.shared import HORIZON, MIN_BYTES, Policy, Size, read_and_judge

from leakscope.errors import LeakscopeError
from leakscope.run.writer import write_named

FORMATS = ("text", "json", "markdown", "html")
"""As `leakscope.report.compare` has them, which is imported when the runs have been read."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--worse",
    type=click.FloatRange(min=1),
    default=1.5,
    metavar="FACTOR",
    help="Growth ratio from which on a leak counts as worse [default: 1.5].",
)
@click.option("--min-bytes", type=Size(), metavar="SIZE", help=MIN_BYTES)
@click.option("--horizon", type=click.IntRange(min=1), metavar="N", help=HORIZON)
@click.option("--as", "form", type=click.Choice(FORMATS), default="text", help="Output format [default: text].")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE instead of stdout."
)
@click.pass_context
def compare(
    ctx: click.Context, /, base: Path, new: Path, worse: float, form: str, output: Path | None, **thresholds: Any
) -> None:
    """Compare two recorded runs: which leaks are new, worse, persisting, better or fixed.

    Leaks are matched by fingerprint. Baselines and suppressions apply as recorded with each run. --min-bytes and
    --horizon replace those of both runs.

    Exit status: 0, or 23 if a leak of NEW is new or worse; 2 if one of the runs is inconclusive.
    """
    check_run_folder(base, "compare")
    check_run_folder(new, "compare")
    policy = Policy(**thresholds)
    before, after = read_and_judge(base, policy), read_and_judge(new, policy)
    from leakscope.findings.suppressions import Judged
    from leakscope.findings.suppressions import compare as compared
    from leakscope.report import compare as report

    comparison = compared(Judged(*before), Judged(*after), worse)
    text = report.FORMATS[form](comparison)
    if output is None:
        tell_or_fail(text)
    else:
        try:
            write_named(output, text.encode())
        except OSError as error:
            raise LeakscopeError(f"cannot write {output}: {error.strerror}") from None
    if not comparison.could_be_judged:
        from leakscope.report.compare import headline

        note(f"{headline(comparison)}; record it again")
    ctx.exit(comparison.exit_status)
