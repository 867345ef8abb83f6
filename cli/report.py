"""`leakscope report`, `merge`, `compare`, `snapshot` and `rule`: reports on what was recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from leakscope_cli.argv import checked, run_option
from leakscope_cli.console import columns_of, note, print_or_fail, stdout_console
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
    JudgingOptions,
    baseline_of,
    check_room,
    check_run_folder,
    read_and_judge,
    run_folder,
    suppressions_of,
)

from leakscope.errors import LeakscopeError
from leakscope.options import OFFERED
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


_RECORDED = "[default: as recorded]"
_MIN_BYTES = f"Minimum growth per step to report as a leak, of any kind. {_RECORDED}"
_HORIZON = f"Report growth of plain data as a leak if it would reach 1% of memory within N steps. {_RECORDED}"


def _run_options(*names: str, **helps: str) -> Callable[[Command], Command]:
    """Add options of a run to a command, those of `helps` with another help."""

    def add(command: Command) -> Command:
        for name in reversed([*names, *helps]):
            option = run_option(name, helps.get(name))
            params = command.__dict__.setdefault("__click_params__", [])
            params.append(option)
        return command

    return add


_judging_options = _run_options(
    "fail_on_avoidable",
    "fail_on_inconclusive",
    "baseline",
    "ignore_library",
    suppress="File of suppressions, as for run.",
)
"""The options that decide what counts, which `report` and `merge` share."""


def _judging(options: Mapping[str, Any]) -> JudgingOptions:
    """The judging options of a command; those that were not given are None. Raises LeakscopeError."""
    given = {name: value for name, value in checked(options).items() if value is not None}
    for name, read in (("suppress", suppressions_of), ("baseline", baseline_of)):
        if name in given:
            given[name] = read(given[name])
    return JudgingOptions(**given)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="[RUN]", required=False, type=_PATH)
@click.option("--as", "formats", multiple=True, metavar=OFFERED["formats"].metavar, help=_AS)
@click.option("-o", "--output", type=_PATH, metavar="FILE", help="Write to FILE instead of stdout.")
@click.option(
    "--finding",
    metavar="ID",
    help="Finding to draw with --as dot, svg or png: its fingerprint or a prefix of it, or its number in the report.",
)
@_run_options(min_bytes=_MIN_BYTES, horizon=_HORIZON, leak_exit_code="Exit status if the run has leaks. [default: 0]")
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
    ranks: Sequence[int],
    verbose: bool,
    **options: Any,
) -> None:
    """Generate a report from a recorded RUN [default: the newest in leakscope_runs].

    --baseline, --suppress, --min-bytes and --horizon replace those of the recording.

    Exit status: 0, unless --leak-exit-code or --fail-on-inconclusive sets another.
    """
    judging = _judging(options)
    requests = parse_formats(formats, output, finding)
    if finding and not any(one.form.name in PICTURES for one in requests):
        raise LeakscopeError("--finding requires --as svg, --as dot or --as png")
    if ranks and any(one.form.name != TEXT for one in requests):
        raise LeakscopeError("--rank cannot be combined with formats other than text")
    check_writable(requests)
    folder = run_folder(folder, "report")
    run, findings = read_and_judge(folder, judging)
    fails = options["fail_on_inconclusive"] if findings.unjudged_fails else options["leak_exit_code"] is not None
    status = findings.exit_status if fails else 0
    findings = replace(findings, returned=Returned.OWN if status == findings.exit_status else Returned.NOT)
    if ranks:
        requests = [OutputRequest(_RanksFormat.of(run, ranks), one.file) for one in requests]
    failed = write_files(requests, run, findings, verbose=verbose, quiet=True)
    if failed:
        raise LeakscopeError("; ".join(failed))
    form = stdout_format(requests)
    if form is not None:
        output_text, is_styled = render_for_stdout(form, run, findings, verbose)
        if isinstance(output_text, str):
            print_or_fail(output_text, is_styled)
        elif sys.stdout.isatty():
            raise LeakscopeError("cannot write a png to a terminal; use --as png=FILE")
        else:
            sys.stdout.buffer.write(output_text)
    ctx.exit(status)


@dataclass(frozen=True)
class _RanksFormat:
    """The details of some ranks, as a format."""

    numbers: tuple[int, ...]
    name: str = "text of ranks"
    suffix: str = ".txt"

    @classmethod
    def of(cls, run: Run, numbers: Sequence[int]) -> _RanksFormat:
        """The format of these ranks. Raises LeakscopeError for a rank that the run does not have."""
        existing = sorted(rank.number for rank in run.ranks)
        for number in numbers:
            if number not in existing:
                raise LeakscopeError(f"no rank {number} in this run, which has {ranks_text(existing)}")
        return cls(tuple(dict.fromkeys(numbers)))

    def render(self, run: Run, findings: Findings) -> str:
        return self.render_to_width(run, findings, WIDTH)

    def render_to_width(self, run: Run, findings: Findings, width: int) -> str:
        from leakscope.report.text.ranks import render_ranks

        return render_ranks(run, findings, self.numbers, width)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=_PATH)
@click.option("-o", "--output", required=True, type=_PATH, metavar="OUT", help="Folder of the merged run.")
@click.option("-f", "--force", is_flag=True, help="Overwrite the run in that folder.")
@click.option("--as", "formats", multiple=True, metavar=OFFERED["formats"].metavar, help=_AS_MERGED)
@_run_options("leak_exit_code")
@_judging_options
@click.pass_context
def merge(
    ctx: click.Context,
    /,
    folders: Sequence[Path],
    output: Path,
    force: bool,
    formats: Sequence[str],
    **options: Any,
) -> None:
    """Merge the recordings of the machines of one job, one DIR per machine, and report on the whole run.

    The inputs are not modified. Missing ranks are listed in the report.

    Exit status: 0, or 23 if leaks were found; 2 if the folders do not belong to one job.
    """
    from leakscope.report import write
    from leakscope.run.multi_node import merge_parts
    from leakscope.run.writer import who_else_may_enter

    judging = _judging(options)
    requests = parse_formats(formats)
    check_writable(requests, made_later=output)
    merge_parts(folders, output, force)
    others = who_else_may_enter(output)
    if others:
        note(others)
    run, findings = read_and_judge(output, judging)
    run = replace(run, folder=str(output))
    write(run, findings, output)
    failed = write_files(requests, run, findings, quiet=True)
    if failed:
        raise LeakscopeError("; ".join(failed))
    form = stdout_format(requests)
    assert form is not None  # text by default
    text, is_styled = render_for_stdout(form, run, findings)
    assert isinstance(text, str)  # only `report` draws pictures
    print_or_fail(text, is_styled)
    if form.name != TEXT:
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
@_run_options(min_bytes=_MIN_BYTES, horizon=_HORIZON)
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
    judging = _judging(thresholds)
    before, after = read_and_judge(base, judging), read_and_judge(new, judging)
    from leakscope.findings.comparison import Judged
    from leakscope.findings.comparison import compare as compare_runs
    from leakscope.report.compare import FORMATS, headline

    comparison = compare_runs(Judged(*before), Judged(*after), worse)
    _print_or_write(FORMATS[form](comparison), output)
    if not comparison.could_be_judged:
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
        print_or_fail(text)
        return
    try:
        write_named(output, text.encode())
    except OSError as error:
        raise LeakscopeError(f"cannot write {output}: {error.strerror}") from None


def _snapshots_in(path: Path) -> list[Path]:
    """The newest memory snapshot of each rank for the folder of a run or rank; else the path itself.

    Raises LeakscopeError for a folder without any.
    """
    from leakscope.memory_snapshot.verdict import files_in

    if not path.is_dir():
        return [path]
    newest = [files[-1] for folder in (path, *sorted(path.glob("rank_*"))) if (files := files_in(folder))]
    if not newest:
        raise LeakscopeError(
            f"{path} contains no memory snapshot; on an accelerator, `leakscope run --snapshot always` records one "
            "with each heap snapshot"
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
        print_or_fail("\n".join(f"{each.name:<{widest}}  {each.text}" for each in rules()))
        return
    known = {each.name: each for each in rules()}
    if name not in known:
        near = get_close_matches(name, known, 3)
        instead = f"did you mean {' or '.join(near)}?" if near else "`leakscope rule` lists them"
        raise LeakscopeError(f"no such rule: {name}; {instead}")
    page = known[name].help
    console = stdout_console()
    if not console.is_terminal:
        print_or_fail(page)
        return
    from rich.markdown import Markdown

    with console.capture() as captured:
        console.print(Markdown(page, hyperlinks=False), width=columns_of(console))
    print_or_fail(captured.get(), is_styled=True)
