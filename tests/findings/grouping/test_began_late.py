"""What began to grow after the first snapshots, and was seen by one of them alone, is judged by the counters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.heap_text import heap_from

from leakscope.findings.judge import judge
from leakscope.findings.model import Findings, Why
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

ITEM, EVERY = 64 << 10, 10


def kept(items: int) -> str:
    text = "module train -> .net -> tensor w\ntensor w -> storage -> storage w 4096\n"
    text += f"module train -> .log -> list log {items}\n"
    for k in range(items):
        text += f"list log -> [{k}] -> tensor t{k}\ntensor t{k} -> storage -> storage t{k} {ITEM}\n"
    return text


def judged(rose: Callable[[int], int], items: int = 10) -> Findings:
    """What is said where each snapshot but the last was taken before anything was kept."""
    looks = tuple(
        HeapSnapshot(step, "step", heap_from(kept(items if step == 102 else 0)), None, 0) for step in (3, 5, 7, 9, 102)
    )
    steps = tuple(Step(n, 0.1, (1 << 24) + rose(n), None) for n in range(1, 201))
    return judge(Run(("train.py",), (Rank(0, steps, looks, Ended("finished", 0, 200)),), 1, "cpu", "2.13.0", "0"))


def test_what_one_snapshot_saw_is_a_leak_where_the_counters_rose_before_and_after_it() -> None:
    (finding,) = judged(lambda step: step // EVERY * ITEM).findings
    assert (finding.severity, finding.subject) == ("leak", "train.log")
    assert finding.bytes_per_step == pytest.approx(ITEM / EVERY, rel=0.1)


@pytest.mark.parametrize(
    ("rose", "items"),
    [
        (lambda step: min(step, 102) // EVERY * ITEM, 10),
        (lambda step: step // 60 * 6 * ITEM, 10),
        (lambda step: step // EVERY * ITEM, 2),
        (lambda step: step // EVERY * ITEM * 10, 10),
    ],
    ids=["it stopped", "at once", "few items", "others grow far more"],
)
def test_what_one_snapshot_saw_is_no_leak_where_they_did_not(rose: Callable[[int], int], items: int) -> None:
    assert not any(
        finding.severity == "leak" and finding.subject == "train.log" for finding in judged(rose, items).findings
    )


def after_the_snapshots(rose: Callable[[int], int]) -> Findings:
    """What is said where the last snapshot was taken at step 9 of 300."""
    looks = tuple(HeapSnapshot(step, "step", heap_from(kept(0)), None, 0) for step in (3, 5, 7, 9))
    steps = tuple(Step(n, 0.1, (1 << 24) + rose(n), None) for n in range(1, 301))
    return judge(Run(("train.py",), (Rank(0, steps, looks, Ended("finished", 0, 300)),), 1, "cpu", "2.13.0", "0"))


def test_growth_that_began_after_the_last_snapshot_is_not_called_clean() -> None:
    findings = after_the_snapshots(lambda step: max(step - 150, 0) * 3300)
    assert findings.verdict == "inconclusive"
    assert isinstance(findings.why, Why) and findings.why.grown is not None
    assert findings.why.grown.per_step == 3300 and findings.why.grown.from_step > 150


@pytest.mark.parametrize(
    "rose",
    [
        lambda step: max(step - 150, 0) * 500,
        lambda step: 64 * 3300 if step > 200 else 0,
        lambda step: max(min(step, 250) - 150, 0) * 3300,
        lambda step: (step % 7) * 3300,
    ],
    ids=["few bytes", "once", "it stopped", "comes and goes"],
)
def test_what_does_not_grow_on_after_the_last_snapshot_is_clean(rose: Callable[[int], int]) -> None:
    assert after_the_snapshots(rose).verdict == "clean"
