"""The length of the text report does not depend on the number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from support.examples import MIB
from support.runs.many_ranks import many

from leakscope.findings.facts import AliveAtEnd
from leakscope.findings.model import Finding, Findings, Sighting, Unjudged
from leakscope.report.text.page import render
from leakscope.run.model import Ended, Rank, Run
from leakscope.run.rows import EndKind

RANKS = 1024
MOST = 200
"""Lines of text, at the most, that a terminal shows of a run of as many ranks."""


def usual(run: Run, findings: Findings) -> tuple[Run, Findings]:
    return run, findings


def each_failed_in_its_own_way(run: Run, findings: Findings) -> tuple[Run, Findings]:
    stack = tuple(f"train.py:{line} main" for line in range(20))
    ends = (Ended(EndKind.RAISED, 1, 5, error=f"Error{r.number}: at {r.number}", stack=stack) for r in run.ranks)
    return _with(run, lambda rank: replace(rank, ended=next(ends))), findings


def all_hung(run: Run, findings: Findings) -> tuple[Run, Findings]:
    def hung(rank: Rank) -> Rank:
        error = f"no communication for {rank.number} s"
        return replace(rank, ended=Ended(EndKind.HUNG, 124, rank.number, error=error, stack=("train.py:1 main",)))

    return _with(run, hung), findings


def each_with_notes_of_its_own(run: Run, findings: Findings) -> tuple[Run, Findings]:
    told = tuple(Unjudged("step-growth", rank.number, f"it raised {rank.number}") for rank in run.ranks)
    listed = tuple(AliveAtEnd(rank.number, {"parameter": rank.number}) for rank in run.ranks)
    noted = _with(run, lambda rank: replace(rank, notes=(f"file {rank.number} is damaged",)))
    return noted, replace(findings, verdict="inconclusive", unjudged=told, listed=listed)


def all_with_leaks_of_their_own(run: Run, findings: Findings) -> tuple[Run, Findings]:
    """Each of eight leaks on ranks of its own: a group for each set of them."""

    def seen(number: int) -> Finding:
        sightings = tuple(Sighting(r, s, MIB * s) for r in range(RANKS) if r >> number & 1 for s in (3, 5, 9 + r % 3))
        return replace(findings.findings[number % 2], fingerprint=f"0000000{number}", sightings=sightings)

    return run, replace(findings, findings=tuple(map(seen, range(8))))


def all_far_apart(run: Run, findings: Findings) -> tuple[Run, Findings]:
    ranks = {n: replace(of, explained_bytes=(n * n) << 24) for n, of in findings.ranks.items()}
    return run, replace(findings, ranks=ranks)


def _with(run: Run, changed: Callable[[Rank], Rank]) -> Run:
    return replace(run, ranks=tuple(map(changed, run.ranks)))


@pytest.mark.parametrize(
    "case",
    [
        usual,
        each_failed_in_its_own_way,
        all_hung,
        each_with_notes_of_its_own,
        all_with_leaks_of_their_own,
        all_far_apart,
    ],
)
def test_a_thousand_ranks_are_read_in_a_few_screens(case: Callable[[Run, Findings], tuple[Run, Findings]]) -> None:
    run, findings = case(*many(RANKS))
    lines = render(run, findings, width=110).splitlines()
    assert len(lines) <= MOST
    assert max(map(len, lines)) <= 110


def test_one_more_rank_is_no_more_lines() -> None:
    counts = [len(render(*many(count)).splitlines()) for count in (64, 128, 256)]
    assert all(abs(more - less) <= 4 for less, more in pairwise(counts)), counts
