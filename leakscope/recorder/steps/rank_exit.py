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
from leakscope.process.guard import CLOCK
from leakscope.process.raw_types import mro, type_dict
from leakscope.process.user_code import users_sources, without_source
from leakscope.process.watchdog import leave_now, stack_of_thread
from leakscope.recorder.accelerator import Counter
from leakscope.recorder.steps.detector import StepClock
from leakscope.recorder.steps.peers import RankStateFile
from leakscope.run.live import Activity
from leakscope.run.model import Ended
from leakscope.run.multi_node import Job, job_here
from leakscope.run.rank_end import orphaned_after
from leakscope.run.rows import EndKind, RecordingEnded
from leakscope.run.writer import RankFolder

_LOOK_TIMEOUT_S = 10.0
"""Seconds, chosen, that a look may go on once leakscope's own process is gone."""
HANG_STATUS = 124
"""Exit status of a rank that `--hang-timeout` has ended, as of `timeout`."""


@dataclass(eq=False)
class Ends:
    """Writes `ended.json` and `about.json`, and tells the other ranks."""

    folder: RankFolder
    rank_state: RankStateFile
    counter: Counter
    """What counts the memory of this process."""
    keep_source: bool = True
    """Whether the text of the script's files may stay with the run."""
    job: Job = field(default_factory=lambda: job_here(os.environ))
    """Of which job this rank is, as its launcher says: the script may write into its environment later."""

    def stopped(self, steps: int) -> None:
        """The run is over, for a rank that never gets further than this; the script's own end is written over it."""
        self.rank_state.update(activity=Activity.STOPPING)
        with suppress(OSError):
            self.folder.ended(Ended(EndKind.STOPPED, 0, steps))

    def recording_ended(self, steps: int, why: str) -> None:
        """Nothing more is recorded; the script goes on."""
        self.folder.append(RecordingEnded(steps, why))

    def lost(self) -> None:
        """Nobody is to wait for this rank any more."""
        self.rank_state.update(activity=Activity.LOST)

    def ended(self, ended: Ended) -> None:
        """The script has come to its end, and all the rest is on disk."""
        self.write_about()
        self.folder.ended(ended)
        self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())

    def leave(self, steps: int, written: bool) -> None:
        """End the process of a rank that is stuck or swallows the stop; `written` where its end is on disk already."""
        try:
            if not written:
                self.folder.ended(Ended(EndKind.STOPPED, 0, steps))
            self.write_about()
            self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())
        finally:
            leave_now(0)

    def orphaned(self, steps: Callable[[], int], looking: _thread.LockType, comm: CommMonitor | None) -> None:
        """Leakscope's own process is gone, and nobody else will tell; the script may go on until this process ends.

        A look that is under way, and holds `looking`, is written first.
        """
        if looking.acquire(timeout=_LOOK_TIMEOUT_S):
            looking.release()
        if comm is not None:
            comm.write_all()
        self.write_about()
        self.folder.ended(orphaned_after(steps()))
        self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())

    def leave_hung(self, steps: int, timeout_s: float, last_words: str, thread: int) -> None:
        """End the process of a rank whose comm operations have stood still; `thread` is the one whose stack is told."""
        why = f"nothing was sent or received for {timeout_s:g} s; last {last_words or 'nothing at all'}"
        stack = stack_of_thread(thread)
        stack = stack if self.keep_source else without_source(stack)
        self.folder.ended(Ended(EndKind.HUNG, HANG_STATUS, steps, why, stack))
        self.rank_state.update(activity=Activity.ENDED, ended=CLOCK.wall_time())
        leave_now(HANG_STATUS)

    def write_about(self) -> None:
        """What only this process knows of the run, for who reads it."""
        about = {
            "device": self.counter.device,
            "counted_by": self.counter.source,
            "torch": str(torch.__version__),
            "heap_reader": heap_reader(),
            "sources": users_sources() if self.keep_source else {},
            "job": vars(self.job),
        }
        self.folder.write("about.json", about)


_PATIENCE_S = 20.0
"""Seconds without a step after which it is said, chosen: a script has loaded its data and its model by then."""
_MOST_NAMED = 3
"""Functions that one sentence names."""


def say_on_stderr(text: str) -> None:
    """A line of leakscope's, past whatever the script has made of `sys.stderr`."""
    os.write(2, f"leakscope: {text}\n".encode())


def what_was_not_heard(clock: StepClock | None) -> tuple[str, ...]:
    """Sentences for a run without a step: what the script does that ends none, and what to give to --step-function."""
    if clock is None:
        return ()
    sentences = []
    named = clock.calls.step_functions()
    what = f"try --step-function {' or '.join(named[:_MOST_NAMED])}" if named else (
        "put what one step does into a function of its own and name it with --step-function"
    )  # fmt: skip
    if calls := _own_calls():
        sentences.append(
            f"calls of a module that defines __call__ itself are not seen: try --step-function {' or '.join(calls)}"
        )
    if clock.backwards:
        sentences.append(
            f"{clock.backwards} backward passes ran while an optimizer was alive that never stepped, as where "
            f"torch.autograd.grad is used: {what}"
        )
    return tuple(sentences)


def _own_calls() -> list[str]:
    """Qualified names of the `__call__` of modules that have one of their own, the script's first; runs no code of
    theirs.
    """
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
    return [name for _, name in sorted(set(found))][:_MOST_NAMED]


class NoStepYet:
    """To be asked at every tick of the watchdog's thread."""

    def __init__(
        self,
        function: str | None,
        processes: OwnProcesses,
        patience_s: float = _PATIENCE_S,
        say: Callable[[str], None] = say_on_stderr,
    ) -> None:
        """`function` is that of `--step-function`; `processes` are those that the script starts."""
        self._function, self._processes, self._patience_s, self._say = function, processes, patience_s, say
        self._began = CLOCK.monotonic()
        self._over = False

    def tick(self, stepped: bool) -> None:
        """Say it where no rank has `stepped` for so long."""
        if stepped:
            self._over = True
        if self._over or CLOCK.monotonic() - self._began < self._patience_s:
            return
        self._over = True
        self._say(_sentence(self._function, self._patience_s, self._processes.count))


def _sentence(function: str | None, seconds: float, processes: int) -> str:
    began = f"no step has been seen for {seconds:g} s"
    if function is not None:
        return f"{began}: {function}() has not returned yet"
    if processes:
        return (
            f"{began}; the script has started {processes} Python process{'es' if processes > 1 else ''} of its own, "
            "which are not seen: start the training with --ranks N instead"
        )
    return (
        f"{began}: a step ends when an optimizer of torch.optim steps, without one when a backward ends, and without "
        "that when a module is called; name the function that makes one step with --step-function NAME"
    )
