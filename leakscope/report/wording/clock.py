"""Words for what ended the steps, and for the processes that are not seen."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.record.kinds import ClockKind
from leakscope.record.model import Run
from leakscope.record.rows.clock import StartedProcess, StepsBy
from leakscope.report.cleaning import cleaned


def clock_text(run: Run) -> str:
    """`by Adam.step`, of the first rank that took any; "" where that is not known."""
    clock = next((rank.clock for rank in run.ranks if rank.steps and rank.clock is not None), None)
    return "" if clock is None else _named(clock) + (f" from step {clock.since + 1} on" if clock.since else "")


def _named(clock: StepsBy) -> str:
    name = cleaned(clock.name)
    return {
        ClockKind.MARK: "as marked by leakscope.Profiler",
        ClockKind.FUNCTION: f"by {name}()",
        ClockKind.OPTIMIZER: f"by {name}.step",
        ClockKind.BACKWARD: "by backward",
        ClockKind.CALL: f"by calls of {name}",
    }[clock.clock]


def processes_text(processes: Sequence[StartedProcess]) -> str:
    """`2 processes (torch.multiprocessing.spawn at train.py:41)`, of one process or more."""
    first = processes[0]
    where = f" at {first.started_at.split(' ')[0]}" if first.started_at else ""
    count = f"{len(processes)} processes" if len(processes) > 1 else "a process"
    return cleaned(f"{count} ({first.through}{where})")
