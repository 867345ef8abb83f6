"""Which looks is growth read from, are they enough, and which groups were there at each?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.grouping.growth import MIN_LOOKS
from leakscope.findings.grouping.looks import judged_looks
from leakscope.findings.grouping.over_looks import groups_over
from leakscope.findings.kinds import RuleName
from leakscope.findings.model import Unjudged
from leakscope.findings.stages.case import RankCase
from leakscope.findings.why import UnjudgedReason, WhyUnjudged
from leakscope.record.kinds import Occasion
from leakscope.record.model import Look, Rank


def take_looks(case: RankCase) -> RankCase:
    """Series: the looks that growth is read from."""
    looks = judged_looks(case.rank, case.warmup)
    return replace(case, looks=looks, unjudged=(*case.unjudged, *_unjudged(case.rank, looks)))


def group_looks(case: RankCase) -> RankCase:
    """Groups: the storages of each look by what holds them."""
    return replace(case, groups=groups_over(case.looks))


def _unjudged(rank: Rank, looks: Sequence[Look]) -> list[Unjudged]:
    """What the looks are too few for, and what they could not see."""
    if looks and looks[-1].occasion == Occasion.BLOCK:
        return []
    unjudged = []
    if (rank.looks or rank.steps) and len(looks) < MIN_LOOKS:
        reason = UnjudgedReason.TOO_FEW_LOOKS if rank.steps else UnjudgedReason.NO_STEP
        why = WhyUnjudged(reason=reason, looks=len(looks), needed=MIN_LOOKS)
        unjudged.append(Unjudged(RuleName.STEP_GROWTH, rank.number, why))
    for look in looks:
        unjudged += [Unjudged(RuleName.NATIVE_HOLD, rank.number, problem) for problem in look.unjudged]
    return list(dict.fromkeys(unjudged))
