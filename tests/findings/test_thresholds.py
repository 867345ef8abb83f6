"""How much growth makes a leak: both sides of each threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.judging import Heap, growing, rank_of, run_of, tensor

from leakscope.findings.judge import judge
from leakscope.findings.model import Findings
from leakscope.findings.thresholds import MIN_COUNTER_GROWTH, USUAL_MEMORY, Thresholds
from leakscope.run.rows import MemoryThere

GIB = 1 << 30


def plain(size: int) -> Heap:
    return growing(size=size)


def with_graph(size: int) -> Heap:
    return lambda step: "".join(
        f"module train -> .kept -> list kept\nlist kept -> [{k}] -> tensor t{k}\n"
        f"tensor t{k} -> .grad_fn -> node n{k}\nnode n{k} -> saved self -> storage s{k} {size}\n"
        for k in range(step)
    )


def cycles(size: int) -> Heap:
    return lambda step: "".join(
        f"object o#{k} freed=1 -> .me -> object o#{k}\nobject o#{k} -> .kept -> {tensor(f't{k}', size, 'freed=1')}"
        for k in range(step)
    )


def judged(kind: Callable[[int], Heap], size: int, memory: int = 24 * GIB, **options: int) -> Findings:
    rank = rank_of(kind(size), last=9, host_memory=(MemoryThere("the host's memory", memory),))
    return judge(run_of(rank, **options))


@pytest.mark.parametrize(("size", "verdict"), [(2576, "clean"), (2577, "leaks")])
def test_plain_data_leaks_from_one_percent_of_memory_on(size: int, verdict: str) -> None:
    memory = 2577 * 100_000 * 100  # one percent of it in as many steps
    assert judged(plain, size, memory=memory).verdict == verdict


@pytest.mark.parametrize(("horizon", "verdict"), [(10_000, "clean"), (200_000, "leaks")])
def test_the_horizon_scales_it(horizon: int, verdict: str) -> None:
    assert judged(plain, 2000, horizon=horizon).verdict == verdict


@pytest.mark.parametrize("kind", [with_graph, cycles])
def test_what_nobody_intends_is_a_leak_however_small(kind: Callable[[int], Heap]) -> None:
    assert judged(kind, 4, memory=1 << 50).verdict == "leaks"
    assert judged(plain, 4, memory=1 << 50).verdict == "clean"


@pytest.mark.parametrize(("kind", "beside"), [(with_graph, 400), (cycles, 0), (plain, 0)])  # of its grad node
def test_a_threshold_of_the_users_own_overrides_both(kind: Callable[[int], Heap], beside: int) -> None:
    assert judged(kind, 511 - beside, min_bytes=512).verdict == "clean"
    assert judged(kind, 512 - beside, min_bytes=512).verdict == "leaks"


def test_unknown_memory_is_taken_for_the_usual() -> None:
    thresholds = Thresholds()
    assert thresholds.for_data() == thresholds.for_data(on_device=True) == round(USUAL_MEMORY / 100 / 100_000)
    assert replace(thresholds, device_bytes=80 * GIB).for_data(on_device=True) == round(0.8 * GIB / 100_000)
    assert (thresholds.for_counters, replace(thresholds, min_bytes=7).for_counters) == (MIN_COUNTER_GROWTH, 7)


@pytest.mark.parametrize(("rise", "verdict"), [(MIN_COUNTER_GROWTH - 1, "clean"), (MIN_COUNTER_GROWTH, "inconclusive")])
def test_the_verdict_is_that_of_the_worst_rank(rise: int, verdict: str) -> None:
    """Rank 1 ended after four steps, the last two of which took so much more."""
    still = rank_of(lambda _: f"module train -> .w -> {tensor('w', 4096)}", last=9)
    short = rank_of(lambda _: "", 1, at=(), last=4, counted=lambda step: (100 << 20) + max(step - 2, 0) * rise)
    found = judge(run_of(still, short))
    assert (found.verdict, found.ranks[0].verdict, found.ranks[1].verdict) == (verdict, "clean", verdict)
