"""Leaks, clean or inconclusive, and why."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.findings.model import Finding, Origin, RuleName, Severity, Unjudged
from leakscope.record.kinds import EndKind, Occasion
from leakscope.record.model import Run
from leakscope.units import bytes_text
from leakscope.verdict import Verdict


def verdict_of(
    run: Run, shown: Sequence[Finding], unjudged: Sequence[Unjudged], open_cases: Sequence[str]
) -> tuple[Verdict, str]:
    """(verdict, why); `open_cases` are what grew, as the user would write it, where it cannot be told whether it is a
    leak.
    """
    leaks = [f for f in shown if f.severity == Severity.LEAK and f.origin == Origin.APPLICATION]
    if leaks:
        rate = sum(f.bytes_per_step for f in leaks)
        total = sum(f.retained_bytes for f in leaks)
        many = f"{len(leaks)} distinct leaks" if len(leaks) > 1 else "1 leak"
        speed = f", growing by {bytes_text(rate)} a step" if rate else ""
        return Verdict.LEAKS, f"{many}: {bytes_text(total)} held{speed}"
    ranks = [rank for rank in run.ranks if rank.ended.how != EndKind.LOST]
    if not ranks:
        return Verdict.INCONCLUSIVE, "nothing was recorded"
    if any(look.occasion == Occasion.BLOCK for rank in ranks for look in rank.looks):
        return Verdict.CLEAN, "the block left no tensor memory behind"
    if not any(rank.steps for rank in ranks):
        return (
            Verdict.INCONCLUSIVE,
            "no step was seen: no torch optimizer stepped; mark steps with leakscope.Profiler, or see what was "
            "alive at the end",
        )
    for rank in run.ranks:
        how = "was killed" if rank.ended.how == EndKind.KILLED else "hung" if rank.ended.how == EndKind.HUNG else ""
        if how:
            steps = rank.ended.steps
            return (
                Verdict.INCONCLUSIVE,
                f"rank {rank.number} {how} after {steps} step{'s' * (steps != 1)}; nothing grew until then",
            )
    short = [u for u in unjudged if u.rule == RuleName.STEP_GROWTH]
    stepped = {rank.number for rank in ranks if rank.steps}
    if short and all(number in {u.rank for u in short} for number in stepped):
        return Verdict.INCONCLUSIVE, f"too few steps to judge: {short[0].why}; run at least {run.warmup + 8} steps"
    if open_cases:
        why = f"too few looks saw {open_cases[0]} grow to tell a leak from a start that came to rest: run more steps"
        return Verdict.INCONCLUSIVE, why
    notes = len(shown)
    extra = f"; {notes} note{'s' if notes != 1 else ''} below" if notes else ""
    grew = "enough to be a leak" if any(f.bytes_per_step > 0 for f in shown) else "over the looks taken"
    return Verdict.CLEAN, f"nothing grew {grew}{extra}"
