"""The snapshots and ranks in which a leak was seen, with its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from leakscope.findings.model import Finding
from leakscope.units import ranks_text

FEW = 8
"""Maximum number of ranks listed individually (heuristic)."""
_FAR = 2.0
"""Ratio to the median above or below which a rank is listed as an outlier (heuristic)."""


@dataclass(frozen=True)
class Seen:
    """Ranks that saw a leak in the same snapshots."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    """Bytes of each rank at each step."""

    def at_each_step(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(step, bytes of each rank, the smallest first)."""
        columns = (tuple(sorted(column)) for column in zip(*self.sizes, strict=True))
        return tuple(zip(self.steps, columns, strict=True))

    def rows(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """(label, bytes at each step): each rank, or statistics and outliers if there are many."""
        each = self.each()
        columns = [column for _, column in self.at_each_step()]
        if len(self.ranks) <= FEW:
            return each
        if len(each) == 1:
            return (("on each rank", each[0][1]), ("total", tuple(map(sum, columns))))
        in_all = (("smallest", min), ("median", median), ("largest", max), ("total", sum))
        far = tuple((f"rank {rank}", self.sizes[self.ranks.index(rank)]) for rank in self._far()[:FEW])
        return (*((name, tuple(of(column) for column in columns)) for name, of in in_all), *far)

    def each(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(ranks, bytes at each step), with equal ranks merged."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for rank, sizes in zip(self.ranks, self.sizes, strict=True):
            alike.setdefault(sizes, []).append(rank)
        return tuple((ranks_text(ranks), sizes) for sizes, ranks in alike.items())

    def _far(self) -> list[int]:
        """Ranks far from the median at the last snapshot."""
        last = [sizes[-1] for sizes in self.sizes]
        middle = median(last)
        found = zip(self.ranks, last, strict=True)
        return [rank for rank, size in found if size > _FAR * middle or size * _FAR < middle]


def seen_together(finding: Finding) -> tuple[Seen, ...]:
    """Ranks grouped by the snapshots in which they saw it, ordered by the smallest rank."""
    of_ranks: dict[int, dict[int, int]] = {}
    for sighting in finding.sightings:
        of_ranks.setdefault(sighting.rank, {})[sighting.step] = sighting.bytes
    by_steps: dict[tuple[int, ...], dict[int, tuple[int, ...]]] = {}
    for rank in sorted(of_ranks):
        seen = of_ranks[rank]
        steps = tuple(sorted(seen))
        by_steps.setdefault(steps, {})[rank] = tuple(seen[step] for step in steps)
    return tuple(Seen(tuple(sizes), steps, tuple(sizes.values())) for steps, sizes in by_steps.items())
