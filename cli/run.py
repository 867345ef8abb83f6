"""`leakscope run`: start the script under recorders, then judge what was recorded."""

from __future__ import annotations

import os
import sys
import tokenize
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from leakscope_cli.progress import progress
from leakscope_cli.shared import LEAKS, Percent, Size, fingerprints_of, judged, say, suppressions_of

from leakscope.errors import LeakscopeError
from leakscope.launch import Outcome, Plan, launch, launch_inside, outside_launcher
from leakscope.record.folder import prepare_folder


class RunCommand(click.Command):
    """Takes its own options before the script; `--ranks N` also right after it, and any of them before a `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        start = self._script_at(args)
        if start < len(args):
            words = 2 if args[start] == "-m" else 1
            target, rest = args[start : start + words], args[start + words :]
            ours, theirs = self._split(rest)
            module = target[:2] if words == 2 else []
            script = [] if words == 2 else target
            args = [*args[:start], *ours, *module, "--", *script, *theirs]
        return super().parse_args(ctx, args)

    def _script_at(self, args: Sequence[str]) -> int:
        """Index of the script or of `-m`."""
        index = 0
        while index < len(args):
            word = args[index]
            if word == "-m" or not word.startswith("-") or word == "-":
                return index
            if word == "--":
                return len(args)
            index += 1 if "=" in word or not self._takes_value(word) else 2
        return index

    def _takes_value(self, word: str) -> bool:
        for parameter in self.params:
            if isinstance(parameter, click.Option) and word in parameter.opts:
                return not parameter.is_flag
        return False

    def _split(self, rest: list[str]) -> tuple[list[str], list[str]]:
        """Words after the script that are leakscope's, and those that are the script's."""
        if "--" in rest:
            cut = rest.index("--")
            if self._all_options(rest[:cut]):
                return rest[:cut], rest[cut + 1 :]
        if rest and rest[0] in ("--ranks", "-n"):
            return rest[:2], rest[2:]
        if rest and rest[0].startswith("--ranks="):
            return rest[:1], rest[1:]
        return [], rest

    def _all_options(self, words: Sequence[str]) -> bool:
        known = {name for p in self.params if isinstance(p, click.Option) for name in p.opts}
        index = 0
        while index < len(words):
            if words[index].partition("=")[0] not in known:
                return False
            index += 1 if "=" in words[index] or not self._takes_value(words[index]) else 2
        return True


@click.command(cls=RunCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-m", "module", metavar="MODULE", help="Run a module, as `python -m` does; what follows are its arguments."
)
@click.option("-n", "--ranks", type=int, metavar="N", help="Ranks on this machine (1).")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="The run's folder (leakscope_runs/<script>_<UTC time>).")  # fmt: skip
@click.option("-f", "--force", is_flag=True, help="Replace the run in that folder.")
@click.option("--steps", type=int, metavar="N", help="End the script cleanly on every rank after N steps and judge.")
@click.option("--warmup", type=int, default=2, metavar="N", help="Steps not judged (2).")
@click.option("--budget", type=Percent(), default=0.02, metavar="PERCENT", help="Share of the run's time that looking may take (2%).")  # fmt: skip
@click.option("--min-bytes", type=Size(), default=64 * 1024, metavar="SIZE", help="Growth below this a step, or 16 times this in all, is a note (64 KiB).")  # fmt: skip
@click.option("--gc-diff", type=click.Choice(["auto", "always", "never"]), default="auto", help="Collect for real at the end and compare: after --steps (auto), also after the script (always).")  # fmt: skip
@click.option("--lifetimes/--no-lifetimes", default=True, help="Watch two steps operation by operation: what is never used again at the peak (on).")  # fmt: skip
@click.option("--snapshot", type=click.Choice(["auto", "always", "never"]), default="auto", help="On an accelerator, record the allocator and keep its snapshots: where something is found (auto), or of every look.")  # fmt: skip
@click.option(
    "--prove",
    is_flag=True,
    help="Make each cut in a forked copy after the last of --steps, and measure what really goes free.",
)
@click.option(
    "--hang-timeout",
    type=float,
    metavar="SECONDS",
    help="End the ranks when nothing happens on the wire for so long (off).",
)
@click.option("--leak-exit-code", type=int, default=LEAKS, metavar="N", help="Exit status when leaks are found (23).")
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE", help="findings.json of an earlier run; what it knows is listed apart.")  # fmt: skip
@click.option("--suppress", type=click.Path(path_type=Path), metavar="FILE", help="Fingerprints or rules, one a line, to list apart.")  # fmt: skip
@click.option("--nnodes", type=int, default=1, metavar="N", help="Machines that take part (1), as torchrun takes it.")
@click.option("--node-rank", type=int, default=0, metavar="N", help="Number of this machine; 0 hosts the rendezvous.")
@click.option("--rdzv-endpoint", default="", metavar="HOST:PORT", help="Where the machines meet.")
@click.option("--rdzv-id", default="", metavar="ID", help="Name of the job, the same on every machine.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no notes.")
@click.option(
    "--json", "as_json", is_flag=True, help="Findings as JSON on stdout; the ranks' stdout then goes to stderr."
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
@click.pass_context
def run(ctx: click.Context, /, **options: Any) -> None:
    """Run SCRIPT on one or more ranks and say which references keep tensor memory alive.

    Exit status: the script's own where it fails; else 0, or 23 when leaks were found; 2 when leakscope could not do it.
    """
    ctx.exit(record_and_tell(**options))


def record_and_tell(
    words: Sequence[str], leak_exit_code: int, baseline: Path | None, suppress: Path | None, quiet: bool, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Launch, judge, write the report, print it; returns the exit status."""
    judging = {
        "baseline": fingerprints_of(baseline), "suppress": suppressions_of(suppress), "leak_exit_code": leak_exit_code
    }  # fmt: skip
    plan, outside = _plan(list(words), as_json, options)
    if outside is not None:
        outcome = launch_inside(plan, outside)
        if outside.rank == 0:
            _tell(plan, judging, quiet, as_json)
        return outcome.status
    with progress(plan, quiet), redirect_stdout(sys.stderr if as_json else sys.stdout):
        outcome = launch(plan)
    if outcome.status and not quiet:
        say(_failure(plan, outcome))
    if plan.node_rank > 0:
        return outcome.status
    return _tell(plan, judging, quiet, as_json, outcome.status)


