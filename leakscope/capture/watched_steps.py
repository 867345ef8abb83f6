"""Which steps run under a dispatch mode of leakscope's, and what is on record of them?"""

from __future__ import annotations

from typing import Any

from leakscope.capture.device.monitor import DeviceMemory
from leakscope.capture.lifetimes.allocation_sites import AllocationSites
from leakscope.capture.lifetimes.tracker import LifetimeTracker
from leakscope.capture.private_names import Part, lacks
from leakscope.capture.process.patches import Patches
from leakscope.options import Options
from leakscope.record.folder import RankFolder


class WatchedSteps:
    """The last step of the warm-up, for where tensors are made, and pairs of steps after it, for the lifetimes."""

    def __init__(
        self,
        options: Options,
        folder: RankFolder,
        sites: AllocationSites,
        device: DeviceMemory,
        lifetimes: LifetimeTracker,
    ) -> None:
        self._options, self._folder = options, folder
        self._sites, self._device, self._lifetimes = sites, device, lifetimes
        self._since = 0

    def install(self, patches: Patches, comm: bool) -> None:
        """Put in what must stand before the first step; `comm` where comm operations are followed."""
        if lacks(Part.WATCHED):
            return
        if self._options.lifetimes:
            self._lifetimes.install(patches, comm=comm)
        patches.call_before_tracing(self._before_compile)
        guard = patches.guard
        guard.at_end += [lambda _: guard.later.append(self.leave), lambda _: guard.try_again()]

    def begin_again(self, step: int) -> None:
        """Another clock took over after this step: what was to be watched is counted from there."""
        self._since = step
        self._lifetimes.begin_after(step + self._options.warmup)

    def step_ended(self, step: int) -> None:
        """Begin or end watching at the end of this step, and write what was seen."""
        if lacks(Part.WATCHED):
            return
        if self._sites.watching:
            self._sites.leave()
        elif step == self._since + self._options.warmup - 1:
            reason = self._sites.enter(self._lifetimes.compile_called)
            if reason and not self._device.tells_allocation_sites():
                self._folder.note(reason)
        watched = self._lifetimes.boundary(step) if self._options.lifetimes else None
        if watched is not None:
            if watched.look is not None:
                self._folder.look(watched.look)
            for row in watched.rows:
                self._folder.append(row)

    def leave(self) -> bool:
        """Watch no more; False while a mode of the script's own stands above ours, or ours runs: neither is popped."""
        left = self._sites.leave()
        return self._lifetimes.leave() and left

    def _before_compile(self, *_: Any, **__: Any) -> None:
        if self._sites.watching and self._sites.leave():
            self._folder.note("where tensors are made was not watched to the end: the script calls torch.compile")
        self._lifetimes.script_compiles()
