"""Recorded runs: finding the folder, the options of judging, and the judgement."""

from __future__ import annotations

import os
import re
import resource
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope_cli.argv import command_hint
from leakscope_cli.console import note
from leakscope_cli.script import similar_path

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.files import read_regular
from leakscope.options import Options
from leakscope.run import model
from leakscope.run.suppression import Suppression, suppressions_in
from leakscope.run.writer import make_private
from leakscope.units import bytes_text

if TYPE_CHECKING:
    from leakscope.findings import Findings, Policy
    from leakscope.run.model import Run


RUNS = Path(model.RUNS)
"""The folder of runs that were recorded without --output."""


def newest_run() -> Path:
    """The folder of the run that was started last. Raises LeakscopeError without one."""
    started: dict[Path, float] = {}
    for file in RUNS.glob("*/run.json"):
        with suppress(OSError):  # about to be replaced
            started[file.parent] = file.stat().st_mtime
    if not started:
        raise LeakscopeError(f"no run found in {RUNS}; name the folder of a run, as in `leakscope report FOLDER`")
    return max(started, key=lambda folder: (started[folder], folder))


def run_folder(folder: Path | None, command: str) -> Path:
    """The folder of the run that a command is given, or the newest one. Raises LeakscopeError if it holds no run."""
    if folder is None:
        folder = newest_run()
        note(f"the newest run is {folder}")
    check_run_folder(folder, command)
    return folder


def check_run_folder(path: Path, command: str) -> None:
    """Check the folder of a run. Raises LeakscopeError that says what to type instead.

    Recognizes a file in a run, the folder of a rank, a folder of runs, and misspelled names.
    """
    if (path / "run.json").exists():
        return
    above = next((folder for folder in path.absolute().parents if (folder / "run.json").exists()), None)
    if above is not None and path.exists():
        shown = os.path.relpath(above) if not path.is_absolute() else str(above)
        words = [shown]
        if command == "report" and (rank := re.fullmatch(r"rank_(\d+)", path.name)):
            words += ["--rank", str(int(rank[1]))]
        raise LeakscopeError(f"{path} is part of a run; {_run_hint(command, words)}")
    if not path.exists():
        near = similar_path(path, lambda folder: (folder / "run.json").exists())
        instead = f"did you mean {near}?" if near else _record_hint(path)
        raise LeakscopeError(f"run not found: {path}; {instead}")
    if path.is_dir():
        runs = sorted((run.parent for run in path.glob("*/run.json")), key=lambda run: run.stat().st_mtime)
        if runs:
            several = "several runs" if len(runs) > 1 else "a run"
            raise LeakscopeError(f"{path} contains {several}; {_run_hint(command, [str(runs[-1])])}")
        raise LeakscopeError(f"{path} is not a leakscope run (no run.json); {_record_hint()}")
    if path.suffix == ".py":
        raise LeakscopeError(f"{path} is a script, not a run; {command_hint(['leakscope', 'run', str(path)])}")
    if path.suffix in (".pickle", ".pkl"):
        hint = command_hint(["leakscope", "snapshot", str(path)])
        raise LeakscopeError(f"{path} is a memory snapshot, not a run; {hint}")


def _record_hint(folder: Path | None = None) -> str:
    """How to record a run, into this folder or the default one."""
    output = [] if folder is None else ["-o", str(folder)]
    return f"`{shlex.join(['leakscope', 'run', *output, 'train.py'])}` records one"


def _run_hint(command: str, words: Sequence[str]) -> str:
    """What to type for a run: the command, or only the folder for `compare`, which takes two."""
    return f"name {words[0]}" if command == "compare" else command_hint(["leakscope", command, *words])


def join_folder(options: Options) -> None:
    """Create the folder that several launchers share. Raises LeakscopeError if it contains anything but a run."""
    folder = options.folder
    try:
        make_private(folder)
    except OSError as error:
        raise LeakscopeError(f"cannot write to {folder}: {error.strerror}; choose another --output") from None
    if any(folder.iterdir()) and not ((folder / "run.json").exists() or options.rank_state.exists()):
        raise LeakscopeError(f"{folder} exists and is not a leakscope run; choose another --output")


