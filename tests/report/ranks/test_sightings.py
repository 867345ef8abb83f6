"""Bytes of a finding over heap snapshots are summarized per rank or as ranges over many ranks."""

from __future__ import annotations

from dataclasses import replace

from support.examples import MIB, growth_finding

from leakscope.findings.model import Finding, Sighting
from leakscope.report.excerpt import Seen, seen_together


def _seen(sizes: dict[int, int], steps: tuple[int, ...] = (3, 5)) -> Finding:
    return replace(
        growth_finding(), sightings=tuple(Sighting(r, s, size * s) for r, size in sizes.items() for s in steps)
    )


def _only(sizes: dict[int, int]) -> Seen:
    (seen,) = seen_together(_seen(sizes))
    return seen


def test_few_ranks_are_told_each_and_those_with_the_same_bytes_together() -> None:
    assert _only({0: MIB, 2: MIB, 1: 2 * MIB}).rows() == (
        ("ranks 0, 2", (3 * MIB, 5 * MIB)),
        ("rank 1", (6 * MIB, 10 * MIB)),
    )


def test_of_many_ranks_that_are_alike_one_row_says_all() -> None:
    assert _only(dict.fromkeys(range(64), MIB)).rows() == (
        ("on each rank", (3 * MIB, 5 * MIB)),
        ("total", (192 * MIB, 320 * MIB)),
    )


def test_of_many_ranks_the_range_and_who_is_far_from_it() -> None:
    rows = dict(_only({rank: (9 if rank == 7 else 1 + rank % 2) * MIB for rank in range(64)}).rows())
    assert rows["smallest"] == (3 * MIB, 5 * MIB) and rows["largest"] == rows["rank 7"] == (27 * MIB, 45 * MIB)
    assert rows["total"][0] == sum((9 if rank == 7 else 1 + rank % 2) for rank in range(64)) * 3 * MIB
    assert list(rows) == ["smallest", "median", "largest", "total", "rank 7"]


def test_ranks_that_looked_at_other_steps_are_apart() -> None:
    finding = _seen({0: MIB, 1: MIB})
    later = _seen({2: MIB}, (4, 6))
    told = seen_together(replace(finding, sightings=(*finding.sightings, *later.sightings)))
    assert [(seen.ranks, seen.steps) for seen in told] == [((0, 1), (3, 5)), ((2,), (4, 6))]
