"""Does memory grow under ever new names, so that no one holder gains?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakscope.findings.build import build_finding
from leakscope.findings.counters import counted_rate
from leakscope.findings.facts import Facts
from leakscope.findings.grouping.bounds import went_on
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import Key
from leakscope.findings.grouping.growth import MIN_LOOKS, Series, series
from leakscope.findings.grouping.over_looks import GroupsOverLooks
from leakscope.findings.kinds import FreedBy, RuleName, Severity
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.naming.trace import fingerprint
from leakscope.findings.thresholds import Thresholds
from leakscope.graph.model import IMMORTAL
from leakscope.record.model import Rank

SCATTERED = fingerprint(("step-growth", "scattered"))
"""Of growth under ever new names."""


@dataclass(frozen=True)
class ScatteredFacts(Facts):
    """Holders that were not there before come at each look, and stay."""

    holders: int
    """How many have come since the first look."""
    newest: str
    """The largest of those that came last, as the user would write it."""


def scattered_findings(
    rank: Rank, groups: GroupsOverLooks, candidates: Sequence[Candidate], warmup: int, thresholds: Thresholds
) -> list[Finding]:
    """A finding where the groups that do not grow by themselves grow together at every look, and go on."""
    told = {candidate.group.key for candidate in candidates}
    still = [key for key, at in groups.at.items() if key not in told and at[max(at)][1].freed in (0, IMMORTAL)]
    line = series(groups.steps, {s: sum(_bytes(groups, key, s) for key in still) for s in groups.steps})
    if len(line.steps) <= MIN_LOOKS or not line.steady or line.pauses or not line.is_leak(thresholds.counted):
        return []
    counted = counted_rate(rank, warmup)
    if (counted is not None and counted < thresholds.counted) or not went_on(rank, line, line.per_step):
        return []
    came = [key for key in still if not _bytes(groups, key, groups.steps[0])]
    newest = _newest(groups, came)
    if not newest:
        return []
    return [_finding(rank, groups, line, newest, len(came), thresholds)]


def _bytes(groups: GroupsOverLooks, key: Key, step: int) -> int:
    there = groups.at[key].get(step)
    return 0 if there is None else there[1].bytes


def _newest(groups: GroupsOverLooks, came: Sequence[Key]) -> Key:
    """The largest group that came last and is still there; () where none did."""
    last = groups.steps[-1]
    alive = [key for key in came if last in groups.at[key]]
    return max(alive, key=lambda key: (min(groups.at[key]), _bytes(groups, key, last), key), default=())


def _finding(
    rank: Rank, groups: GroupsOverLooks, line: Series, newest: Key, holders: int, thresholds: Thresholds
) -> Finding:
    look, group = groups.at[newest][groups.steps[-1]]
    alone = Candidate(rank.number, look.step, look.heap, group, Series((look.step,), (group.bytes,)), 0.0, False)
    one = build_finding(alone, thresholds)
    grown = line.bytes[-1] - line.bytes[0]
    return replace(
        one,
        rule=RuleName.STEP_GROWTH,
        facts=ScatteredFacts(holders, one.cut.written if one.cut and one.cut.written else one.subject),
        fingerprint=SCATTERED,
        severity=Severity.LEAK,
        least_per_step=thresholds.counted,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=grown,
        bytes_per_step=line.per_step,
        cut=None,
        sightings=tuple(
            Sighting(rank.number, s, size - line.bytes[0]) for s, size in zip(line.steps, line.bytes, strict=True)
        ),
        count=0,
        storages={},
    )
