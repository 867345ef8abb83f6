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
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from leakscope_cli import CommandFailed
from leakscope_cli.argv import TYPED, RunCommand
from leakscope_cli.console import note, progress, tell
from leakscope_cli.outputs import TEXT, OutputRequest, asked_formats, check_writable, for_stdout, on_stdout, write_files
from leakscope_cli.recorded import (
    RUNS,
    Policy,
    Share,
    Size,
    baseline_of,
    check_room,
    join_folder,
    read_and_judge,
    suppressions_of,
)
from leakscope_cli.script import Takes, check_module, check_script, missing_step_function, takes_arguments

from leakscope.errors import LeakscopeError, check_python, check_torch
from leakscope.options import OFFERED, TYPES, Option, Options, When, flags_of
from leakscope.report.formats import format_named
from leakscope.verdict import Returned

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.launch import ExternalLauncher, Outcome
    from leakscope.run.model import Run
    from leakscope.run.suppression import Suppression


_TYPE_OF_UNIT: Mapping[str, click.ParamType[Any]] = {"bytes": Size(), "share": Share()}
_TYPES: Mapping[Any, Any] = {Path: click.Path(path_type=Path), When: click.Choice([str(when) for when in When])}


def offered_options() -> list[click.Parameter]:
    """All that a run can be told, for click; what is not typed comes as None, for Options to fill."""
    return [_as_click(name, option) for name, option in OFFERED.items()]


def _as_click(name: str, option: Option) -> click.Option:
    kind = TYPES[name][0]
    repeated = kind == tuple[str, ...]
    return click.Option(
        [name, *flags_of(name)],
        type=None if kind is bool or repeated else _TYPE_OF_UNIT.get(option.unit, _TYPES.get(kind, kind)),
        is_flag=kind is bool,
        multiple=repeated,
        default=None,
        metavar=option.metavar,
        help=option.help,
    )


def options_of(words: Sequence[str], typed: Mapping[str, Any]) -> Options:
    """What was typed: the script's or module's own words, and leakscope's options; None where one was not typed.

    Raises LeakscopeError where no script is named, or where the options make no sense.
    """
    if not typed["module"] and not any(words[:1]):
        raise LeakscopeError("no script was given; write `leakscope run train.py`, or `leakscope run -m package.train`")
    target = {} if typed["module"] else {"script": words[0]}
    arguments = list(words) if typed["module"] else list(words[1:])
    given = {name: value for name, value in typed.items() if value is not None}
    try:
        return Options.of({**given, **target, "arguments": arguments})
    except ValueError as error:
        raise LeakscopeError(str(error)) from None


