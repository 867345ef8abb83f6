"""Which ranks did the same, and which stand out?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from leakscope.findings.comm.matching import first_to_fail
from leakscope.findings.kinds import RuleName
from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report.per_rank import RankStory, rank_stories
from leakscope.report.wording import bytes_span, count_span, leaks, plural

MANY = 8
"""Ranks that ended badly in the same way, chosen, beyond which they share a row: that is what happens to the peers of
one that died.
"""
_FEW = 2
"""Ranks, chosen, that are outliers where they are far from all others; more of them are a group of their own."""
_SHARE = 0.25
"""Of a figure: ranks between whose figures there is no larger gap hold about the same; chosen."""
_SPREADS = 6 * 1.4826
"""Median absolute deviations, chosen: six standard deviations where figures are spread as a normal distribution is."""
_FLOOR = 4 << 20
"""Bytes by which processes that do the same differ anyhow; chosen."""


@dataclass(frozen=True)
class Figure:
    """One figure of a rank that its peers' are set beside."""

    said: str
    """`{}` stands for it, or for the smallest and the largest of many."""
    of: Callable[[RankStory], float | None]
    floor: int
    """Figures that differ by less are the same."""
    span: Callable[[Iterable[float]], str] = bytes_span


FIGURES = (
    Figure("took {} steps", lambda story: story.steps, 1, count_span),
    Figure("leaked {}", lambda story: story.leaked_bytes, _FLOOR),
    Figure("grew by {} a step", lambda story: story.growth_per_step, 64 << 10),
    Figure("holds {} in tensors", lambda story: story.explained_bytes, _FLOOR),
    Figure("had a peak of {}", lambda story: story.summary.peak_bytes, _FLOOR),
    Figure("has {} allocated", lambda story: story.counted_bytes, 4 * _FLOOR),
)
"""By which ranks are told apart, in this order; the allocator of a CPU rank counts all of its process."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks that ended in the same way with the same leaks and about the same figures."""

    stories: tuple[RankStory, ...]
    """Of its ranks, in order."""
    fingerprints: tuple[str, ...]
    """Of the leaks that its ranks have."""
    apart: tuple[str, ...] = ()
    """What sets it apart from its peers, each a clause: `leaked 96.00 MiB, 30 peers 1.20 to 1.40 MiB`."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of its ranks, in order."""
        return tuple(story.number for story in self.stories)

    @property
    def story(self) -> RankStory:
        """Of the rank that is told and drawn for all of them."""
        return self.stories[0]

    @property
    def representative(self) -> int:
        """Number of the rank that is told and drawn for all of them."""
        return self.story.number

    @property
    def badly(self) -> bool:
        """Whether its ranks ended otherwise than by reaching their end."""
        return self.story.badly

    @property
    def outlying(self) -> bool:
        """Whether it stands out: it ended badly, or its figures are far from those of its peers."""
        return self.badly or bool(self.apart)


def rank_groups(run: Run, findings: Findings) -> tuple[RankGroup, ...]:
    """Each rank in one group; those that stand out first, then by the smallest rank.

    A rank that was killed, hung or failed, and one whose figures are far from those of its peers, is a group of its
    own; only where more than `MANY` ended badly in the same way are they one, but for the one to look at first.
    """
    stories = rank_stories(run, findings)
    seen: dict[int, list[str]] = {}
    for finding in leaks(findings):
        for rank in finding.ranks:
            seen.setdefault(rank, []).append(finding.fingerprint)
    prints = {story.number: tuple(sorted(seen.get(story.number, ()))) for story in stories}
    groups = [*_ended_badly(run, stories, prints)]
    alike: dict[object, list[RankStory]] = {}
    for story in stories:
        if not story.badly:
            alike.setdefault((story.ending, prints[story.number]), []).append(story)
    skewed = _skewed(findings)
    for peers in alike.values():
        groups += _alike(peers, prints[peers[0].number], skewed)
    return tuple(sorted(groups, key=lambda group: (not group.outlying, group.representative)))


