"""When is it counted what a process has beside tensors? At each look, and at some of the steps between."""

from __future__ import annotations

from leakscope.capture.counts.compiled import compiled_code
from leakscope.capture.counts.descriptors import open_descriptors
from leakscope.capture.counts.shared_memory import shared_memory
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.torch_data import pinned_bytes
from leakscope.originals import os, resource
from leakscope.record.folder import RankFolder
from leakscope.record.rows.counts import CountsAtStep

_SHARE = 0.125
"""Share of the looks' budget, chosen, that counting between looks may take."""
_EVERY = 32
"""So many of the latest steps as there are in this share of a run, chosen, lie between two countings at least: a long
run's file stays small.
"""


class Counts:
    """Counts for one rank, and writes down what there is."""

    def __init__(self, folder: RankFolder, budget: float) -> None:
        self._folder, self._share = folder, _SHARE * budget
        self._own = os.path.realpath(folder.path.parent) + os.sep
        self._step = 0
        """The last one that was counted at."""
        self._spent = self._dearest = 0.0

    def step(self, step: int, elapsed: float) -> None:
        """The end of a step, so many seconds after the recording began."""
        if step - self._step > step // _EVERY and self._spent + self._dearest <= self._share * elapsed:
            self.now(step)

    def now(self, step: int) -> None:
        """Count, where that was not done at this step. Raises OSError where it cannot be written."""
        if step <= self._step:
            return
        began, self._step = CLOCK.perf_counter(), step
        self._folder.append(
            CountsAtStep(
                step=step,
                descriptors=open_descriptors(self._own),
                most_descriptors=_most_descriptors(),
                shared=shared_memory(),
                compiled=compiled_code(),
                pinned_bytes=pinned_bytes(),
            )
        )
        seconds = CLOCK.perf_counter() - began
        self._spent, self._dearest = self._spent + seconds, max(self._dearest, seconds)


def _most_descriptors() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else limit
