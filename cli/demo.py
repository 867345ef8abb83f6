"""`leakscope demo`: the two-rank sample pipeline, really leaking, end to end."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import as_file, files
from pathlib import Path

import click
from leakscope_cli.console import note
from leakscope_cli.run import record_and_report
from leakscope_cli.targets import RUNS

from leakscope.options import Options
from leakscope.verdict import Returned

STEPS = 12
"""Two to warm up, and six looks at the rest: what the README asks for."""
LEAK = "stage-backward-cycle"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the run.")
@click.option("-f", "--force", is_flag=True, help="Overwrite the run in that folder.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print progress and notes.")
@click.pass_context
def demo(ctx: click.Context, output: Path | None, force: bool, quiet: bool) -> None:
    """Run a small two-rank pipeline with a planted leak; exits with 0 if leakscope finds it."""
    folder = output or RUNS / f"demo_{datetime.now(UTC):%Y%m%d_%H%M%S}"
    with as_file(files("leakscope.samples") / "p2p_pipeline" / "train.py") as script:
        status = record_and_report(
            Options(
                script=str(script),
                arguments=("--leak", LEAK),
                ranks=2,
                steps=STEPS,
                folder=folder,
                force=force,
                quiet=quiet,
            ),
            returned=Returned.NOT,
        )
    if status == Options.leak_exit_code:
        note("the planted leak was found")
        ctx.exit(0)
    note(f"the planted leak was not found (status {status}); that is a defect of leakscope")
    ctx.exit(1)
