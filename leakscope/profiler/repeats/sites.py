"""Which line makes which tensor, in one call of a training step?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from leakscope.shield import contextmanager

if TYPE_CHECKING:
    from leakscope.capture.process.patches import Patches


class Sites:
    """One call watched under a dispatch mode; what it made is known for as long as that lives."""

    def __init__(self, patches: Patches) -> None:
        from leakscope.capture.lifetimes.allocation_sites import AllocationSites

        self._patches = patches.part()
        self._sites = AllocationSites(patches.part())

    @property
    def made_at(self) -> Mapping[int, str]:
        """Address of each storage still alive to `train.py:41 forward (aten::addmm)`."""
        return self._sites.made_at

    @contextmanager
    def watched(self, is_first: bool) -> Iterator[None]:
        """Note what the block makes, unless it may compile: a mode would switch that off.

        `is_first`: nothing has been called yet, so that what a call compiles is not known.
        """
        from leakscope.capture.private_names import Part, lacks

        # torch loads this at the first torch.compile, and for other purposes (torch/_compile.py)
        may_compile = is_first and "torch._dynamo" in sys.modules
        if "torch" not in sys.modules or lacks(Part.WATCHED) or self._sites.enter(may_compile):
            yield
            return
        import torch

        self._patches.call_before(torch, "compile", lambda *_, **__: self._sites.leave())
        try:
            yield
        finally:
            self._sites.leave()
            self._patches.take_out()
