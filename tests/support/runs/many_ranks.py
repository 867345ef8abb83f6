"""A run of many ranks, made in memory: most clean, some leaking, one killed, one far from its peers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import pairwise

from leakscope.findings.gc_advice import FullEachStep
from leakscope.findings.model import Finding, Findings, LedgerInterval, Line, LineKind, Sighting, Unjudged
from leakscope.run.model import Ended, Rank, Run
from leakscope.run.rows import EndKind
from support.examples import (
    KIB,
    MIB,
    comm_operations,
    cycle_finding,
    growth_finding,
    note_finding,
    rank,
    run,
    summary,
)

KILLED, OUTLYING = 3, 6
"""Numbers of the rank that was killed, and of the one that holds far more than its peers."""
SNAPSHOT_STEPS = (3, 5, 9, 11)


@cache
def many(count: int) -> tuple[Run, Findings]:
    """Every fourth rank has a cycle, every eighth also a list that grows; each has notes and figures of its own."""
    cycle = _seen(cycle_finding(), range(0, count, 4))
    growth = _seen(growth_finding(), range(0, count, 8))
    ranks = tuple(_rank(number) for number in range(count))
    kinds = (Line(LineKind.LEAKS, 3 * MIB, "b41c07e2", "extract"), Line(LineKind.UNATTRIBUTED, 12 * KIB))
    findings = Findings(
        verdict="leaks",
        why="2 distinct leaks.",
        exit_status=23,
        findings=(cycle, growth, _seen(note_finding(), range(count))),
        unjudged=tuple(Unjudged("late-release", number, "lifetimes were not recorded") for number in range(count)),
        ranks={
            number: replace(summary(number % 3, MIB), explained_bytes=(900 if number == OUTLYING else 9) * MIB)
            for number in range(count)
        },
        ledgers={
            number: tuple(
                LedgerInterval(a, b, sum(line.bytes for line in kinds), kinds) for a, b in pairwise(SNAPSHOT_STEPS)
            )
            for number in range(0, count, 4)
        },
        gc_advice=tuple(
            FullEachStep(step_seconds=0.05, times=4.0 + number % 3, rank=number) for number in range(0, count, 4)
        ),
    )
    return run(*ranks), findings


def _seen(finding: Finding, ranks: Iterable[int]) -> Finding:
    return replace(
        finding, sightings=tuple(Sighting(r, s, 128 * KIB * s + r % 5 * KIB) for r in ranks for s in SNAPSHOT_STEPS)
    )


def _rank(number: int) -> Rank:
    if number == KILLED:
        ended = Ended(EndKind.KILLED, 137, 5, log=f"logs/rank_{number}.log")
        return rank(number, 5, 0, ended, notes=("the last line of steps.jsonl was cut off",))
    growth = 256 * KIB if number % 4 == 0 else 0
    return rank(number, 12, growth, operations=comm_operations(2, 2), notes=("no look of the first step",))
