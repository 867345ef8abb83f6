"""From a recorded run to its verdict: the stages, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from leakscope.findings.known.suppressed import known_of
from leakscope.findings.model import Findings
from leakscope.findings.stages.alone import judged_alone
from leakscope.findings.stages.candidates import find_candidates
from leakscope.findings.stages.case import Case, JudgedRank, RankCase, RankStage, Stage
from leakscope.findings.stages.gaps import explain_gaps
from leakscope.findings.stages.gather import add_memory_of_rank, compare_ranks, gather
from leakscope.findings.stages.ledger import balance_looks, heed_libraries, keep_ledger, set_apart
from leakscope.findings.stages.merge import merge_by_cut, merge_contexts, merge_ranks, name_upstream
from leakscope.findings.stages.objects import find_objects
from leakscope.findings.stages.proof import add_proofs
from leakscope.findings.stages.rules import apply_rules
from leakscope.findings.stages.series import group_looks, take_looks
from leakscope.findings.stages.source import find_lines, point_to_backward
from leakscope.findings.stages.verdict import give_verdict
from leakscope.findings.thresholds import Thresholds
from leakscope.record.model import Rank, Run
from leakscope.record.suppression import Suppression

LEAKS_FOUND = 23
"""Exit status where leaks are found; scripts and shells seldom use it themselves."""

STAGES_OF_RANK: tuple[RankStage, ...] = (
    take_looks,
    group_looks,
    balance_looks,
    find_candidates,
    apply_rules,
    find_objects,
    explain_gaps,
    merge_by_cut,
    add_memory_of_rank,
    point_to_backward,
)
"""Series, groups, candidates, rules: each stage adds what it finds out of one rank by itself."""
STAGES: tuple[Stage, ...] = (
    gather,
    name_upstream,
    merge_contexts,
    merge_ranks,
    find_lines,
    compare_ranks,
    add_proofs,
    heed_libraries,
    set_apart,
    keep_ledger,
    give_verdict,
)
"""Merge, ledger, verdict: each stage adds what it finds out of all ranks; of their heaps it asks no more."""


def judge(
    run: Run,
    *,
    suppress: Collection[str] = (),
    baseline: Collection[str] = (),
    leak_exit_code: int = LEAKS_FOUND,
    ignore_library: bool = False,
    fail_on_avoidable: int | None = None,
    fail_on_inconclusive: bool = False,
) -> Findings:
    """The verdict of a run, and each distinct leak in it; `leakscope.judge` says what the arguments are."""
    return judge_together(
        run,
        [judge_rank(run, rank) for rank in run.ranks],
        suppress=suppress,
        baseline=baseline,
        leak_exit_code=leak_exit_code,
        ignore_library=ignore_library,
        fail_on_avoidable=fail_on_avoidable,
        fail_on_inconclusive=fail_on_inconclusive,
    )


def judge_rank(run: Run, rank: Rank) -> JudgedRank:
    """What there is to say of one rank by itself; of the run only what holds for all ranks is asked."""
    case = RankCase(rank, run.warmup_of(rank), Thresholds.of(run, rank), run.sources)
    for stage in STAGES_OF_RANK:
        case = stage(case)
    return judged_alone(case)


def judge_together(
    run: Run,
    ranks: Iterable[JudgedRank],
    *,
    suppress: Collection[str] = (),
    baseline: Collection[str] = (),
    leak_exit_code: int = LEAKS_FOUND,
    ignore_library: bool = False,
    fail_on_avoidable: int | None = None,
    fail_on_inconclusive: bool = False,
) -> Findings:
    """As `judge`, of a run each of whose ranks has been judged by itself, in their order."""
    known = known_of(run, tuple(map(Suppression, (*suppress, *baseline))))
    case = Case(run, known, leak_exit_code, tuple(ranks), ignore_library, fail_on_avoidable, fail_on_inconclusive)
    for stage in STAGES:
        case = stage(case)
    assert case.judged is not None
    return case.judged
