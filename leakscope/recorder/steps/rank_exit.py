"""How the rank ended, and the warning where no step was detected."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from leakscope.comm.monitor import CommMonitor
from leakscope.native import heap_reader
from leakscope.originals import _thread, os
from leakscope.process.children import OwnProcesses
from leakscope.process.guard import CLOCK, write_to_stderr
from leakscope.process.raw_types import mro, type_dict
from leakscope.process.user_code import paths_of_sources, users_sources, without_source
from leakscope.process.watchdog import leave_now, stack_of_thread
from leakscope.recorder.accelerator import Counter
from leakscope.recorder.steps.detector import StepDetector
from leakscope.recorder.steps.peers import RankStateFile
from leakscope.run.live import Activity
from leakscope.run.model import Ended
from leakscope.run.multi_node import Job, job_here
from leakscope.run.rank_end import orphaned_after
from leakscope.run.rows import EndKind, RecordingEnded
from leakscope.run.writer import RankFolder

_SNAPSHOT_TIMEOUT_S = 10.0
"""Seconds that a snapshot may continue after leakscope's own process is gone. Heuristic."""
HANG_STATUS = 124
"""Exit status of a rank ended by `--hang-timeout`, as that of `timeout`."""


@dataclass(eq=False)
class RankExit:
    """Writes `ended.json` and `about.json`, and informs the other ranks."""

    folder: RankFolder
    rank_state: RankStateFile
    counter: Counter
    """The counter of this process's memory."""
    keep_source: bool = True
    """Whether source text of the script's files may be kept with the run."""
    job: Job = field(default_factory=lambda: job_here(os.environ))
    """The job of this rank, from its launcher: the script may change its environment later."""

    def stopped(self, steps: int) -> None:
        """Record the end of the run, for a rank that gets no further; the script's own end overwrites it."""
        self.rank_state.update(activity=Activity.STOPPING)
        with suppress(OSError):
            self.folder.ended(Ended(EndKind.STOPPED, 0, steps))

    def recording_ended(self, steps: int, why: str) -> None:
        """Record that recording has ended while the script continues."""
        self.folder.append(RecordingEnded(steps, why))

    def lost(self) -> None:
        """Record that nobody needs to wait for this rank."""
        self.rank_state.update(activity=Activity.LOST)

    def ended(self, ended: Ended) -> None:
        """Record the end of the script, after everything else is on disk."""
        self.write_about()
        self.folder.ended(ended)
        self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())

    def leave(self, steps: int, written: bool) -> None:
        """End the process of a rank that is stuck or swallows the stop; `written` if its end is already on disk."""
        try:
            if not written:
                self.folder.ended(Ended(EndKind.STOPPED, 0, steps))
            self.write_about()
            self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())
        finally:
            leave_now(0)

    def orphaned(self, steps: Callable[[], int], snapshot_lock: _thread.LockType, comm: CommMonitor | None) -> None:
        """Record that leakscope's own process is gone; the script may continue until this process ends.

        A snapshot in progress, which holds `snapshot_lock`, is written first.
        """
        if snapshot_lock.acquire(timeout=_SNAPSHOT_TIMEOUT_S):
            snapshot_lock.release()
        if comm is not None:
            comm.write_all()
        self.write_about()
        self.folder.ended(orphaned_after(steps()))
        self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())

    def exit_hung(self, steps: int, timeout_s: float, last_words: str, thread: int) -> None:
        """End the process of a rank whose comm operations are stuck; the stack of `thread` is reported."""
        why = f"no communication for {timeout_s:g} s; last operation: {last_words or 'none'}"
        stack = stack_of_thread(thread)
        stack = stack if self.keep_source else without_source(stack)
        self.folder.ended(Ended(EndKind.HUNG, HANG_STATUS, steps, why, stack))
        self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())
        leave_now(HANG_STATUS)

    def write_about(self) -> None:
        """Write what only this process knows about the run."""
        about = {
            "device": self.counter.device,
            "counted_by": self.counter.source,
            "torch": str(torch.__version__),
            "heap_reader": heap_reader(),
            "sources": users_sources() if self.keep_source else {},
            "source_paths": paths_of_sources() if self.keep_source else {},
            "job": vars(self.job),
        }
        self.folder.write("about.json", about)


_PATIENCE_S = 20.0
"""Seconds without a step before a message. Heuristic: a script has loaded its data and model by then."""
_MAX_NAMED = 3
"""Maximum functions named in one sentence."""


def missing_step_hints(detector: StepDetector | None) -> tuple[str, ...]:
    """Sentences for a run without a step: what the script does that ends none, and a value for --step-function."""
    if detector is None:
        return ()
    sentences = []
    named = detector.calls.step_functions()
    what = f"try --step-function {' or '.join(named[:_MAX_NAMED])}" if named else (
        "move the code of one step into a function and name it with --step-function"
    )  # fmt: skip
    if calls := _custom_calls():
        sentences.append(
            f"calls of modules with their own __call__ are not detected: try --step-function {' or '.join(calls)}"
        )
    if detector.backwards:
        sentences.append(
            f"{detector.backwards} backward passes ran, but no optimizer stepped, as with torch.autograd.grad: {what}"
        )
    return tuple(sentences)


def _custom_calls() -> list[str]:
    """Qualified names of modules' own `__call__`, the script's first; runs none of their code."""
    waiting, leaves = [torch.nn.Module], []
    while waiting:
        kind = waiting.pop()
        below = type.__subclasses__(kind)
        waiting += below
        if not below:
            leaves.append(kind)
    found = []
    for kind in leaves:
        owner = next((each for each in mro(kind) if "__call__" in type_dict(each)), torch.nn.Module)
        module = type_dict(owner).get("__module__")
        if owner is not torch.nn.Module and type(module) is str and not module.startswith("torch."):
            name = f"{type.__dict__['__qualname__'].__get__(owner)}.__call__"
            found.append((module != "__main__", name if module == "__main__" else f"{module}.{name}"))
    return [name for _, name in sorted(set(found))][:_MAX_NAMED]


class MissingStepWarning:
    """Warns of a run without a step; called at every tick of the watchdog."""

    def __init__(
        self,
        function: str | None,
        processes: OwnProcesses,
        patience_s: float = _PATIENCE_S,
        report: Callable[[str], None] = write_to_stderr,
    ) -> None:
        """`function` is that of `--step-function`; `processes` are those that the script starts."""
        self._function, self._processes, self._patience_s, self._report = function, processes, patience_s, report
        self._began = CLOCK.monotonic()
        self._over = False

    def tick(self, stepped: bool) -> None:
        """Warn if no rank has `stepped` for too long."""
        if stepped:
            self._over = True
        if self._over or CLOCK.monotonic() - self._began < self._patience_s:
            return
        self._over = True
        self._report(_sentence(self._function, self._patience_s, self._processes.count))


def _sentence(function: str | None, seconds: float, processes: int) -> str:
    began = f"no step detected for {seconds:g} s"
    if function is not None:
        return f"{began}: {function}() has not returned yet"
    if processes:
        return (
            f"{began}; the script has started {processes} Python process{'es' if processes > 1 else ''}, "
            "which are not recorded: start the training with --ranks N instead"
        )
    return (
        f"{began}: a step ends when a torch.optim optimizer steps, else when a backward pass ends, else when a module "
        "is called; name the function that runs one step with --step-function NAME"
    )
