"""Leaks, clean or inconclusive, and why."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.findings.kinds import RuleName, Severity
from leakscope.findings.model import Finding, Unjudged
from leakscope.findings.why import Reason, Why
from leakscope.record.kinds import EndKind, Occasion
from leakscope.record.model import Run
from leakscope.verdict import Verdict

_CUT_SHORT = {EndKind.KILLED: Reason.KILLED, EndKind.HUNG: Reason.HUNG}
_STEPS_TO_JUDGE = 8
"""Steps after warm-up that are enough for a verdict; chosen."""


def verdict_of(
    run: Run, shown: Sequence[Finding], unjudged: Sequence[Unjudged], open_cases: Sequence[str]
) -> tuple[Verdict, Why]:
    """(verdict, why); `open_cases` are what grew, as the user would write it, where it cannot be told whether it is a
    leak.
    """
    leaks = [f for f in shown if f.severity == Severity.LEAK]
    if leaks:
        return Verdict.LEAKS, Why(
            reason=Reason.LEAKS,
            count=len(leaks),
            bytes=sum(f.retained_bytes for f in leaks),
            bytes_per_step=sum(f.bytes_per_step for f in leaks),
        )
    ranks = [rank for rank in run.ranks if rank.ended.how != EndKind.LOST]
    if ranks and any(look.occasion == Occasion.BLOCK for rank in ranks for look in rank.looks):
        return Verdict.CLEAN, Why(reason=Reason.CLEAN_BLOCK)
    unknown = _why_not_judged(run, unjudged) or (
        Why(reason=Reason.TOO_FEW_LOOKS, detail=open_cases[0]) if open_cases else None
    )
    if unknown is not None:
        return Verdict.INCONCLUSIVE, unknown
    notes = [f for f in shown if f.severity == Severity.NOTE]
    grew = any(f.bytes_per_step > 0 for f in shown)
    return Verdict.CLEAN, Why(reason=Reason.LITTLE_GREW if grew else Reason.NOTHING_GREW, count=len(notes))


def _why_not_judged(run: Run, unjudged: Sequence[Unjudged]) -> Why | None:
    """What kept growth from being judged; None where nothing did."""
    ranks = [rank for rank in run.ranks if rank.ended.how != EndKind.LOST]
    if not ranks:
        return Why(reason=Reason.NOTHING_RECORDED)
    if not any(rank.steps for rank in ranks):
        return Why(reason=Reason.NO_STEP)
    for rank in run.ranks:
        reason = _CUT_SHORT.get(rank.ended.how)
        if reason is not None:
            return Why(reason=reason, rank=rank.number, steps=rank.ended.steps)
    short = [u for u in unjudged if u.rule == RuleName.STEP_GROWTH]
    stepped = {rank.number for rank in ranks if rank.steps}
    if short and stepped <= {u.rank for u in short}:
        return Why(reason=Reason.TOO_FEW_STEPS, unjudged=short[0].why, steps=run.warmup + _STEPS_TO_JUDGE)
    return None
