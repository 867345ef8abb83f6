"""leakscope tells which reference to cut so that a PyTorch training stops leaking tensor memory, and what that frees.

The front door, from Python:

    with leakscope.watch(fail=True): ...            a block must leave no tensor memory behind
    with leakscope.Profiler() as profiler: ...      a training loop, step by step
    leakscope.check(train_step, repeats=7)          what grows on every repeat?
    leakscope.judge(leakscope.read_run(folder))     a recorded run

The map of the house; data flows launch -> capture -> record -> graph -> findings -> report:

    launch          starts N ranks, each under a recorder
    capture/        the live process, turned into plain data and left as it was
    record          a run and its folder on disk; wire_last its one packed file
    graph/          the heap as plain data: what holds itself, who holds this, what would go free
    findings/       one rule per file, verdicts, advice
    report/         the same story as text, JSON, HTML, SARIF and JUnit
    allocator/      torch's memory snapshots as plain data
    profiler        the doorways for Python code; pytest_plugin the one for pytest
    backward/       the cure: a stage backward that does not leak
    errors, units   what leakscope tells its user, and how people read bytes

The command line is the package `leakscope_cli`. Importing leakscope loads neither torch nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakscope.errors import LaunchFailed, LeakscopeError, Unreadable
    from leakscope.findings import Finding, Findings, judge
    from leakscope.profiler import LeaksFound, Profiler, check, watch
    from leakscope.record.folder import read_run
    from leakscope.record.model import Run

__version__ = "0.1.0"

_WHERE = {
    "Finding": "leakscope.findings",
    "Findings": "leakscope.findings",
    "LaunchFailed": "leakscope.errors",
    "LeaksFound": "leakscope.profiler",
    "LeakscopeError": "leakscope.errors",
    "Profiler": "leakscope.profiler",
    "Run": "leakscope.record.model",
    "Unreadable": "leakscope.errors",
    "check": "leakscope.profiler",
    "judge": "leakscope.findings",
    "read_run": "leakscope.record.folder",
    "watch": "leakscope.profiler",
}

__all__ = [
    "Finding",
    "Findings",
    "LaunchFailed",
    "LeaksFound",
    "LeakscopeError",
    "Profiler",
    "Run",
    "Unreadable",
    "check",
    "judge",
    "read_run",
    "watch",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'leakscope' has no attribute {name!r}")
    found: object = getattr(import_module(_WHERE[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
