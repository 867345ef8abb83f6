"""`leakscope report`: generate a report from a recorded run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from leakscope_cli.argv import check_run_folder
from leakscope_cli.console import note, tell_or_fail
from leakscope_cli.outputs import TEXT, Asked, asked_formats, check_writable, for_stdout, on_stdout, write_files
from leakscope_cli.shared import HORIZON, MIN_BYTES, Policy, Size, baseline_of, read_and_judge, suppressions_of
from leakscope_cli.targets import newest_run

from leakscope.errors import LeakscopeError
from leakscope.options import OFFERED, Options
from leakscope.report.formats import PICTURES
from leakscope.report.rendering import WIDTH
from leakscope.units import ranks_text
from leakscope.verdict import Returned

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.run.model import Run

_AS = (
    "Output format; repeatable [default: text]. Formats: text, json, html, markdown, sarif, junit, trace; or dot, svg, "
    "png of one --finding. Without FILE it goes to stdout. If FILE is a folder, the file is findings.<suffix>."
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option("--as", "formats", multiple=True, metavar=OFFERED["formats"].metavar, help=_AS)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE instead of stdout."
)
@click.option(
    "--finding",
    metavar="ID",
    help="Finding to draw with --as dot, svg or png: its fingerprint or a prefix of it, or its number in the report.",
)
@click.option("--min-bytes", type=Size(), metavar="SIZE", help=MIN_BYTES)
@click.option("--horizon", type=click.IntRange(min=1), metavar="N", help=HORIZON)
@click.option("--leak-exit-code", type=int, metavar="N", help="Exit status if the run has leaks [default: 0].")
@click.option("--fail-on-avoidable", type=Size(), metavar="SIZE", help=OFFERED["fail_on_avoidable"].help)
@click.option("--fail-on-inconclusive", is_flag=True, help=OFFERED["fail_on_inconclusive"].help)
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE", help=OFFERED["baseline"].help)
@click.option("--suppress", type=click.Path(path_type=Path), metavar="FILE", help="File of suppressions, as for run.")
@click.option("--ignore-library", is_flag=True, help=OFFERED["ignore_library"].help)
@click.option("--rank", "ranks", type=int, multiple=True, metavar="N", help="Show full details for rank N; repeatable.")
@click.option("--verbose", is_flag=True, help="Show all details in text output.")
@click.pass_context
def report(
    ctx: click.Context,
    /,
    folder: Path | None,
    formats: Sequence[str],
    output: Path | None,
    finding: str | None,
    leak_exit_code: int | None,
    ranks: Sequence[int],
    verbose: bool,
    **how: Any,
) -> None:
    """Generate a report from a recorded RUN [default: the newest in leakscope_runs].

    --baseline, --suppress, --min-bytes and --horizon replace those of the recording.

    Exit status: 0, unless --leak-exit-code or --fail-on-inconclusive sets another.
    """
    wrong = OFFERED["leak_exit_code"].refuses(leak_exit_code)
    if wrong:
        raise LeakscopeError(f"--leak-exit-code {wrong}")
    asked = asked_formats(formats, output, finding)
    if finding and not any(one.form.name in PICTURES for one in asked):
        raise LeakscopeError("--finding names what a picture draws; give --as svg, --as dot or --as png with it")
    if ranks and any(one.form.name != TEXT for one in asked):
        raise LeakscopeError("--rank tells of a rank as text: leave the other formats out")
    check_writable(asked)
    if folder is None:
        folder = newest_run()
        note(f"the newest run is {folder}")
    check_run_folder(folder, "report")
    code = Options.leak_exit_code if leak_exit_code is None else leak_exit_code
    known = {
        "suppress": None if how["suppress"] is None else suppressions_of(how["suppress"]),
        "baseline": None if how["baseline"] is None else baseline_of(how["baseline"]),
    }
    run, findings = read_and_judge(folder, Policy(**{**how, **known}, leak_exit_code=code))
    asks = how["fail_on_inconclusive"] if findings.unjudged_fails else leak_exit_code is not None
    status = findings.exit_status if asks else 0
    findings = replace(findings, returned=Returned.OWN if status == findings.exit_status else Returned.NOT)
    if ranks:
        asked = [Asked(_of_ranks(run, ranks), one.file) for one in asked]
    failed = write_files(asked, run, findings, verbose=verbose, quiet=True)
    if failed:
        raise LeakscopeError("; ".join(failed))
    form = on_stdout(asked)
    if form is not None:
        _tell(*for_stdout(form, run, findings, verbose))
    ctx.exit(status)


@dataclass(frozen=True)
class _Ranks:
    """All of some ranks, as a format."""

    numbers: tuple[int, ...]
    name: str = "text of ranks"
    suffix: str = ".txt"

    def render(self, run: Run, findings: Findings) -> str:
        return self.set_in(run, findings, WIDTH)

    def set_in(self, run: Run, findings: Findings, width: int) -> str:
        from leakscope.report.text.ranks import render_ranks

        return render_ranks(run, findings, self.numbers, width)


def _of_ranks(run: Run, numbers: Sequence[int]) -> _Ranks:
    """Raises LeakscopeError for a rank that is not there."""
    there = sorted(rank.number for rank in run.ranks)
    for number in numbers:
        if number not in there:
            raise LeakscopeError(f"there is no rank {number} in this run, it has {ranks_text(there)}")
    return _Ranks(tuple(dict.fromkeys(numbers)))


def _tell(told: str | bytes, painted: bool) -> None:
    if isinstance(told, str):
        tell_or_fail(told, painted)
    elif sys.stdout.isatty():
        raise LeakscopeError("a terminal shows no png; give it a file, as in --as png=FILE")
    else:
        sys.stdout.buffer.write(told)
