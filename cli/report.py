"""`leakscope report`, `merge`, `compare`, `snapshot` and `rule`: reports on what was recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from leakscope_cli.console import columns_of, note, stdout_console, tell_or_fail
from leakscope_cli.outputs import TEXT, OutputRequest, asked_formats, check_writable, for_stdout, on_stdout, write_files
from leakscope_cli.recorded import (
    HORIZON,
    MIN_BYTES,
    Policy,
    Size,
    baseline_of,
    check_room,
    check_run_folder,
    read_and_judge,
    run_folder,
    suppressions_of,
)

from leakscope.errors import LeakscopeError
from leakscope.options import OFFERED, Options
from leakscope.report.formats import PICTURES
from leakscope.report.rendering import WIDTH
from leakscope.run.writer import write_named
from leakscope.units import ranks_text
from leakscope.verdict import Returned

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.run.model import Run

Command = Callable[..., Any]
_PATH = click.Path(path_type=Path)
_AS = (
    "Output format; repeatable [default: text]. Formats: text, json, html, markdown, sarif, junit, trace; or dot, svg, "
    "png of one --finding. Without FILE it goes to stdout. If FILE is a folder, the file is findings.<suffix>."
)
_AS_MERGED = "Output format; repeatable, as for report [default: text]. Without FILE it goes to stdout."
_COMPARED_AS = ("text", "json", "markdown", "html")
"""As `leakscope.report.compare` has them, which is imported when the runs have been read."""


def _judging_options(command: Command) -> Command:
    """Add the options that decide what counts, which `report` and `merge` share."""
    for option in (
        click.option("--ignore-library", is_flag=True, help=OFFERED["ignore_library"].help),
        click.option("--suppress", type=_PATH, metavar="FILE", help="File of suppressions, as for run."),
        click.option("--baseline", type=_PATH, metavar="FILE", help=OFFERED["baseline"].help),
        click.option("--fail-on-inconclusive", is_flag=True, help=OFFERED["fail_on_inconclusive"].help),
        click.option("--fail-on-avoidable", type=Size(), metavar="SIZE", help=OFFERED["fail_on_avoidable"].help),
    ):
        command = option(command)
    return command


def _policy(leak_exit_code: int, how: dict[str, Any]) -> Policy:
    """The policy that the options of `_judging_options` ask for. Raises LeakscopeError."""
    wrong = OFFERED["leak_exit_code"].refuses(leak_exit_code)
    if wrong:
        raise LeakscopeError(f"--leak-exit-code {wrong}")
    read = {"suppress": suppressions_of, "baseline": baseline_of}
    return Policy(**how | {k: None if how[k] is None else read[k](how[k]) for k in read}, leak_exit_code=leak_exit_code)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="[RUN]", required=False, type=_PATH)
@click.option("--as", "formats", multiple=True, metavar=OFFERED["formats"].metavar, help=_AS)
@click.option("-o", "--output", type=_PATH, metavar="FILE", help="Write to FILE instead of stdout.")
@click.option(
    "--finding",
    metavar="ID",
    help="Finding to draw with --as dot, svg or png: its fingerprint or a prefix of it, or its number in the report.",
)
@click.option("--min-bytes", type=Size(), metavar="SIZE", help=MIN_BYTES)
@click.option("--horizon", type=click.IntRange(min=1), metavar="N", help=HORIZON)
@click.option("--leak-exit-code", type=int, metavar="N", help="Exit status if the run has leaks [default: 0].")
@_judging_options
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
    policy = _policy(Options.leak_exit_code if leak_exit_code is None else leak_exit_code, how)
    asked = asked_formats(formats, output, finding)
    if finding and not any(one.form.name in PICTURES for one in asked):
        raise LeakscopeError("--finding requires --as svg, --as dot or --as png")
    if ranks and any(one.form.name != TEXT for one in asked):
        raise LeakscopeError("--rank cannot be combined with formats other than text")
    check_writable(asked)
    folder = run_folder(folder, "report")
    run, findings = read_and_judge(folder, policy)
    asks = how["fail_on_inconclusive"] if findings.unjudged_fails else leak_exit_code is not None
    status = findings.exit_status if asks else 0
    findings = replace(findings, returned=Returned.OWN if status == findings.exit_status else Returned.NOT)
    if ranks:
        asked = [OutputRequest(_of_ranks(run, ranks), one.file) for one in asked]
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
            raise LeakscopeError(f"no rank {number} in this run, which has {ranks_text(there)}")
    return _Ranks(tuple(dict.fromkeys(numbers)))


def _tell(told: str | bytes, painted: bool) -> None:
    if isinstance(told, str):
        tell_or_fail(told, painted)
    elif sys.stdout.isatty():
        raise LeakscopeError("cannot write a png to a terminal; use --as png=FILE")
    else:
        sys.stdout.buffer.write(told)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=_PATH)
@click.option("-o", "--output", required=True, type=_PATH, metavar="OUT", help="Folder of the merged run.")
@click.option("-f", "--force", is_flag=True, help="Overwrite the run in that folder.")
@click.option("--as", "formats", multiple=True, metavar=OFFERED["formats"].metavar, help=_AS_MERGED)
@click.option(
    "--leak-exit-code",
    type=int,
    default=Options.leak_exit_code,
    metavar="N",
    help="Exit status if leaks are found [default: 23].",
)
@_judging_options
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

    policy = _policy(leak_exit_code, how)
    asked = asked_formats(formats)
    check_writable(asked, made_later=output)
    merge_parts(folders, output, force)
    others = who_else_may_enter(output)
    if others:
        note(others)
    run, findings = read_and_judge(output, policy)
    run = replace(run, folder=str(output))
    write(run, findings, output)
    failed = write_files(asked, run, findings, quiet=True)
    if failed:
        raise LeakscopeError("; ".join(failed))
    form = on_stdout(asked)
    assert form is not None  # text by default
    told, painted = for_stdout(form, run, findings)
    assert isinstance(told, str)  # for `report` only
    tell_or_fail(told, painted)
    if form.name != "text":
        note(f"report: {output / 'report.html'}")
    ctx.exit(findings.exit_status)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("base", type=_PATH)
@click.argument("new", type=_PATH)
@click.option(
    "--worse",
    type=click.FloatRange(min=1),
    default=1.5,
    metavar="FACTOR",
    help="Growth ratio from which on a leak counts as worse [default: 1.5].",
)
@click.option("--min-bytes", type=Size(), metavar="SIZE", help=MIN_BYTES)
@click.option("--horizon", type=click.IntRange(min=1), metavar="N", help=HORIZON)
@click.option("--as", "form", type=click.Choice(_COMPARED_AS), default="text", help="Output format [default: text].")
@click.option("-o", "--output", type=_PATH, metavar="FILE", help="Write to FILE instead of stdout.")
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
    from leakscope.report import compare as comparisons

    comparison = compared(Judged(*before), Judged(*after), worse)
    text = comparisons.FORMATS[form](comparison)
    _print_or_write(text, output)
    if not comparison.could_be_judged:
        from leakscope.report.compare import headline

        note(f"{headline(comparison)}; record it again")
    ctx.exit(comparison.exit_status)


@click.command("snapshot")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--as",
    "form",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to FILE instead of stdout.",
    metavar="FILE",
)
@click.option(
    "--frames",
    type=click.IntRange(1, 32),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of frames of your code to show per allocation site.",
)
@click.option("--at", type=click.IntRange(min=0), metavar="EVENT", help="Also show what was alive after this event.")
@click.option(
    "--compare", "comparing", is_flag=True, help="Compare two files: what the second holds that the first does not."
)
def snapshot(
    files: tuple[Path, ...], form: str, output: Path | None, frames: int, at: int | None, comparing: bool
) -> None:
    """Analyze torch memory snapshots: who held the memory, and what grew.

    FILE is written by torch.cuda.memory._dump_snapshot (also gzipped, or as the page of torch's viewer), or is the
    folder of a run, of which the newest snapshot of each rank is read. Nothing in it is executed. Several files are
    taken as ranks, numbered by their names.
    """
    check_room()
    from leakscope.memory_snapshot.verdict import examine
    from leakscope.report.memory_snapshot import snapshot_html, snapshot_json, snapshot_text

    report = examine([path for file in files for path in _snapshots_in(file)], comparing, frames, at)
    render = {"text": snapshot_text, "json": snapshot_json, "html": snapshot_html}[form]
    _print_or_write(render(report), output)
    if output is not None:
        note(f"{output} written")


def _print_or_write(text: str, output: Path | None) -> None:
    """Print the text, or write it to `output`. Raises LeakscopeError."""
    if output is None:
        tell_or_fail(text)
        return
    try:
        write_named(output, text.encode())
    except OSError as error:
        raise LeakscopeError(f"cannot write {output}: {error.strerror}") from None


def _snapshots_in(path: Path) -> list[Path]:
    """The newest snapshot of each rank in a run's folder, or of the one rank whose folder it is; any other path itself.

    Raises LeakscopeError for a folder without one.
    """
    from leakscope.memory_snapshot.verdict import files_in

    if not path.is_dir():
        return [path]
    newest = [files[-1] for folder in (path, *sorted(path.glob("rank_*"))) if (files := files_in(folder))]
    if not newest:
        raise LeakscopeError(
            f"{path} holds no allocator snapshot; `leakscope run --snapshot always` keeps one of each look "
            "on an accelerator"
        )
    return newest


def _complete_rule(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from leakscope.findings.rules import rules

    return [each.name for each in rules() if each.name.startswith(incomplete)]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="[NAME]", required=False, shell_complete=_complete_rule)
def rule(name: str | None) -> None:
    """Explain the rule NAME: what it reports, why it matters, an example, and what to use instead.

    Without NAME, list all rules.
    """
    from leakscope.findings.rules import rules

    if name is None:
        widest = max(len(each.name) for each in rules())
        tell_or_fail("\n".join(f"{each.name:<{widest}}  {each.text}" for each in rules()))
        return
    known = {each.name: each for each in rules()}
    if name not in known:
        near = get_close_matches(name, known, 3)
        instead = f"did you mean {' or '.join(near)}?" if near else "`leakscope rule` lists them"
        raise LeakscopeError(f"no such rule: {name}; {instead}")
    page = known[name].help
    console = stdout_console()
    if not console.is_terminal:
        tell_or_fail(page)
        return
    from rich.markdown import Markdown

    with console.capture() as captured:
        console.print(Markdown(page, hyperlinks=False), width=columns_of(console))
    tell_or_fail(captured.get(), painted=True)
