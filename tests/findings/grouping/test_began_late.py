"""Growth that began after the first snapshots is judged by the counters of the steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.judging import STEPS, growing, judged, tensor

from leakscope.findings.model import Findings, Why

ITEM, EVERY = 64 << 10, 10


def seen_once(rose: Callable[[int], int], items: int = 10) -> Findings:
    """What is found where each snapshot but the last was taken before anything was kept."""
    net = f"module train -> .net -> {tensor('w', 4096)}"
    log = growing("log", ITEM)
    heap = lambda step: net + log(items if step == 102 else 0)  # noqa: E731
    return judged(heap, at=(*STEPS, 102), last=200, counted=lambda step: (1 << 24) + rose(step))


def test_what_one_snapshot_saw_is_a_leak_where_the_counters_rose_before_and_after_it() -> None:
    (finding,) = seen_once(lambda step: step // EVERY * ITEM).findings
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
        finding.severity == "leak" and finding.subject == "train.log" for finding in seen_once(rose, items).findings
    )


def after_the_snapshots(rose: Callable[[int], int]) -> Findings:
    """What is found where the last snapshot was taken at step 9 of 300."""
    return judged(lambda _: "", last=300, counted=lambda step: (1 << 24) + rose(step))


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