_ROOM = 512 << 20
"""Bytes of address space. numpy and matplotlib load within 300 MB on two cores; OpenBLAS takes more with each core."""


@dataclass(frozen=True)
class JudgingOptions:
    """The options of a command that decide how a run is judged; None keeps what was recorded with the run."""

    suppress: Sequence[Suppression] | None = None
    baseline: Sequence[Suppression] | None = None
    leak_exit_code: int = Options.leak_exit_code
    ignore_library: bool = False
    fail_on_avoidable: int | None = None
    fail_on_inconclusive: bool = False
    min_bytes: int | None = None
    horizon: int | None = None

    def applied_to(self, run: Run) -> Run:
        """The run with these suppressions and thresholds."""
        recorded = run.suppressions
        suppress = [one for one in recorded if not one.is_baseline] if self.suppress is None else self.suppress
        baseline = [one for one in recorded if one.is_baseline] if self.baseline is None else self.baseline
        return replace(
            run,
            suppressions=(*suppress, *baseline),
            min_bytes=run.min_bytes if self.min_bytes is None else self.min_bytes,
            horizon=run.horizon if self.horizon is None else self.horizon,
        )

    def policy_for(self, run: Run) -> Policy:
        """The policy of these options and of those that the run was recorded with."""
        from leakscope.findings import Policy

        recorded = run.options.get("fail_on_avoidable")
        limit = self.fail_on_avoidable
        return Policy(
            leak_exit_code=self.leak_exit_code,
            ignore_library=self.ignore_library or run.options.get("ignore_library") is True,
            fail_on_avoidable=recorded if limit is None and type(recorded) is int else limit,
            fail_on_inconclusive=self.fail_on_inconclusive or run.options.get("fail_on_inconclusive") is True,
        )


def read_and_judge(folder: Path, options: JudgingOptions = JudgingOptions()) -> tuple[Run, Findings]:
    """Read the run recorded in a folder, and judge it.

    Raises LeakscopeError if it is not a run, or if there is not enough memory to judge it.
    """
    check_room()
    from leakscope.findings import judge_rank, judge_together
    from leakscope.run.reader import open_run, read_each

    opened = open_run(folder, snapshots=True)
    run, ranks = read_each(replace(opened, run=options.applied_to(opened.run)), judge_rank)
    return run, judge_together(run, ranks, options.policy_for(run))


def check_room() -> None:
    """Raises LeakscopeError if numpy and matplotlib cannot be loaded: OpenBLAS would end the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or "matplotlib" in sys.modules:
        return
    try:
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        used = 0
    if limit - used < _ROOM:
        raise LeakscopeError(
            f"judging a run takes {bytes_text(_ROOM)} of address space, but the limit (ulimit -v) leaves "
            f"{bytes_text(max(limit - used, 0))}; run `leakscope report` with a higher limit"
        )


def baseline_of(path: Path | None) -> tuple[Suppression, ...]:
    """Read a `findings.json`, or that of a run, as suppressions; () without a path. Raises LeakscopeError."""
    if path is None:
        return ()
    from leakscope.report.formats.as_json import read_baseline

    return read_baseline(path)[1]


def suppressions_of(path: Path | None) -> tuple[Suppression, ...]:
    """Read a file of suppressions, one per line: `PATTERN [until 2027-01-31] [# reason]`; () without a path.

    Raises LeakscopeError if the file cannot be read or a line is invalid.
    """
    if path is None:
        return ()
    if not path.exists():
        raise LeakscopeError(f"suppressions file not found: {path}")
    try:
        text = read_regular(path).decode()
    except (Unreadable, ValueError):
        raise LeakscopeError(f"cannot read the suppressions in {path}; expected one pattern per line") from None
    return suppressions_in(text, str(path))