_USAGE = 2
"""Exit status of a script whose argparse refused what it was given."""
_CTRL_C = 128 + signal.SIGINT
"""Exit status of a script that Ctrl-C ended."""
_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a script that SIGTERM ended."""


_TO_FIRST_RESULT = 6
"""Steps after warm-up by which three looks have mostly been taken, which growth is told from; as the README says."""
_FEWEST = 3
"""Steps after warm-up below which there cannot be three looks."""
_KEPT = "the verdict is as above, but not all of it is kept there"


@click.command(cls=RunCommand, params=offered_options(), context_settings={"help_option_names": ["-h", "--help"]})
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
    astray = _astray(ctx, options)
    outside = None if typed["ranks"] is not None else outside_launcher(os.environ)
    if typed["folder"] is None:
        options = replace(options, folder=_new_folder(options, outside))
    status = record_and_report(options, outside)
    if status == _USAGE and astray and not options.quiet:
        note(astray)
    ctx.exit(status)


def _check_step_function(script: str, name: str) -> None:
    """Raises LeakscopeError where no function of this name can come to be, with those that are like it."""
    folders = [os.path.dirname(os.path.realpath(script)), *sys.path]
    missing = missing_step_function(Path(script), name, folders)
    if missing:
        raise LeakscopeError(f"--step-function: {missing}")


def _astray(ctx: click.Context, options: Options) -> str:
    """What to write where options of leakscope's stand after the script; "" where none does.

    Raises LeakscopeError where the script can take no arguments, so that they would do nothing.
    """
    typed = ctx.meta.get(TYPED)
    if typed is None or not isinstance(ctx.command, RunCommand):
        return ""
    meant, others = ctx.command.meant_for_us(typed)
    if not meant:
        return ""
    names = ", ".join(word for word in meant if word.startswith("-"))
    target = shlex.join(typed.target)
    command = shlex.join(["leakscope", "run", *typed.ours, *meant, *typed.target, *others])
    takes = takes_arguments(Path(options.script)) if options.script else Takes.YES
    if takes == Takes.NO:
        raise LeakscopeError(f"{target} reads no arguments, and leakscope's own stand before it: write `{command}`")
    told = f"{names} after {target} went to the script; if it was meant for leakscope, write `{command}`"
    if takes == Takes.UNKNOWN and not options.quiet:
        note(told)
        return ""
    return told


def _new_folder(options: Options, outside: ExternalLauncher | None) -> Path:
    if outside is not None or options.nnodes > 1:
        raise LeakscopeError("every rank must record into the same folder; give it with --output")
    name = options.module.replace(".", "_") if options.module else Path(options.script).stem
    folder: Path = RUNS / f"{name}_{datetime.now(UTC):%Y%m%d_%H%M%S}"
    return folder


class _Known(NamedTuple):
    """What decides no verdict."""

    suppress: tuple[Suppression, ...]
    baseline: tuple[Suppression, ...]


def record_and_report(
    options: Options, outside: ExternalLauncher | None = None, returned: Returned = Returned.OWN
) -> int:
    """Launch, judge, write the report, print it; returns the exit status, which is `returned` by the command or not.

    Raises LeakscopeError where that cannot be done.
    """
    from leakscope.launch import launch, launch_inside
    from leakscope.run.suppression import keep_suppressions
    from leakscope.run.writer import prepare_folder, who_else_may_enter

    check_python()
    check_torch()
    known = _Known(suppressions_of(options.suppress), baseline_of(options.baseline))
    asked = asked_formats([*options.formats, *(["json"] if options.as_json else [])])
    if (options.node_rank if outside is None else outside.rank) == 0:
        check_writable(asked, made_later=options.folder)
    if outside is None and options.nnodes == 1:
        prepare_folder(options.folder, options.force)
    else:
        join_folder(options)
    if (options.node_rank if outside is None else outside.rank) == 0:
        others = who_else_may_enter(options.folder)
        if others and not options.quiet:
            note(others)
        keep_suppressions(options.folder, (*known.suppress, *known.baseline))
        if not options.quiet:
            note(_begins(options), "[leakscope]")
    if outside is not None:
        outcome = launch_inside(options, outside)
    else:
        with progress(options), redirect_stdout(sys.stderr if options.needs_stdout else sys.stdout):
            outcome = launch(options, meanwhile=_import_what_judges)
        if outcome.status and not options.quiet:
            note(_failure_text(options, outcome))
    if outside is not None and outside.rank == 0:
        _report(options, known, asked, outcome, inside=True)
    if outside is not None or options.node_rank > 0:
        return outcome.status
    return _report(options, known, asked, outcome, returned=returned)


def _begins(options: Options) -> str:
    """What is said when a recording begins: when there will be something to read."""
    first = options.warmup + _TO_FIRST_RESULT
    if options.steps is None:
        look = shlex.join(["leakscope", "inspect", str(options.folder)])
        when = f"first result after about {first} steps (`{look}`), the report when the script ends"
    elif options.steps < options.warmup + _FEWEST:
        when = f"it ends after --steps {options.steps}, and growth takes about {first} steps to be judged"
    else:
        when = f"the report comes after {options.steps} steps"
    return f"recording {options.target}; {when}"


def _import_what_judges() -> None:
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
        return "the script was ended from outside (SIGTERM)"
    who = "the script" if outcome.failed is None or options.ranks * options.nnodes == 1 else f"rank {outcome.failed}"
    log = f", log in {options.folder / outcome.log}" if outcome.log else ""
    return f"{who} failed with status {outcome.status}{': ' + outcome.error if outcome.error else ''}{log}"


def _report(
    options: Options,
    known: _Known,
    asked: Sequence[OutputRequest],
    outcome: Outcome,
    inside: bool = False,
    returned: Returned = Returned.OWN,
) -> int:
    """Judge, write findings.json and report.html, print; returns the exit status, a failed script's own first.

    `inside` a job of another launcher, that gets the script's status whatever is found, the verdict says so.

    Whatever keeps us from it, a failed script's own status it is; else one that says that it could not be done.
    """
    try:
        recorded, findings = read_and_judge(
            options.folder,
            Policy(
                *known,
                leak_exit_code=options.leak_exit_code,
                ignore_library=options.ignore_library,
                fail_on_avoidable=options.fail_on_avoidable,
                fail_on_inconclusive=options.fail_on_inconclusive,
            ),
        )
        findings = replace(
            findings,
            exit_status=outcome.status or (0 if inside else findings.exit_status),
            returned=Returned.SCRIPTS if inside else returned,
        )
        unwritable = _write(recorded, findings, options.folder)
        told = _told(asked, recorded, findings)
    except (MemoryError, ImportError, OSError, LeakscopeError) as error:
        note(f"the run could not be judged: {outcome.unwritable or _reason(error)}")
        return outcome.status or CommandFailed.exit_code
    untold = tell(*told)
    if untold:
        note(untold)
    for failed in write_files(asked, recorded, findings, quiet=options.quiet):
        note(failed)
    if unwritable:
        if not outcome.unwritable:  # else the ranks have said it
            note(f"{options.folder} could not be written ({unwritable}): {_KEPT}")
    elif not options.quiet and not _told_as_text(asked):
        note(f"report: {options.folder / 'report.html'}")
    return int(findings.exit_status)


def _told_as_text(asked: Sequence[OutputRequest]) -> bool:
    """It names the page itself."""
    form = on_stdout(asked)
    return form is not None and form.name == TEXT


def _told(asked: Sequence[OutputRequest], recorded: Run, findings: Findings) -> tuple[str, bool]:
    """What goes to stdout, and whether it is painted."""
    form = on_stdout(asked)
    assert form is not None  # text by default
    try:
        told, painted = for_stdout(form, recorded, findings)
    except LeakscopeError as error:  # another package's format
        note(str(error))
        told, painted = for_stdout(format_named(TEXT), recorded, findings)
    assert isinstance(told, str)  # for `report` only
    return told, painted


def _write(recorded: Run, findings: Findings, folder: Path) -> str:
    """Write what is kept of it; why that cannot be done, or "" where it can."""
    from leakscope.report import write

    try:
        write(recorded, findings, folder)
    except (OSError, MemoryError, ImportError) as error:
        return _reason(error)
    return ""


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is no memory for it"
    return (isinstance(error, OSError) and error.strerror) or str(error).partition("\n")[0] or type(error).__name__


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
