"""`leakscope report`: the story of a recorded run, told again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from leakscope_cli.shared import Size, read_and_judge
from leakscope_cli.telling import tell_or_fail

from leakscope.errors import LeakscopeError
from leakscope.options import OFFERED
from leakscope.report import FORMATS

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.record.model import Run


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--as", "form", type=click.Choice(list(FORMATS)), default="text", help="How to tell it (text).")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to a file.")
@click.option("--leak-exit-code", type=int, default=0, metavar="N", help="Exit status when the run has leaks (0).")
@click.option("--fail-on-avoidable", type=Size(), metavar="SIZE", help=OFFERED["fail_on_avoidable"].help)
@click.option("--ignore-library", is_flag=True, help=OFFERED["ignore_library"].help)
@click.option("--verbose", is_flag=True, help="Tell all there is as text; the other formats always do.")
@click.pass_context
def report(
    ctx: click.Context,
    folder: Path,
    form: str,
    output: Path | None,
    leak_exit_code: int,
    fail_on_avoidable: int | None,
    ignore_library: bool,
    verbose: bool,
) -> None:
    """Judge a recorded RUN again and tell its story."""
    wrong = OFFERED["leak_exit_code"].refuses(leak_exit_code)
    if wrong:
        raise LeakscopeError(f"--leak-exit-code {wrong}")
    run, findings = read_and_judge(folder, ignore_library=ignore_library, fail_on_avoidable=fail_on_avoidable)
    text = _whole_text(run, findings) if verbose and form == "text" else FORMATS[form](run, findings)
    if output is None:
        tell_or_fail(text)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise LeakscopeError(f"cannot write {output}: {error.strerror}") from None
    ctx.exit(leak_exit_code if findings.exit_status else 0)


def _whole_text(run: Run, findings: Findings) -> str:
    from leakscope.report.text.page import render

    return render(run, findings, verbose=True)
