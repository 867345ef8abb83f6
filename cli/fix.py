"""`leakscope fix`: find edits that fix the leaks of a run, prove them, and write a patch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from leakscope_cli.console import (
    columns_of,
    files_of,
    in_encoding_of,
    note,
    print_or_fail,
    reason_of,
    stdout_console,
    style_text,
)
from leakscope_cli.recorded import check_room, read_and_judge, run_folder

from leakscope.errors import Unreadable, check_python, check_torch
from leakscope.files import read_json
from leakscope.options import Options
from leakscope.report.rendering import cleaned
from leakscope.run.fixes import PATCH
from leakscope.run.writer import write_fix
from leakscope.verdict import Verdict

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.run.fixes import Fix
    from leakscope.run.model import Run

_PATH = click.Path(path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="[RUN]", required=False, type=_PATH)
@click.option("--apply", "applies", is_flag=True, help="Apply the patch to files without uncommitted changes.")
@click.option("--tries", type=click.IntRange(min=1), metavar="N", help="Maximum number of edits to try. [default: 30]")
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Maximum duration. [default: 15]"
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop each repetition after N steps. [default: as recorded]",
)
@click.option("--json", "as_json", is_flag=True, help="Print findings.json with the result.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print progress and notes.")
@click.pass_context
def fix(
    ctx: click.Context,
    /,
    folder: Path | None,
    applies: bool,
    tries: int | None,
    minutes: float | None,
    steps: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Find edits that fix the leaks of a RUN [default: the newest in leakscope_runs], and prove each by a run.

    The command of the run is repeated with edited copies of the source files. An edit is accepted if the leak is gone,
    no other came, and exit status, output, losses, gradients and parameters are the same. The edits are written to
    RUN/fix.patch, and the report of the RUN shows them; the source files are not changed without --apply.

    Files that the script writes are restored afterwards, except those written by native code other than torch's.

    Exit status: 0 if every leak has a verified fix, 23 if one has none, 2 if the run cannot be repeated.
    """
    folder = run_folder(folder, "fix")
    ctx.exit(find_and_report(folder, applies, tries, minutes, steps, as_json=as_json, quiet=quiet))


def find_and_report(  # noqa: PLR0913 - the options of the command
    folder: Path,
    applies: bool = False,
    tries: int | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    *,
    as_json: bool = False,
    quiet: bool = False,
    command: Sequence[str] = (),
    to_stdout: bool = True,
    of_recording: bool = False,
) -> int:
    """Search, write the result into the run, print it; return the exit status.

    Args:
        folder: The folder of the run.
        applies: Whether to apply the patch.
        tries: Maximum number of edits to try.
        minutes: Maximum duration.
        steps: The step after which repetitions stop.
        as_json: Whether to print JSON.
        quiet: Whether to print no progress.
        command: The command of the run, if it has secrets that were not stored.
        to_stdout: Whether to print the result.
        of_recording: Whether the run was just recorded: the status of a script that failed comes first.

    Raises:
        LeakscopeError: The run cannot be repeated, or the patch cannot be applied.

    """
    check_python()
    check_torch()
    check_room()
    from leakscope.fix import MINUTES, TRIES, find_fixes
    from leakscope.report.fix_text import fixed_text, render_fix

    run, findings = read_and_judge(folder)
    recorded = run.command  # without secrets
    if command:
        run = replace(run, command=tuple(command))
    failed = next((rank.ended.status for rank in run.ranks if rank.ended.status), 0) if of_recording else 0
    if failed:
        note("the script failed; `leakscope fix` repeats its first steps")
        return failed
    if not findings.leaks:
        why = "; the run is inconclusive" if findings.verdict == Verdict.INCONCLUSIVE else ""
        print_or_fail(_json(run, findings) if as_json else f"No leaks to fix{why}.\n")
        return 0
    search = find_fixes(
        run,
        findings,
        tries=tries or TRIES,
        minutes=minutes or MINUTES,
        steps=steps,
        progress=(lambda _: None) if quiet else lambda text: note(text, "[leakscope] fix:"),
    )
    run = replace(run, fix=search.fix, command=recorded)
    findings = _as_recorded(findings, folder)
    if problem := _write(run, search.fix, findings, folder):
        note(f"cannot write to {folder}: {problem}; the result is complete, the folder is not")
    if not to_stdout:
        note(f"{fixed_text(search.fix)} fixed: {folder / PATCH}")
    elif as_json:
        print_or_fail(_json(run, findings))
    else:
        console = stdout_console()
        text = in_encoding_of(sys.stdout, render_fix(cleaned(run), columns_of(console)))
        print_or_fail(style_text(text, console, files_of(run)), console.color_system is not None)
    if applies and search.fix.patch:
        search.apply()
        if not quiet:
            note(f"applied {folder / PATCH}")
    return 0 if search.fix.is_complete else Options.leak_exit_code


def _json(run: Run, findings: Findings) -> str:
    from leakscope.report import FORMATS

    return FORMATS["json"](run, findings)


def _as_recorded(findings: Findings, folder: Path) -> Findings:
    """The findings with the exit status of the recording, which its `findings.json` has."""
    try:
        status = read_json(folder / "findings.json")["exit_status"]
    except (Unreadable, KeyError, TypeError):
        return findings
    return replace(findings, exit_status=status) if type(status) is int and status >= 0 else findings


def _write(run: Run, result: Fix, findings: Findings, folder: Path) -> str:
    """Write the result and the report with it into the folder of the run; return the reason if that fails."""
    from leakscope.report import write

    try:
        write_fix(folder, result)
        write(run, findings, folder)
    except (OSError, MemoryError, ImportError) as error:
        reason: str = reason_of(error)
        return reason
    return ""