def _ended_badly(run: Run, stories: Iterable[RankStory], prints: Mapping[int, tuple[str, ...]]) -> Iterable[RankGroup]:
    """Each alone, but for the many that ended as one another."""
    first = first_to_fail(run)
    same: dict[object, list[RankStory]] = {}
    for story in stories:
        if story.badly and (first is None or story.number != first.number):
            same.setdefault((story.ending, prints[story.number]), []).append(story)
        elif story.badly:
            yield RankGroup((story,), prints[story.number])
    for those in same.values():
        for group in [those] if len(those) > MANY else [[story] for story in those]:
            yield RankGroup(tuple(group), prints[group[0].number])


def _skewed(findings: Findings) -> frozenset[int]:
    """Ranks of which a finding says that they keep what their peers let go; none where that is no exception."""
    found = [f for f in findings.findings if f.rule == RuleName.RANK_SKEW]
    ranks = frozenset(rank for finding in found for rank in finding.ranks)
    return ranks if len(ranks) <= MANY else frozenset()


def _alike(peers: Sequence[RankStory], prints: tuple[str, ...], skewed: frozenset[int]) -> Iterable[RankGroup]:
    """Groups of ranks with the same leaks, split where their figures are far apart."""
    usual = [[story for story in peers if story.number not in skewed]]
    for story in peers:
        if story.number in skewed:
            yield RankGroup((story,), prints, ("keeps what its peers let go",))
    outliers: dict[int, tuple[RankStory, list[str]]] = {}
    for figure in FIGURES:
        split: list[list[RankStory]] = []
        for group in usual:
            same, far = _split(group, figure)
            split += same
            for story, clause in far:
                outliers.setdefault(story.number, (story, []))[1].append(clause)
        usual = split
    yield from (RankGroup(tuple(group), prints) for group in usual if group)
    yield from (RankGroup((story,), prints, tuple(clauses)) for story, clauses in outliers.values())


def _split(group: list[RankStory], figure: Figure) -> tuple[list[list[RankStory]], list[tuple[RankStory, str]]]:
    """Ranks with about the same figure together, and those that are far from all others, with what sets them apart."""
    known = {story.number: value for story in group if (value := figure.of(story)) is not None}
    unknown = [story for story in group if story.number not in known]
    clusters = _clusters(sorted(known.items(), key=lambda item: (item[1], item[0])), figure)
    many = [cluster for cluster in clusters if len(cluster) > _FEW]
    far: dict[int, str] = {}
    for cluster in clusters if many else ():
        if len(cluster) <= _FEW:
            near = min(many, key=lambda other: abs(_middle(other) - _middle(cluster)))
            if abs(_middle(cluster) - _middle(near)) > _reach(near, figure):
                far |= {number: _clause(figure, known[number], near) for number, _ in cluster}
            else:
                near += cluster
    same = [{number for number, _ in cluster} - far.keys() for cluster in (many or clusters)]
    together = [[story for story in group if story.number in numbers] for numbers in same]
    return [*together, *([unknown] if unknown else [])], [(s, far[s.number]) for s in group if s.number in far]


def _clusters(values: Sequence[tuple[int, float]], figure: Figure) -> list[list[tuple[int, float]]]:
    """(rank, value) in the order of the values, parted where a gap is larger than what is about the same."""
    clusters = [[pair] for pair in values[:1]]
    for (_, below), pair in pairwise(values):
        if pair[1] - below > max(figure.floor, _SHARE * max(abs(below), abs(pair[1]))):
            clusters.append([])
        clusters[-1].append(pair)
    return clusters


def _middle(cluster: Sequence[tuple[int, float]]) -> float:
    return median(value for _, value in cluster)


def _reach(cluster: Sequence[tuple[int, float]], figure: Figure) -> float:
    """How far from the middle of a group a rank may be to belong to it."""
    middle = _middle(cluster)
    spread = median(abs(value - middle) for _, value in cluster)
    return max(_SPREADS * spread, _SHARE * abs(middle), figure.floor)


def _clause(figure: Figure, value: float, peers: Sequence[tuple[int, float]]) -> str:
    theirs = figure.span(of_peer for _, of_peer in peers)
    return f"{figure.said.format(figure.span([value]))}, {plural(len(peers), 'peer')} {theirs}"
