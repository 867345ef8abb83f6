"""`leakscope run`: run a script on one or more ranks and report its leaks."""

from __future__ import annotations

import gc
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from leakscope_cli import CommandFailed
from leakscope_cli.argv import TYPED, RunCommand, run_option
from leakscope_cli.console import note, print_text, progress, reason_of
from leakscope_cli.outputs import (
    TEXT,
    OutputRequest,
    check_writable,
    parse_formats,
    render_for_stdout,
    stdout_format,
    write_files,
)
from leakscope_cli.recorded import (
    RUNS,
    JudgingOptions,
    baseline_of,
    check_room,
    join_folder,
    read_and_judge,
    suppressions_of,
)
from leakscope_cli.script import Takes, check_module, check_script, missing_step_function, takes_arguments

from leakscope.errors import LeakscopeError, check_python, check_torch
from leakscope.options import OFFERED, Options
from leakscope.report.formats import format_named
from leakscope.verdict import Returned

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.launch import ExternalLauncher, Outcome
    from leakscope.report.drawing import Picture
    from leakscope.report.formats import Format
    from leakscope.run.model import Run


def options_of(words: Sequence[str], typed: Mapping[str, Any]) -> Options:
    """The options of a run.

    Args:
        words: The script, unless a module is run, and its arguments.
        typed: Values of the options, None for those that were not typed.

    Raises:
        LeakscopeError: No script is named, or an option is invalid.

    """
    if not typed["module"] and not any(words[:1]):
        raise LeakscopeError("no script was given; run `leakscope run train.py` or `leakscope run -m package.train`")
    target = {} if typed["module"] else {"script": words[0]}
    arguments = list(words) if typed["module"] else list(words[1:])
    given = {name: value for name, value in typed.items() if value is not None}
    try:
        return Options.of({**given, **target, "arguments": arguments})
    except ValueError as error:
        raise LeakscopeError(str(error)) from None


