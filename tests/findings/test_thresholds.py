"""How much growth makes a leak: both sides of each threshold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.heap_text import heap_from

from leakscope.findings.judge import judge
from leakscope.findings.model import Findings
from leakscope.findings.thresholds import COUNTED, USUAL_MEMORY, Thresholds
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step
from leakscope.run.rows import EndKind, MemoryThere, Occasion

GIB = 1 << 30
STEPS = (3, 5, 7, 9)


def plain(step: int, size: int) -> str:
    return "".join(
        f"module train -> .kept -> list kept\nlist kept -> [{k}] -> tensor t{k}\n"
        f"tensor t{k} -> storage -> storage t{k} {size}\n"
        for k in range(step)
    )


def with_graph(step: int, size: int) -> str:
    return "".join(
        f"module train -> .kept -> list kept\nlist kept -> [{k}] -> tensor t{k}\n"
        f"tensor t{k} -> .grad_fn -> node n{k}\nnode n{k} -> saved self -> storage s{k} {size}\n"
        for k in range(step)
    )


def cycles(step: int, size: int) -> str:
    return "".join(
        f"object o#{k} freed=1 -> .me -> object o#{k}\nobject o#{k} -> .kept -> tensor t{k} freed=1\n"
        f"tensor t{k} -> storage -> storage t{k} {size} freed=1\n"
        for k in range(step)
    )


def run_of(*heaps: str, memory: int = 24 * GIB, **options: int) -> Run:
    looks = tuple(
        HeapSnapshot(step, Occasion.STEP, heap_from(text), None, 0) for step, text in zip(STEPS, heaps, strict=True)
    )
    steps = tuple(Step(number, 0.1, None, None) for number in range(1, STEPS[-1] + 1))
    ended = Ended(EndKind.FINISHED, 0, STEPS[-1])
    rank = Rank(0, steps, looks, ended, host_memory=(MemoryThere("the host's memory", memory),))
    return Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0", **options)


def judged(kind: object, size: int, **options: int) -> Findings:
    return judge(run_of(*(kind(step, size) for step in STEPS), **options))  # type: ignore[operator]


@pytest.mark.parametrize(("size", "verdict"), [(2576, "clean"), (2577, "leaks")])
def test_plain_data_leaks_from_one_percent_of_memory_on(size: int, verdict: str) -> None:
    memory = 2577 * 100_000 * 100  # one percent of it in as many steps
    assert judged(plain, size, memory=memory).verdict == verdict


@pytest.mark.parametrize(("horizon", "verdict"), [(10_000, "clean"), (200_000, "leaks")])
def test_the_horizon_scales_it(horizon: int, verdict: str) -> None:
    assert judged(plain, 2000, horizon=horizon).verdict == verdict


@pytest.mark.parametrize("kind", [with_graph, cycles])
def test_what_nobody_intends_is_a_leak_however_small(kind: object) -> None:
    assert judged(kind, 4, memory=1 << 50).verdict == "leaks"
    assert judged(plain, 4, memory=1 << 50).verdict == "clean"


@pytest.mark.parametrize(("kind", "beside"), [(with_graph, 400), (cycles, 0), (plain, 0)])  # of its grad node
def test_a_threshold_of_the_users_own_overrides_both(kind: object, beside: int) -> None:
    assert judged(kind, 511 - beside, min_bytes=512).verdict == "clean"
    assert judged(kind, 512 - beside, min_bytes=512).verdict == "leaks"


def test_unknown_memory_is_taken_for_the_usual() -> None:
    thresholds = Thresholds()
    assert thresholds.of_data() == thresholds.of_data(on_device=True) == round(USUAL_MEMORY / 100 / 100_000)
    assert replace(thresholds, device_bytes=80 * GIB).of_data(on_device=True) == round(0.8 * GIB / 100_000)
    assert (thresholds.counted, replace(thresholds, min_bytes=7).counted) == (COUNTED, 7)


def short_rank(rise: int) -> Rank:
    """A rank that ended after four steps, the last two of which took so much more."""
    steps = tuple(Step(k, 0.1, (100 << 20) + max(k - 2, 0) * rise, None) for k in range(1, 5))
    return Rank(1, steps, (), Ended(EndKind.FINISHED, 0, 4))


@pytest.mark.parametrize(("rise", "verdict"), [(COUNTED - 1, "clean"), (COUNTED, "inconclusive")])
def test_the_verdict_is_that_of_the_worst_rank(rise: int, verdict: str) -> None:
    still = run_of(*("module train -> .model -> tensor w\ntensor w -> storage -> storage w 4096\n" for _ in STEPS))
    found = judge(replace(still, ranks=(*still.ranks, short_rank(rise)), expected_ranks=2))
    assert (found.verdict, found.ranks[0].verdict, found.ranks[1].verdict) == (verdict, "clean", verdict)
