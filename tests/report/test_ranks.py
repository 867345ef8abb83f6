"""Ranks with similar behaviour form one group, outliers stand alone, and reports of many ranks stay small."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from click.testing import CliRunner
from leakscope_cli import main
from support import SAMPLES, examples
from support.examples import MIB, cycle_finding, growth_finding, rank, run
from support.runs.many_ranks import KILLED, OUTLYING, many

from leakscope.findings.facts import RuleName, Severity, StaticText
from leakscope.findings.model import Finding, Findings, RankSummary, Sighting
from leakscope.report import FORMATS
from leakscope.report.excerpt import seen_together
from leakscope.report.ranks import MANY, rank_groups
from leakscope.report.rendering import laid_out
from leakscope.report.text.ranks import rank_lines
from leakscope.run.model import Ended, Run
from leakscope.run.rows import EndKind
from leakscope.units import listed_numbers

STOPPED = Ended(EndKind.STOPPED, 0, 12)
DIED = Ended(EndKind.KILLED, 137, 5)
HUNG = Ended(EndKind.HUNG, 124, 5)
LOST_PEER = Ended(EndKind.RAISED, 1, 6, error="RuntimeError: Connection closed by peer [127.0.0.1]:29500")


def run_of(ends: Sequence[Ended]) -> Run:
    return run(*(rank(number, 12, 0, ended) for number, ended in enumerate(ends)))


def findings_of(sizes: Sequence[int], *findings: Finding) -> Findings:
    """Findings of ranks with these bytes in tensors."""
    summaries = {n: RankSummary(explained_bytes=size, counted_bytes=200 * MIB) for n, size in enumerate(sizes)}
    return Findings("clean", "", 0, findings, ranks=summaries)


def seen_on(finding: Finding, *ranks: int, size: int = 8 * MIB) -> Finding:
    return replace(finding, sightings=tuple(Sighting(r, s, size * s // 11) for r in ranks for s in (3, 11)))


@pytest.mark.parametrize("seed", range(10))
def test_each_rank_is_in_one_group_and_those_that_ended_badly_are_alone(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice((1, 2, 7, 40))
    ends = [chance.choice((STOPPED, STOPPED, STOPPED, STOPPED, DIED, HUNG)) for _ in range(count)]
    ends = [STOPPED if n > MANY else ended for n, ended in enumerate(ends)]
    sizes = [chance.choice((MIB, 40 * MIB, chance.randrange(4096 * MIB))) for _ in range(count)]
    leak = seen_on(cycle_finding(), *(n for n in range(count) if chance.random() < 0.3))
    groups = rank_groups(run_of(ends), findings_of(sizes, leak))
    assert sorted(number for group in groups for number in group.ranks) == list(range(count))
    for group in groups:
        assert group.representative == group.ranks[0] and list(group.ranks) == sorted(group.ranks)
        assert len(group.ranks) == 1 or not group.outlying
        assert tuple(name for _, name in group.leaks) == (
            (leak.fingerprint,) if group.representative in leak.ranks else ()
        )
        assert len({number in leak.ranks for number in group.ranks}) == 1
    order = [(not group.outlying, group.representative) for group in groups]
    assert order == sorted(order)


@pytest.mark.parametrize("seed", range(5))
def test_groups_do_not_depend_on_the_order_of_ranks(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [(10, 400, 400, 900)[n % 4] * MIB + chance.randrange(2 * MIB) for n in range(24)] + [5000 * MIB]
    places = chance.sample(range(25), 25)
    moved = [0] * 25
    for number, place in enumerate(places):
        moved[place] = sizes[number]
    before, after = (rank_groups(run_of([STOPPED] * 25), findings_of(of)) for of in (sizes, moved))
    assert {frozenset(places[n] for n in g.ranks) for g in before} == {frozenset(g.ranks) for g in after}
    assert [g.ranks for g in after if g.outlying] == [(places[24],)]


def test_a_rank_with_far_more_memory_than_its_peers_is_an_outlier_and_pipeline_stages_are_groups() -> None:
    first, others = rank_groups(run_of([STOPPED] * 8), findings_of([MIB * (100 + n) for n in range(7)] + [900 * MIB]))
    assert first.ranks == (7,) and first.outlying and first.apart and others.ranks == tuple(range(7))
    stages = rank_groups(run_of([STOPPED] * 16), findings_of([(100, 400, 400, 900)[n // 4] * MIB for n in range(16)]))
    assert [group.ranks for group in stages] == [(0, 1, 2, 3), tuple(range(4, 12)), (12, 13, 14, 15)]
    assert not any(group.outlying for group in stages)


def test_ranks_with_other_leaks_steps_or_a_skew_are_other_groups() -> None:
    leaks = (seen_on(cycle_finding(), 1, 2, 3), seen_on(growth_finding(), 3))
    note = replace(seen_on(growth_finding("note"), 0), severity=Severity.NOTE)
    groups = rank_groups(run_of([STOPPED] * 4), findings_of([MIB] * 4, *leaks, note))
    assert [(g.ranks, {name for _, name in g.leaks}) for g in groups] == [
        ((0,), set()), ((1, 2), {"b41c07e2"}), ((3,), {"0f3a9c11", "b41c07e2"}),
    ]  # fmt: skip
    facts = StaticText("", "")
    skew = replace(seen_on(growth_finding(), 2), rule=RuleName.RANK_SKEW, severity=Severity.NOTE, facts=facts)
    skewed = rank_groups(run_of([STOPPED] * 5), findings_of([MIB] * 5, skew))
    assert [group.ranks for group in skewed] == [(2,), (0, 1, 3, 4)] and skewed[0].apart
    ranks = (rank(n, 5 if n == 3 else 12, 0, replace(STOPPED, steps=5) if n == 3 else STOPPED) for n in range(6))
    shorter = rank_groups(run(*ranks), findings_of([MIB] * 6))
    assert shorter[0].ranks == (3,) and shorter[0].apart


@pytest.mark.parametrize(
    ("ends", "groups"),
    [
        pytest.param(lambda n: DIED if n == 700 else LOST_PEER, 2, id="one killed, its peers failed"),
        pytest.param(lambda n: HUNG, 2, id="all hung"),
        pytest.param(lambda n: DIED if n < MANY else STOPPED, MANY + 1, id="a few killed"),
    ],
)
def test_many_ranks_that_ended_badly_in_the_same_way_share_a_row(ends: Callable[[int], Ended], groups: int) -> None:
    found = rank_groups(run_of([ends(n) for n in range(1024)]), findings_of([MIB] * 1024))
    assert len(found) == groups and found[0].outlying
    assert sum(len(group.ranks) for group in found) == 1024


def test_bytes_of_few_ranks_are_listed_and_of_many_summarized() -> None:
    def rows(sizes: dict[int, int]) -> dict[str, tuple[int, ...]]:
        sightings = tuple(Sighting(r, s, size * s) for r, size in sizes.items() for s in (3, 5))
        (seen,) = seen_together(replace(growth_finding(), sightings=sightings))
        return dict(seen.rows())

    assert rows({0: MIB, 2: MIB, 1: 2 * MIB}) == {"ranks 0, 2": (3 * MIB, 5 * MIB), "rank 1": (6 * MIB, 10 * MIB)}
    alike = rows(dict.fromkeys(range(64), MIB))
    assert alike == {"on each rank": (3 * MIB, 5 * MIB), "total": (192 * MIB, 320 * MIB)}
    ranged = rows({rank: (9 if rank == 7 else 1 + rank % 2) * MIB for rank in range(64)})
    assert list(ranged) == ["smallest", "median", "largest", "total", "rank 7"]
    assert ranged["smallest"] == (3 * MIB, 5 * MIB) and ranged["largest"] == ranged["rank 7"] == (27 * MIB, 45 * MIB)


def test_ranks_with_snapshots_of_other_steps_are_listed_apart() -> None:
    sightings = [Sighting(r, s, MIB) for r in (0, 1) for s in (3, 5)] + [Sighting(2, s, MIB) for s in (4, 6)]
    seen = seen_together(replace(growth_finding(), sightings=tuple(sightings)))
    assert [(one.ranks, one.steps) for one in seen] == [((0, 1), (3, 5)), ((2,), (4, 6))]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([0, 1, 2, 7], "0-2, 7"),
        ([n for n in range(1024) if n != 700], "0-699, 701-1023"),
        (range(7, 1024, 8), "7, 15, 23, ..., 1023"),
        ([n for n in range(1024) if n % 8 in (0, 1, 2, 3, 6)], "0-3, 6, 8-11, 14, ..., 1022"),
        ([n * n for n in range(30)], "0, 1, 4, 9, 16, 25, 36, 49 and 22 more"),
    ],
)
def test_rank_numbers_are_written_as_ranges(numbers: Sequence[int], text: str) -> None:
    assert listed_numbers(numbers) == text


def test_the_text_has_a_line_for_each_group_within_the_width(golden: Callable[[str, str], None]) -> None:
    def lines(count: int, width: int = 110) -> list[str]:
        found = many(count)
        return list(laid_out(rank_lines(found[0], rank_groups(*found)), width))

    golden("eight_ranks.txt", "\n".join(lines(8)) + "\n")
    assert len(lines(1024)) <= len(lines(8)) + 4
    assert all(max(map(len, lines(64, width))) <= width for width in (60, 110))


@pytest.mark.process
def test_the_page_has_a_square_for_each_rank_and_a_row_for_each_group_and_stays_small() -> None:
    page, groups = FORMATS["html"](*many(1024)), rank_groups(*many(1024))
    strip = page.partition('class="strip"')[2].partition("</p>")[0]
    squares = re.findall(r'<i class="(\w+)" data-ranks="(\d+)" title="rank \2: [^"]+">.</i>', strip)
    assert [int(number) for _, number in squares] == list(range(1024))
    assert {state for state, _ in squares} == {"leaking", "well", "killed", "outlying"}
    assert [int(n) for state, n in squares if state in ("killed", "outlying")] == [KILLED, OUTLYING]
    rows = re.findall(r'<tr id="rank-(\d+)" data-ranks="([\d ]+)">', page)
    assert [(int(first), tuple(map(int, ranks.split()))) for first, ranks in rows] == [
        (group.representative, group.ranks) for group in groups
    ]
    assert page.count('<svg class="timeline"') <= len(groups) and len(page.encode()) < 2 * MIB


@pytest.mark.process
def test_text_of_many_ranks_is_escaped_on_the_page() -> None:
    only, findings = examples.hostile()
    ranks = tuple(replace(only.ranks[0], number=number) for number in range(12))
    page = FORMATS["html"](replace(only, ranks=ranks), findings)
    assert "<img src=x" not in page and 'class="strip"' in page


def test_one_rank_is_printed_on_request() -> None:
    recorded = str(SAMPLES / "p2p_pipeline" / "kept-outputs")
    done = CliRunner().invoke(main, ["report", recorded, "--rank", "1", "--rank", "0", "--rank", "1"])
    assert done.exit_code == 0
    heads = [line for line in done.stdout.splitlines() if line.startswith("Rank ")]
    assert heads == ["Rank 1 of 2 ranks", "Rank 0 of 2 ranks"]
    for words in (["--rank", "7"], ["--rank", "-1"], ["--rank", "0", "--as", "json"]):
        done = CliRunner().invoke(main, ["report", recorded, *words])
        assert done.exit_code == 2 and done.stdout == "" and "rank" in done.stderr.splitlines()[-1]
