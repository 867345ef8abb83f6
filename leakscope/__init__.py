"""Find tensor memory leaks in PyTorch training: which reference to cut, and what that frees.

    with leakscope.watch(fail=True): ...            a block must leave no tensor memory behind
    with leakscope.Profiler() as profiler: ...      record a training loop, step by step
    leakscope.check(train_step, repeats=7)          what grows on every call of a function
    leakscope.holders(), leakscope.holders(tensor)  what holds tensor memory now, and what holds this tensor
    leakscope.draw(obj)                             a drawing of what refers to any object
    leakscope.judge(leakscope.read_run(folder))     the findings of a recorded run
    leakscope.title(finding), leakscope.advice(finding)    the sentences about one finding
    leakscope.worker_environment()                  for workers that a service starts, such as Ray's
    import leakscope.backward                       a pipeline backward that retains nothing

The packages, in the order of the data; `CONTRIBUTING.md` follows one leaked tensor through them:

    options          the options of a run
    launch/          starts the ranks and collects how each ended
    recorder/        what is recorded when: steps, snapshots, lifetimes, counters
    heap/            the live Python and autograd heap, read into a graph
    process/         what is put into the user's process, and its removal
    comm/            P2P and collective operations, RPC
    dataloader/      worker processes of DataLoader
    run/             a recorded run on disk
    graph/           the heap as plain data: reference paths, retained size, cycles
    memory_snapshot/ torch's allocator snapshots as plain data
    findings/        judges a run: groups, rules, cuts, breakdown, verdict
    report/          text, JSON, HTML, SARIF, JUnit, drawings
    profiler/        `watch`, `Profiler`, `check`, `holders`, `draw`
    pytest_plugin/   the markers and `--leakscope`
    integrations/    callbacks for Lightning, transformers, accelerate, and loops in classes
    testing/         replacements for torch's check_leaked_tensors and for counting tensors with gc
    backward/        a pipeline backward; imports torch only

The command line is the package `leakscope_cli`. Importing leakscope loads neither torch nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module

from leakscope import originals as _originals  # noqa: F401 - imported before the script can replace functions of Python
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
"""Public name to the module that defines it, imported on first use to keep `import leakscope` fast."""

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
