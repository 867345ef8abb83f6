"""Process counters are reported only when they grow steadily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.recorded_rows import rows

from leakscope.findings.counters import AlsoGrows, CountKind, also_grows
from leakscope.run.model import Ended, Rank
from leakscope.run.rows import EndKind

MIB = 1 << 20
LAYOUT = ("device", "reserved", "active", "allocated", "pending", "rounding", "stuck")
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24)


def judged(**files: Sequence[Mapping[str, Any]]) -> tuple[AlsoGrows, ...]:
    return also_grows(Rank(3, (), (), Ended(EndKind.FINISHED, 0, 24), **rows(**files)), warmup=2, min_per_step=1 << 16)


def descriptors(counts: Sequence[int]) -> tuple[AlsoGrows, ...]:
    reported = [
        {"step": step, "descriptors": {"pipe": 4, "socket to node0:80": count}, "most_descriptors": 1024}
        for step, count in zip(STEPS, counts, strict=True)
    ]
    return judged(counts=reported)


def test_a_trend_is_told_with_what_grows_and_the_limit() -> None:
    (grown,) = descriptors([5 + 3 * step for step in STEPS])
    assert (grown.what, grown.rank, grown.before, grown.now) == (CountKind.DESCRIPTORS, 3, 18, 81)
    assert grown.by == (("socket to node0:80", 63),)
    assert (grown.from_step, grown.to_step, grown.limit) == (3, 24, 1024)


@pytest.mark.parametrize(
    "counts",
    [
        [5] * len(STEPS),
        [5, 90, 90, 90, 90, 90, 90, 90, 90, 90],
        [5, 5, 5, 25, 5, 25, 5, 25, 5, 25],
        [5, 5, 10, 20, 30, 40, 10, 20, 30, 40],
        [5, 5, 5, 6, 6, 7, 7, 8, 8, 9],
        [5, 5, 10, 20, 30, 60, 60, 60, 60, 60],
    ],
    ids=["a level", "filled in warm-up", "workers of each epoch", "epochs", "too little", "came to rest"],
)
def test_what_is_no_trend_is_not_told(counts: Sequence[int]) -> None:
    assert descriptors(counts) == ()


@pytest.mark.parametrize(("last", "reported"), [(13, True), (12, False)])
def test_eight_more_descriptors_are_reported(last: int, reported: bool) -> None:
    assert bool(descriptors([5, 5, 5, 6, 7, 8, 9, 10, 11, last])) is reported


def test_what_comes_and_goes_is_not_told_though_each_stretch_ends_a_little_higher() -> None:
    counts = [100 + 2 * (number // 3) + (0, 50, 25)[number % 3] for number in range(16)]
    assert judged(counts=[{"step": 3 + n, "descriptors": {"pipe": count}} for n, count in enumerate(counts)]) == ()
    counts = [100 + 50 * (number // 3) + (0, 50, 25)[number % 3] for number in range(16)]
    assert len(judged(counts=[{"step": 3 + n, "descriptors": {"pipe": c}} for n, c in enumerate(counts)])) == 1


def test_too_few_countings_tell_nothing() -> None:
    reported = [{"step": step, "descriptors": {"pipe": 10 * step}} for step in (1, 2, 3, 6, 9)]
    assert judged(counts=reported) == ()
    assert len(judged(counts=[*reported, {"step": 12, "descriptors": {"pipe": 120}}])) == 1


def compiled(functions: int, times: int, over_limit: bool = False) -> Mapping[str, Any]:
    again = [{"name": "forward", "at": "model.py:12", "times": times, "reason": "L['n'] == 3"}]
    return {"functions": functions, "again": again if times else [], "over_limit": over_limit}


def test_compiling_at_first_is_not_told_and_compiling_again_and_again_is() -> None:
    first = [{"step": step, "compiled": compiled(9, 0)} for step in STEPS]
    assert judged(counts=first) == ()
    again = [{"step": step, "compiled": compiled(9 + step, step)} for step in STEPS]
    (grown,) = judged(counts=again)
    assert grown.now - grown.before == 21 and not grown.over_limit
    (function,) = grown.again
    assert (function.name, function.at, function.times, function.reason) == (
        "forward",
        "model.py:12",
        24,
        "L['n'] == 3",
    )
    given_up = [{"step": step, "compiled": compiled(min(step, 8), min(step, 7), step > 8)} for step in STEPS]
    (grown,) = judged(counts=given_up)
    assert grown.over_limit


def test_pinned_memory_and_private_pools_are_told_from_min_bytes_a_step_on() -> None:
    def of_device(each: int) -> dict[str, list[dict[str, Any]]]:
        layout = dict.fromkeys(LAYOUT, 0)
        figures = {"device": 0, "allocated": 0, "active": 0, "reserved": 0, "peak": 0, "stuck": 0, "retries": 0}
        steps = [
            {
                "step": step,
                "kind": "cuda",
                "devices": [{**figures, "failures": 0}],
                "layout": [{**layout, "private": each * step}],
            }
            for step in STEPS
        ]
        return {"counts": [{"step": step, "pinned_bytes": each * step} for step in STEPS], "device": steps}

    assert [grown.what for grown in judged(**of_device(MIB))] == [CountKind.PINNED_MEMORY, CountKind.PRIVATE_POOLS]
    assert judged(**of_device(1 << 15)) == ()
