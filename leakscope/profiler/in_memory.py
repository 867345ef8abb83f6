"""Looks at this process whose run is never on disk."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leakscope.originals import Path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leakscope.heap.garbage import ExplainedHeap
    from leakscope.heap.growth import Gains
    from leakscope.recorder.device.accelerator import Counter
    from leakscope.run.kinds import MadeBy, Occasion
    from leakscope.run.model import Look, Rank, Run


def look_now(
    step: int,
    occasion: Occasion,
    counter: Counter | None = None,
    gains: Gains | None = None,
    explained: Callable[[ExplainedHeap], None] | None = None,
    made_at: Mapping[int, str] | None = None,
) -> Look:
    """One look at this process; what it keeps itself does not count as the program's.

    `gains` are of the looks before, where what containers gain is to be told; `explained` is told what was found;
    `made_at`: a storage's address to the place that made it.
    """
    from leakscope.heap.snapshot import LookContext, look
    from leakscope.recorder.device.accelerator import Counter

    counter = counter or Counter()
    counted = counter.read().bytes
    with counter.ours(most=sys.maxsize):  # the look itself is kept: megabytes where thousands of tensors live
        known = LookContext(counted, counter.device, made_at=made_at or {}, gains=gains, explained=explained)
        return look(step, occasion, known)


def why_no_look() -> str:
    """The sentence that says why this process cannot be looked at; "" where it can."""
    from leakscope.process.torch_compat import Part, lacks, sentences

    return "; ".join(sentences()) if lacks(Part.LOOKS) else ""


def run_of_rank(rank: Rank, made_by: MadeBy, warmup: int = 0, min_bytes: int = 0) -> Run:
    """A run of this process, its one rank."""
    from leakscope._version import __version__
    from leakscope.native import heap_reader
    from leakscope.run.model import Run

    torch = sys.modules.get("torch")
    return Run(
        command=(Path(sys.argv[0]).name,),
        ranks=(rank,),
        expected_ranks=1,
        device=rank.looks[-1].counted_on if rank.looks else "cpu",
        torch="" if torch is None else str(torch.__version__),
        leakscope=__version__,
        heap_reader=heap_reader(),
        warmup=warmup,
        min_bytes=min_bytes,
        made_by=made_by,
    )
