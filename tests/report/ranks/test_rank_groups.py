"""Ranks with similar behaviour form one group, and outliers stand alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from support.examples import MIB, cycle_finding, growth_finding, rank, run

from leakscope.findings.facts import RuleName, Severity, StaticText
from leakscope.findings.model import Finding, Findings, RankSummary, Sighting
from leakscope.report.ranks import MANY, RankGroup, rank_groups
from leakscope.run.model import Ended, Run
from leakscope.run.rows import EndKind

STOPPED = Ended(EndKind.STOPPED, 0, 12)
KILLED = Ended(EndKind.KILLED, 137, 5)
HUNG = Ended(EndKind.HUNG, 124, 5)
LOST_PEER = Ended(EndKind.RAISED, 1, 6, error="RuntimeError: Connection closed by peer [127.0.0.1]:29500")


def _run(ends: Sequence[Ended]) -> Run:
    return run(*(rank(number, 12, 0, ended) for number, ended in enumerate(ends)))


def _findings(sizes: Sequence[int], *findings: Finding) -> Findings:
    """Of ranks that hold so much in tensors."""
    return Findings(
        verdict="clean",
        why="",
        exit_status=0,
        findings=findings,
        ranks={n: RankSummary(explained_bytes=size, counted_bytes=200 * MIB) for n, size in enumerate(sizes)},
    )


def _seen_on(finding: Finding, *ranks: int, size: int = 8 * MIB) -> Finding:
    return replace(finding, sightings=tuple(Sighting(r, s, size * s // 11) for r in ranks for s in (3, 11)))


def _ranks(groups: Sequence[RankGroup]) -> list[tuple[int, ...]]:
    return [group.ranks for group in groups]


@pytest.mark.parametrize("seed", range(20))
def test_each_rank_is_in_one_group_and_those_that_ended_badly_are_alone(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice((1, 2, 7, 40))
    ends = [chance.choice((STOPPED, STOPPED, STOPPED, STOPPED, KILLED, HUNG)) for _ in range(count)]
    ends = [STOPPED if n > MANY else ended for n, ended in enumerate(ends)]
    sizes = [chance.choice((MIB, 40 * MIB, chance.randrange(4096 * MIB))) for _ in range(count)]
    leak = _seen_on(cycle_finding(), *(n for n in range(count) if chance.random() < 0.3))
    groups = rank_groups(_run(ends), _findings(sizes, leak))
    assert sorted(number for group in groups for number in group.ranks) == list(range(count))
    for group in groups:
        assert group.representative == group.ranks[0] and list(group.ranks) == sorted(group.ranks)
        assert len(group.ranks) == 1 or not group.outlying
        assert len({number in leak.ranks for number in group.ranks}) == 1
        assert group.leaks == (((1, leak.fingerprint),) if group.representative in leak.ranks else ())
    order = [(not group.outlying, group.representative) for group in groups]
    assert order == sorted(order)


@pytest.mark.parametrize("seed", range(20))
def test_groups_do_not_depend_on_which_rank_has_which_figures(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [(10, 400, 400, 900)[n % 4] * MIB + chance.randrange(2 * MIB) for n in range(24)] + [5000 * MIB]
    places = chance.sample(range(25), 25)
    moved = [0] * 25
    for number, place in enumerate(places):
        moved[place] = sizes[number]
    ends = [STOPPED] * 25
    before, after = (rank_groups(_run(ends), _findings(of)) for of in (sizes, moved))
    assert {frozenset(places[n] for n in g.ranks) for g in before} == {frozenset(g.ranks) for g in after}
    assert [g.ranks for g in after if g.outlying] == [(places[24],)]


def test_a_rank_with_far_more_than_its_peers_stands_alone_and_says_with_what() -> None:
    first, others = rank_groups(_run([STOPPED] * 8), _findings([MIB * (100 + n) for n in range(7)] + [900 * MIB]))
    assert first.ranks == (7,) and first.outlying and others.ranks == tuple(range(7))
    assert first.apart == ("holds 900.00 MiB in tensors, 7 peers 100.00 to 106.00 MiB",)


def test_stages_of_a_pipeline_are_groups_and_no_outliers() -> None:
    groups = rank_groups(_run([STOPPED] * 16), _findings([(100, 400, 400, 900)[n // 4] * MIB for n in range(16)]))
    assert _ranks(groups) == [(0, 1, 2, 3), tuple(range(4, 12)), (12, 13, 14, 15)]
    assert not any(group.outlying for group in groups)


def test_ranks_with_different_leaks_are_different_groups() -> None:
    leaks = (_seen_on(cycle_finding(), 1, 2, 3), _seen_on(growth_finding(), 3))
    note = replace(_seen_on(growth_finding("note"), 0), severity=Severity.NOTE)
    groups = rank_groups(_run([STOPPED] * 4), _findings([MIB] * 4, *leaks, note))
    assert [(g.ranks, g.leaks) for g in groups] == [
        ((0,), ()),
        ((1, 2), ((1, "b41c07e2"),)),
        ((3,), ((1, "b41c07e2"), (2, "0f3a9c11"))),
    ]


def test_a_rank_of_which_a_finding_says_that_it_keeps_more_stands_alone() -> None:
    skew = replace(
        _seen_on(growth_finding(), 2), rule=RuleName.RANK_SKEW, severity=Severity.NOTE, facts=StaticText("", "")
    )
    groups = rank_groups(_run([STOPPED] * 5), _findings([MIB] * 5, skew))
    assert _ranks(groups) == [(2,), (0, 1, 3, 4)]
    assert groups[0].apart == ("retains memory that other ranks release",)


@pytest.mark.parametrize(
    ("ends", "groups"),
    [
        pytest.param(lambda n: KILLED if n == 700 else LOST_PEER, 2, id="one killed, its peers failed"),
        pytest.param(lambda n: HUNG, 2, id="all hung"),
        pytest.param(lambda n: KILLED if n < MANY else STOPPED, MANY + 1, id="a few killed"),
    ],
)
def test_many_that_ended_badly_in_the_same_way_share_a_row(ends: Callable[[int], Ended], groups: int) -> None:
    told = rank_groups(_run([ends(n) for n in range(1024)]), _findings([MIB] * 1024))
    assert len(told) == groups and told[0].outlying
    assert sum(len(group.ranks) for group in told) == 1024


def test_ranks_that_took_another_number_of_steps_are_another_group() -> None:
    short = replace(STOPPED, steps=5)
    told = rank_groups(
        run(*(rank(n, 5 if n == 3 else 12, 0, short if n == 3 else STOPPED) for n in range(6))), _findings([MIB] * 6)
    )
    assert told[0].ranks == (3,) and told[0].apart == ("took 5 steps, 5 peers 12",)
