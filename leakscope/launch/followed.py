"""Which processes of a followed script were ranks, and with which status has the run ended?"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from leakscope.launch.outcome import Outcome
from leakscope.options import Options
from leakscope.record.folder import write_run
from leakscope.record.header import read_header
from leakscope.record.processes.links import Settled, settle
from leakscope.record.processes.process import MAIN

_LEFT = (".board*", ".group_*", ".follow.json", ".rank_*")
"""What processes have told each other by, of no use to anybody after the run."""


def settled(options: Options) -> Settled | None:
    """The ranks of a run whose processes were followed, each in a folder of its own; None where it was none.

    Where nothing of it can be written, the names of the ranks still lead to their folders.
    """
    if not options.process:
        return None
    try:
        found = settle(options.folder)
        if found.ranks != 1:
            write_run(options.folder, {**read_header(options.folder), "ranks": found.ranks})
    except OSError:
        return Settled(1, 0, {}, {MAIN: "rank_0000"})
    return found


def codes_of(found: Settled | None, codes: Mapping[int, int]) -> Mapping[int, int]:
    """What the operating system says, by rank: of the process that leakscope has started, where that is one."""
    if found is None:
        return codes
    return {} if found.main is None else {found.main: codes[0]}


def outcome_of_main(found: Settled | None, codes: Mapping[int, int], outcome: Outcome) -> Outcome:
    """The same with the status of the process that leakscope has started, whatever became of those that it started."""
    if found is None or found.main is not None:
        return outcome
    code = codes[0]
    status = 128 - code if code < 0 else code
    if status and not outcome.status:
        error = f"killed by {signal.Signals(-code).name}" if code < 0 else ""
        return replace(outcome, status=status, error=error)
    return replace(outcome, status=status)


def clear(folder: Path) -> None:
    """Remove what is of no use after the run, and the folders of processes that have not trained."""
    for pattern in _LEFT:
        for path in folder.glob(pattern):
            with suppress(OSError):
                path.unlink()
    for path in folder.glob("process_*"):
        if path.name != MAIN and not (path / "steps.jsonl").exists():
            shutil.rmtree(path, ignore_errors=True)
