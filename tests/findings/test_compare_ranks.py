"""Memory that one rank keeps and its peers free is a note with the reference that retains it."""

from __future__ import annotations

from support.comm_examples import rank_with, run_of
from support.heap_text import heap_from

from leakscope.findings.categories import summary
from leakscope.findings.facts import StaticText
from leakscope.findings.model import Finding, RankSummary, Sighting
from leakscope.findings.rules.rank_skew import held_at_last, skew_findings
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run


def _summary(model: int, beside: int) -> RankSummary:
    return RankSummary(categories={"parameter": model, "held by a named root": beside})


def _held(run: Run) -> dict[int, dict[int, int] | None]:
    return {rank.number: held_at_last(rank) for rank in run.ranks}


def test_a_rank_that_keeps_what_its_peers_let_go_is_a_note() -> None:
    mib = 1024 * 1024
    run = run_of(*(rank_with(n) for n in range(3)))
    summaries = {0: _summary(100 * mib, 20 * mib), 1: _summary(200 * mib, 40 * mib), 2: _summary(100 * mib, 90 * mib)}
    (finding,) = skew_findings(run, summaries, (), _held(run))
    assert finding.ranks == (2,) and finding.severity == "note" and finding.retained_bytes == 70 * mib


def test_the_note_of_a_skewed_rank_has_the_reference_that_retains_most() -> None:
    text = "frame train -> local stash -> dict stash\ndict stash -> ['logits'] -> list logits\n" + "".join(
        f"list logits -> [{k}] -> tensor t{k}\ntensor t{k} -> storage -> storage s{k} {8 << 20}\n" for k in range(4)
    )
    looks = [HeapSnapshot(9, "step", heap_from(heap), None, 0) for heap in (text, "")]
    run = run_of(*(Rank(n, (), (found,), Ended("finished", 0, 9)) for n, found in enumerate(looks)))
    summaries = {rank.number: summary(rank, ()) for rank in run.ranks}
    (finding,) = skew_findings(run, summaries, (), _held(run))
    assert (finding.rule, finding.ranks, finding.severity, finding.count) == ("rank-skew", (0,), "note", 4)
    assert finding.cut is not None and finding.cut.frees_bytes == 32 << 20
    assert finding.cut.reference == "['logits']" and finding.trace[0].object == "frame train"


def test_a_larger_stage_may_hold_more_and_what_is_named_is_no_skew() -> None:
    mib = 1024 * 1024
    run = run_of(rank_with(0), rank_with(1))
    assert skew_findings(run, {0: _summary(50 * mib, 20 * mib), 1: _summary(200 * mib, 80 * mib)}, (), {}) == []
    named = Finding(
        "step-growth",
        StaticText("", ""),
        "1",
        "leak",
        "program",
        70 * mib,
        0.0,
        (),
        None,
        sightings=(Sighting(1, 3, 70 * mib),),
    )
    summaries = {0: _summary(100 * mib, 20 * mib), 1: _summary(100 * mib, 90 * mib)}
    assert skew_findings(run, summaries, (), _held(run)) and skew_findings(run, summaries, (named,), {}) == []