_USAGE = 2
"""Exit status of a script whose argparse rejected its arguments."""
_CTRL_C, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""Exit statuses of a script that ended by Ctrl-C or SIGTERM."""


_STEPS_TO_RESULT = 6
"""Steps after warm-up that the three snapshots needed for a verdict take in most runs; the README names them."""
_MIN_STEPS = 3
"""Steps after warm-up below which there cannot be three snapshots."""


@click.command(
    cls=RunCommand,
    params=[run_option(name) for name in OFFERED],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
@click.pass_context
def run(ctx: click.Context, /, words: Sequence[str], **typed: Any) -> None:
    """Run SCRIPT on one or more ranks and report which references keep tensor memory alive.

    SCRIPT is anything that python runs: a file, a folder or zip file with a __main__.py, or with -m a module. Put flags
    of python itself first: `python -O -m leakscope run train.py`.

    A --suppress file has one pattern per line: `PATTERN [until 2027-01-31] [# reason]`. PATTERN is a fingerprint, a
    rule, a holder or a place as shown in the report, with * for any text.

    Exit status: that of the script if it fails; else 0, or 23 if leaks were found; 2 on a leakscope error.
    """
    from leakscope.launch import outside_launcher

    options = options_of(words, typed)
    script = options.script
    if options.module:
        script = check_module(options.module)
    else:
        check_script(script, options.step_function is not None)
    if options.step_function is not None and script:
        _check_step_function(script, options.step_function)
    misplaced = _misplaced_options(ctx, options)
    outside = None if typed["ranks"] is not None else outside_launcher(os.environ)
    if outside is not None and options.fix:
        raise LeakscopeError("--fix needs ranks that leakscope starts: use `leakscope run --ranks N --fix`")
    if typed["folder"] is None:
        options = replace(options, folder=_new_folder(options, outside))
    status = record_and_report(options, outside)
    if options.fix and status == options.leak_exit_code:
        from leakscope_cli.fix import find_and_report

        status = find_and_report(
            options.folder,
            of_recording=True,
            quiet=options.quiet,
            command=options.command,
            to_stdout=not options.needs_stdout,
        )
    if status == _USAGE and misplaced and not options.quiet:
        note(misplaced)
    ctx.exit(status)


def _check_step_function(script: str, name: str) -> None:
    """Raises LeakscopeError if the script certainly has no function of this name."""
    folders = [os.path.dirname(os.path.realpath(script)), *sys.path]
    missing = missing_step_function(Path(script), name, folders)
    if missing:
        raise LeakscopeError(f"--step-function: {missing}")


def _misplaced_options(ctx: click.Context, options: Options) -> str:
    """The note about options of leakscope that were typed after the script; "" without any.

    Raises LeakscopeError if the script reads no arguments, so that they would have no effect.
    """
    typed = ctx.meta.get(TYPED)
    if typed is None or not isinstance(ctx.command, RunCommand):
        return ""
    meant, others = ctx.command.split_misplaced(typed)
    if not meant:
        return ""
    names = ", ".join(word for word in meant if word.startswith("-"))
    target = shlex.join(typed.target)
    command = shlex.join(["leakscope", "run", *typed.ours, *meant, *typed.target, *others])
    takes = takes_arguments(Path(options.script)) if options.script else Takes.YES
    if takes == Takes.NO:
        raise LeakscopeError(f"{target} reads no arguments; options of leakscope go before it: run `{command}`")
    text = f"{names} after {target} was passed to the script; if it is an option of leakscope, run `{command}`"
    if takes == Takes.UNKNOWN and not options.quiet:
        note(text)
        return ""
    return text


def _new_folder(options: Options, outside: ExternalLauncher | None) -> Path:
    if outside is not None or options.nnodes > 1:
        raise LeakscopeError("every rank must record into the same folder; give it with --output")
    name = options.module.replace(".", "_") if options.module else Path(options.script).stem
    folder: Path = RUNS / f"{name}_{datetime.now(UTC):%Y%m%d_%H%M%S}"
    return folder


def record_and_report(
    options: Options, outside: ExternalLauncher | None = None, returned: Returned = Returned.OWN
) -> int:
    """Launch the ranks, judge the run, write and print the report; return the exit status.

    Args:
        options: The options of the run.
        outside: The place of this process in the job of another launcher, if there is one.
        returned: Whether the command ends with this exit status, for the report.

    Raises:
        LeakscopeError: The run cannot be recorded.

    """
    from leakscope.launch import launch, launch_inside
    from leakscope.run.suppression import keep_suppressions
    from leakscope.run.writer import prepare_folder, who_else_may_enter

    check_python()
    check_torch()
    judging = JudgingOptions(
        suppress=suppressions_of(options.suppress),
        baseline=baseline_of(options.baseline),
        leak_exit_code=options.leak_exit_code,
        ignore_library=options.ignore_library,
        fail_on_avoidable=options.fail_on_avoidable,
        fail_on_inconclusive=options.fail_on_inconclusive,
    )
    requests = parse_formats([*options.formats, *(["json"] if options.as_json else [])])
    is_first = (options.node_rank if outside is None else outside.rank) == 0
    if is_first:
        check_writable(requests, made_later=options.folder)
    if outside is None and options.nnodes == 1:
        prepare_folder(options.folder, options.force)
    else:
        join_folder(options)
    if is_first:
        others = who_else_may_enter(options.folder)
        if others and not options.quiet:
            note(others)
        keep_suppressions(options.folder, (*(judging.suppress or ()), *(judging.baseline or ())))
        if not options.quiet:
            note(_start_text(options), "[leakscope]")
    if outside is not None:
        outcome = launch_inside(options, outside)
        if outside.rank == 0:
            _report(options, judging, requests, outcome, Returned.SCRIPTS)
        return outcome.status
    with progress(options), redirect_stdout(sys.stderr if options.needs_stdout else sys.stdout):
        outcome = launch(options, meanwhile=_preload_judging)
    if outcome.status and not options.quiet:
        note(_failure_text(options, outcome))
    return outcome.status if options.node_rank > 0 else _report(options, judging, requests, outcome, returned)


def _start_text(options: Options) -> str:
    """The note at the start of a recording: when there will be a result."""
    first = options.warmup + _STEPS_TO_RESULT
    if options.steps is None:
        command = shlex.join(["leakscope", "inspect", str(options.folder)])
        when = f"first result after about {first} steps (`{command}`), the report when the script ends"
    elif options.steps < options.warmup + _MIN_STEPS:
        when = f"it ends after --steps {options.steps}, but judging growth takes about {first} steps"
    else:
        when = f"the report comes after {options.steps} steps"
    return f"recording {options.target}; {when}"


def _preload_judging() -> None:
    """Import what judging needs while the ranks run."""
    check_room()
    collecting = gc.isenabled()
    gc.disable()  # imported modules stay and would be scanned repeatedly
    try:
        import leakscope.findings
        import leakscope.run.reader  # noqa: F401
        from leakscope.report import load

        load()
    finally:
        if collecting:
            gc.enable()


def _failure_text(options: Options, outcome: Outcome) -> str:
    if outcome.status == _CTRL_C:
        return "you stopped the script (Ctrl-C)"
    if outcome.status == _TERMINATED:
        return "the script was terminated (SIGTERM)"
    who = "the script" if outcome.failed is None or options.ranks * options.nnodes == 1 else f"rank {outcome.failed}"
    log = f", log in {options.folder / outcome.log}" if outcome.log else ""
    return f"{who} failed with status {outcome.status}{': ' + outcome.error if outcome.error else ''}{log}"


def _report(
    options: Options, judging: JudgingOptions, requests: Sequence[OutputRequest], outcome: Outcome, returned: Returned
) -> int:
    """Judge the run, write findings.json and report.html, print the report; return the exit status.

    The status of a script that failed comes first; else it is 2 if the run could not be judged. In the job of another
    launcher it is that of the script, whatever was found.
    """
    inside = returned == Returned.SCRIPTS
    try:
        run, findings = read_and_judge(options.folder, judging)
        status = outcome.status or (0 if inside else findings.exit_status)
        findings = replace(findings, exit_status=status, returned=returned)
        unwritable = _write(run, findings, options.folder)
        form = stdout_format(requests)
        assert form is not None  # text by default
        text, is_styled = _render(form, run, findings)
    except (MemoryError, ImportError, OSError, LeakscopeError) as error:
        note(f"the run could not be judged: {outcome.unwritable or reason_of(error)}")
        return outcome.status or CommandFailed.exit_code
    problem = print_text(text, is_styled)
    if problem:
        note(problem)
    for failed in write_files(requests, run, findings, quiet=options.quiet):
        note(failed)
    if unwritable:
        if not outcome.unwritable:  # else the ranks have reported it
            note(f"cannot write to {options.folder}: {unwritable}; the verdict is complete, the folder is not")
    elif not options.quiet and form.name != TEXT:  # the text contains it
        note(f"report: {options.folder / 'report.html'}")
    return int(findings.exit_status)


def _render(form: Format | Picture, run: Run, findings: Findings) -> tuple[str, bool]:
    """The output for stdout, and whether it has styles; text if a format of another package fails."""
    try:
        text, is_styled = render_for_stdout(form, run, findings)
    except LeakscopeError as error:
        note(str(error))
        text, is_styled = render_for_stdout(format_named(TEXT), run, findings)
    assert isinstance(text, str)  # only `report` draws pictures
    return text, is_styled


def _write(run: Run, findings: Findings, folder: Path) -> str:
    """Write the report into the folder of the run; return the reason if that fails."""
    from leakscope.report import write

    try:
        write(run, findings, folder)
    except (OSError, MemoryError, ImportError) as error:
        reason: str = reason_of(error)
        return reason
    return ""


_DEMO_STEPS = 12
"""Two of warm-up and six heap snapshots of the rest."""
_DEMO_LEAK = "stage-backward-cycle"


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
                arguments=("--leak", _DEMO_LEAK),
                ranks=2,
                steps=_DEMO_STEPS,
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