def _plan(words: list[str], as_json: bool, options: dict[str, Any]) -> tuple[Plan, Any]:
    module = options["module"]
    if not module and not words:
        raise LeakscopeError("no script was given; write `leakscope run train.py`, or `leakscope run -m package.train`")
    target, arguments = (module, words) if module else (words[0], words[1:])
    _check_numbers(options)
    _check_module(target) if module else _check_script(target)
    outside = None if options["ranks"] is not None else outside_launcher(os.environ)
    folder = options["output"]
    if folder is None:
        if outside is not None or options["nnodes"] > 1:
            raise LeakscopeError("every rank must record into the same folder; give it with --output")
        name = target.replace(".", "_") if module else Path(target).stem
        folder = Path("leakscope_runs") / f"{name}_{datetime.now(UTC):%Y%m%d_%H%M%S}"
    if outside is None and options["nnodes"] == 1:
        prepare_folder(folder, options["force"])
    else:
        _join_folder(folder)
    same = (
        "hang_timeout",
        "steps",
        "warmup",
        "budget",
        "min_bytes",
        "gc_diff",
        "prove",
        "lifetimes",
        "snapshot",
        "nnodes",
        "node_rank",
        "rdzv_endpoint",
        "rdzv_id",
    )
    plan = Plan(
        target=target,
        arguments=tuple(arguments),
        folder=folder,
        module=bool(module),
        ranks=options["ranks"] or 1,
        stdout_to_stderr=as_json,
        leakscope=version("leakscope"),
        **{name: options[name] for name in same},
    )
    return plan, outside


def _check_numbers(options: dict[str, Any]) -> None:
    for name, least in (("ranks", 1), ("steps", 1), ("warmup", 0), ("nnodes", 1), ("node_rank", 0)):
        if options[name] is not None and options[name] < least:
            raise LeakscopeError(f"--{name.replace('_', '-')} {options[name]} makes no sense; give {least} or more")
    if options["prove"] and options["steps"] is None:
        raise LeakscopeError("--prove makes the cuts after the last of --steps; say how many with --steps N")
    if options["nnodes"] > 1 and not options["rdzv_endpoint"]:
        raise LeakscopeError("--nnodes needs --rdzv-endpoint HOST:PORT, where the machines meet")


def _check_script(path: str) -> None:
    """Raises LeakscopeError unless the file is there and is Python."""
    try:
        with tokenize.open(path) as stream:
            compile(stream.read(), path, "exec", dont_inherit=True)
    except FileNotFoundError:
        raise LeakscopeError(f"there is no script {path}") from None
    except OSError as error:
        raise LeakscopeError(f"cannot read the script {path}: {error.strerror}") from None
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise LeakscopeError(f"{path} is not a Python script: {error.msg}{place}") from None
    except ValueError as error:
        raise LeakscopeError(f"{path} is not a Python script: {error}") from None


def _check_module(name: str) -> None:
    """Raises LeakscopeError unless the module can be found; imports nothing."""
    places: Sequence[str] | None = [os.getcwd(), *sys.path]
    for part in range(1, name.count(".") + 2):
        found = PathFinder.find_spec(".".join(name.split(".")[:part]), places)
        if found is None:
            raise LeakscopeError(f"there is no module {name}")
        places = found.submodule_search_locations
    if places is not None and PathFinder.find_spec(f"{name}.__main__", places) is None:
        raise LeakscopeError(f"{name} is a package without __main__; name the module to run")


def _join_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeakscopeError(f"cannot write to {folder}: {error.strerror}; give another --output") from None
    if any(folder.iterdir()) and not any((folder / name).exists() for name in ("run.json", ".board")):
        raise LeakscopeError(f"{folder} exists and holds no leakscope run; give another --output")


def _failure(plan: Plan, outcome: Outcome) -> str:
    who = "the script" if outcome.failed is None or plan.ranks * plan.nnodes == 1 else f"rank {outcome.failed}"
    log = f", log in {plan.folder / outcome.log}" if outcome.log else ""
    return f"{who} failed with status {outcome.status}{': ' + outcome.error if outcome.error else ''}{log}"


def _tell(plan: Plan, judging: dict[str, Any], quiet: bool, as_json: bool, status: int = 0) -> int:
    """Judge, write findings.json and report.html, print; returns the command's exit status, a failed script's own first."""
    from leakscope.report import FORMATS, write

    recorded, findings = judged(plan.folder, **judging)
    findings = replace(findings, exit_status=status or findings.exit_status)
    write(recorded, findings, plan.folder)
    click.echo(FORMATS["json" if as_json else "text"](recorded, findings), nl=False)
    if not quiet:
        say(f"report: {plan.folder / 'report.html'}")
    return int(findings.exit_status)
