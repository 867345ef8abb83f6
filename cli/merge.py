"""`leakscope merge`: merge recordings from several machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from leakscope_cli.console import note, tell_or_fail
from leakscope_cli.outputs import asked_formats, check_writable, for_stdout, on_stdout, write_files
from leakscope_cli.shared import Policy, Size, baseline_of, read_and_judge, suppressions_of

from leakscope.errors import LeakscopeError
from leakscope.options import OFFERED, Options

_AS = "Output format; repeatable, as for report [default: text]. Without FILE it goes to stdout."


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="OUT", help="Folder of the merged run."
)
@click.option("-f", "--force", is_flag=True, help="Overwrite the run in that folder.")
@click.option("--as", "formats", multiple=True, metavar=OFFERED["formats"].metavar, help=_AS)
@click.option(
    "--leak-exit-code",
    type=int,
    default=Options.leak_exit_code,
    metavar="N",
    help="Exit status if leaks are found [default: 23].",
)
@click.option("--fail-on-avoidable", type=Size(), metavar="SIZE", help=OFFERED["fail_on_avoidable"].help)
@click.option("--fail-on-inconclusive", is_flag=True, help=OFFERED["fail_on_inconclusive"].help)
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE", help=OFFERED["baseline"].help)
@click.option("--suppress", type=click.Path(path_type=Path), metavar="FILE", help="File of suppressions, as for run.")
@click.option("--ignore-library", is_flag=True, help=OFFERED["ignore_library"].help)
@click.pass_context
def merge(
    ctx: click.Context,
    /,
    folders: Sequence[Path],
    output: Path,
    force: bool,
    formats: Sequence[str],
    leak_exit_code: int,
    **how: Any,
) -> None:
    """Merge the recordings of the machines of one job, one DIR per machine, and report on the whole run.

    The inputs are not modified. Missing ranks are listed in the report.

    Exit status: 0, or 23 if leaks were found; 2 if the folders do not belong to one job.
    """
    from leakscope.report import write
    from leakscope.run.multi_node import merge_parts
    from leakscope.run.writer import who_else_may_enter

    wrong = OFFERED["leak_exit_code"].refuses(leak_exit_code)
    if wrong:
        raise LeakscopeError(f"--leak-exit-code {wrong}")
    asked = asked_formats(formats)
    known = {
        "suppress": None if how["suppress"] is None else suppressions_of(how["suppress"]),
        "baseline": None if how["baseline"] is None else baseline_of(how["baseline"]),
    }
    check_writable(asked, made_later=output)
    merge_parts(folders, output, force)
    others = who_else_may_enter(output)
    if others:
        note(others)
    run, findings = read_and_judge(output, Policy(**{**how, **known}, leak_exit_code=leak_exit_code))
    run = replace(run, folder=str(output))
    write(run, findings, output)
    failed = write_files(asked, run, findings, quiet=True)
    if failed:
        raise LeakscopeError("; ".join(failed))
    form = on_stdout(asked)
    assert form is not None  # the text, where nothing else was asked for
    told, painted = for_stdout(form, run, findings)
    assert isinstance(told, str)  # pictures are of `report`
    tell_or_fail(told, painted)
    if form.name != "text":
        note(f"report: {output / 'report.html'}")
    ctx.exit(findings.exit_status)
