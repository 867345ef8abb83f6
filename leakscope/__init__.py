"""leakscope tells which reference to cut so that a PyTorch training stops leaking tensor memory, and what that frees.

From Python:

    with leakscope.watch(fail=True): ...            a block must leave no tensor memory behind
    with leakscope.Profiler() as profiler: ...      a training loop, step by step
    leakscope.check(train_step, repeats=7)          what grows on every repeat?
    leakscope.holders(), leakscope.holders(tensor)  who holds tensor memory now, who this tensor's?
    leakscope.draw(obj)                             a picture of what refers to any object
    leakscope.judge(leakscope.read_run(folder))     a recorded run
    leakscope.title(finding), leakscope.advice(finding)    what one finding says
    leakscope.worker_environment()                  for workers that a service starts, as Ray's
    import leakscope.backward                       a pipeline backward that does not leak

The packages; data flows launch -> capture -> record -> graph -> findings -> report:

    options         all that a run can be told
    launch/         starts N ranks, each under a recorder, and collects how each ended
    heap/           the live Python and autograd heap, as plain data
    process/        what stands in the script's process, and how it is taken out again
    comm/           P2P and collective operations, RPC
    dataloader/     worker processes of DataLoader
    recorder/       what is recorded when
    run/            a run and its folder on disk
    graph/          the heap as plain data: what holds itself, who holds this, what would be freed
    findings/       what leaks: stages of judging, one rule per file, the verdict
    report/         the findings in words and pictures: text, JSON, HTML, SARIF and JUnit
    memory_snapshot/  torch's memory snapshots as plain data
    profiler/       `watch`, `Profiler` and `check`; pytest_plugin has the marker
    integrations/   Lightning, transformers, accelerate, loops in classes: one line to add
    testing/        in place of torch's check_leaked_tensors, and of counting tensors with gc
    backward/       the cure: a stage backward that does not leak; needs nothing of the rest
    errors, units   what leakscope tells its user, and how people read bytes

The command line is the package `leakscope_cli`. Importing leakscope loads neither torch nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module

from leakscope import originals as _originals  # noqa: F401 - imported early, before functions of Python's are replaced
from leakscope._version import __version__

TYPE_CHECKING = False  # typing's own name: `python -m leakscope` runs with the working directory first on its path
if TYPE_CHECKING:
    from leakscope.errors import LaunchFailed, LeakscopeError, Unreadable
    from leakscope.findings import Finding, Findings
    from leakscope.profiler import LeaksFound, Profiler, Result, check, judge, watch
    from leakscope.profiler.holders import draw, holders
    from leakscope.profiler.loop import worker_environment
    from leakscope.report.finding_text import advice, title
    from leakscope.run.model import Run
    from leakscope.run.reader import read_run

_MODULE_OF = {
    "Finding": "leakscope.findings",
    "Findings": "leakscope.findings",
    "LaunchFailed": "leakscope.errors",
    "LeaksFound": "leakscope.profiler",
    "LeakscopeError": "leakscope.errors",
    "Profiler": "leakscope.profiler",
    "Result": "leakscope.profiler",
    "Run": "leakscope.run.model",
    "Unreadable": "leakscope.errors",
    "advice": "leakscope.report.finding_text",
    "check": "leakscope.profiler",
    "draw": "leakscope.profiler.holders",
    "holders": "leakscope.profiler.holders",
    "judge": "leakscope.profiler",
    "read_run": "leakscope.run.reader",
    "title": "leakscope.report.finding_text",
    "watch": "leakscope.profiler",
    "worker_environment": "leakscope.profiler.loop",
}
"""Public name to where it is defined; imported when it is first asked for, so that `import leakscope` is quick."""

__all__ = [
    "Finding",
    "Findings",
    "LaunchFailed",
    "LeaksFound",
    "LeakscopeError",
    "Profiler",
    "Result",
    "Run",
    "Unreadable",
    "__version__",
    "advice",
    "check",
    "draw",
    "holders",
    "judge",
    "read_run",
    "title",
    "watch",
    "worker_environment",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'leakscope' has no attribute {name!r}")
    value: object = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
