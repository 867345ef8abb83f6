"""Memory that one rank keeps and its peers free is a note with the reference that retains it."""

from __future__ import annotations

import torch
from support.comm_examples import rank_with, run_of

from leakscope.findings.categories import summary
from leakscope.findings.facts import StaticText
from leakscope.findings.model import Finding, RankSummary, Sighting
from leakscope.findings.rules.rank_skew import held_at_last, skew_findings
from leakscope.heap.snapshot import look
from leakscope.report.finding_text import title
from leakscope.run.model import Ended, Rank, Run


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


def test_a_skewed_rank_is_told_with_the_reference_that_holds_most() -> None:
    torch.set_num_threads(1)
    stash = {"logits": [torch.ones(2 << 20) for _ in range(4)]}
    looks = [look(9, "step")]
    del stash["logits"]
    looks.append(look(9, "step"))
    run = run_of(*(Rank(n, (), (found,), Ended("finished", 0, 9)) for n, found in enumerate(looks)))
    summaries = {rank.number: summary(rank, ()) for rank in run.ranks}
    (finding,) = skew_findings(run, summaries, (), _held(run))
    assert (finding.rule, finding.ranks, finding.severity, finding.count) == ("rank-skew", (0,), "note", 4)
    assert finding.cut is not None and finding.cut.frees_bytes == 32 << 20
    assert finding.cut.reference == "['logits']" and ", mostly in stash['logits'] in test_a_skewed_rank" in title(
        finding
    )
    assert finding.trace[0].object == "frame of test_a_skewed_rank_is_told_with_the_reference_that_holds_most"


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
