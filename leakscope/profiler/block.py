"""Does a block of code leave tensor memory behind?"""

from __future__ import annotations

import gc
import sys
import warnings
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from leakscope.findings.kinds import FreedBy, RuleName
from leakscope.findings.why import Reason, Why
from leakscope.profiler.in_memory import look_now, run_of_rank, why_no_look
from leakscope.profiler.leaks import LeaksFound, leaks_of, leaks_text, left_behind
from leakscope.record.kinds import EndKind, Occasion
from leakscope.units import parse_bytes
from leakscope.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leakscope.capture.held.tensors import Mark
    from leakscope.findings.model import Findings
    from leakscope.record.model import Look, Run

_IN_FLIGHT = (RuleName.DIST_AUTOGRAD_CONTEXT, RuleName.P2P_BUFFER)
"""Rules that a block answers for although something alive holds the memory."""


HIDDEN = "this torch does not show all that C++ holds, so garbage may have been left behind"


class watch:
    """A block that must leave no tensor memory unreachable and unfreed.

    What a live variable holds is no leak here, and neither is what was there before. Automatic gc waits until the block
    is over, so that what it would have freed is seen every time; before the block gc collects what is young. A look is
    taken only where something may be held by nothing alive, and before the block a full collection comes first. Where
    torch is not imported, nothing is looked at. A torch that lacks what a look needs is warned of, and the verdict is
    inconclusive.

    Args:
        fail: raise at the end of a block that leaves more than `allowance` behind.
        allowance: bytes, as a number or like `"64 KiB"` and `"1 MB"`, both in powers of 1024.

    Raises:
        LeaksFound: an AssertionError with each leak's trace; never in place of what the block itself raised.
        ValueError: `allowance` is no size.

    >>> import torch, leakscope
    >>> def leave_a_cycle():
    ...     outputs = [torch.ones(1024)]
    ...     outputs.append(outputs)
    >>> with leakscope.watch() as block:
    ...     leave_a_cycle()
    >>> block.findings.verdict.value, block.findings.findings[0].retained_bytes
    ('leaks', 4096)
    >>> with leakscope.watch(fail=True, allowance="1 MB"):
    ...     leave_a_cycle()

    """

    findings: Findings
    """What the block left behind; there after the block."""
    run: Run
    """What was seen of it, as the rest of leakscope takes it; with a look where one was needed."""

    def __init__(self, fail: bool = False, allowance: int | str = 0) -> None:
        self._fail, self._allowance = fail, parse_bytes(allowance)

    def __enter__(self) -> Self:
        self._collecting = gc.isenabled()
        gc.disable()
        self._left: dict[str, int] = {}
        self._mark: Mark | None = None
        self._unseen = why_no_look() if "torch" in sys.modules else ""
        if "torch" in sys.modules and not self._unseen:
            from leakscope.capture.held.question import QUESTION

            if not (QUESTION.held_before() or QUESTION.held_before(full=True)):
                before = _findings_of(look_now(0, Occasion.BLOCK, explained=QUESTION.learn_before))
                QUESTION.looked_before({finding.fingerprint: finding.retained_bytes for finding in before.findings})
            self._left, self._mark = QUESTION.left, QUESTION.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from leakscope.findings.model import Findings

        try:
            self._unseen = self._unseen or (why_no_look() if "torch" in sys.modules else "")
            asked = "torch" in sys.modules and kind is None and not self._unseen
            after = _look_where_doubtful(self._mark) if asked else None
        finally:
            if self._collecting:
                gc.enable()
        self.run = _run_of_block(after)
        why = Why(reason=Reason.CLEAN_BLOCK) if asked else "torch was not used, or the block raised"
        self.findings = Findings(Verdict.CLEAN, why, 0) if after is None else _left_behind(self._left, after)
        if self._unseen:
            self.findings = Findings(Verdict.INCONCLUSIVE, self._unseen, 0)
            warnings.warn(f"the block was not looked at: {self._unseen}", stacklevel=2)
        leaked = sum(finding.retained_bytes for finding in leaks_of(self.findings))
        if self._fail and leaked > self._allowance:
            raise LeaksFound(leaks_text(self.run, self.findings, self._allowance), self.findings)


def _look_where_doubtful(mark: Mark | None) -> Look | None:
    """A look after the block; None where all tensors are certainly held."""
    from leakscope.capture.held.question import QUESTION

    return None if QUESTION.held_after(mark) else look_now(1, Occasion.BLOCK, explained=QUESTION.learn)


def _run_of_block(look: Look | None) -> Run:
    from leakscope.record.model import Ended, Rank

    return run_of_rank(Rank(0, (), () if look is None else (look,), Ended(EndKind.FINISHED, 0, 0)))


def _findings_of(look: Look) -> Findings:
    from leakscope.findings import judge

    return judge(_run_of_block(look))


def _left_behind(before: Mapping[str, int], after: Look) -> Findings:
    """Findings after the block, without what was there before it: bytes by fingerprint."""
    judged = _findings_of(after)
    # the same leak may have been there before, made by somebody else: only what came on top counts
    kept = [
        replace(finding, retained_bytes=finding.retained_bytes - before.get(finding.fingerprint, 0))
        for finding in judged.findings
        if finding.freed_by != FreedBy.PROGRAM or finding.rule in _IN_FLIGHT
    ]
    kept = [finding for finding in kept if finding.retained_bytes > 0]
    # a block has no steps: nothing grows by so much a step, and collecting is not set against its time
    left = replace(judged, findings=tuple(replace(finding, bytes_per_step=0.0) for finding in kept), gc_advice=())
    if leaks_of(left):
        return replace(left, why=left_behind(left))
    if after.hides:
        return replace(left, verdict=Verdict.INCONCLUSIVE, why=HIDDEN, exit_status=0)
    return replace(left, verdict=Verdict.CLEAN, why=Why(reason=Reason.CLEAN_BLOCK), exit_status=0)
