"""Growing containers are reported with their name, rate and bytes."""

from __future__ import annotations

import collections
import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch

from leakscope.findings import judge
from leakscope.findings.model import Finding
from leakscope.heap.growth import Gains
from leakscope.heap.snapshot import SnapshotContext, take_heap_snapshot
from leakscope.process.user_code import is_users
from leakscope.report.finding_text import title
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run
from leakscope.run.rows import EndKind, GainingContainer

SNAPSHOT_STEPS = (3, 5, 7, 9)
NEAR = 0.05
"""Share by which measured bytes may differ from what tracemalloc counts: what a list has in reserve."""


class Node:
    """One of a chain."""

    def __init__(self, text: str, before: Node | None) -> None:
        self.text, self.before = text, before


class Trainer:
    """Has what a trainer has."""

    def __init__(self) -> None:
        self.newest: Node | None = None

    def link(self, text: str) -> None:
        """Put one more in front of the chain."""
        self.newest = Node(text, self.newest)


def _text(step: int, size: int) -> str:
    return f"{step:09}" + "x" * size


STORIES: dict[str, tuple[Callable[[dict[str, Any], int], object], str, str]] = {
    "strings": (lambda held, step: held["texts"].append(_text(step, 90_000)), "texts", "1 str"),
    "untracked dict": (lambda held, step: held["plain"].update({step: _text(step, 70_000)}), "plain", "1 str"),
    "numbers": (
        lambda held, step: held["logs"].append(torch.randn(8, 400).tolist()),
        "logs",
        "1 list of 8 list of 400 float",
    ),
    "linked records": (
        lambda held, step: held["trainer"].link(_text(step, 65_000)),
        "trainer.newest",
        "1 Node",
    ),
}
"""Name to (one step of it, its container as written, what it gains a step)."""


@dataclass(frozen=True)
class Lived:
    """All stories, lived in one process at once."""

    heap_snapshots: tuple[HeapSnapshot, ...]
    findings: dict[str, Finding]
    """By how the holder is written."""
    traced: dict[str, float]
    """Bytes a step that tracemalloc counts of each story."""


@pytest.fixture(scope="module")
def lived() -> Lived:
    traced = _traced()
    snapshots = _live()
    return Lived(snapshots, _findings(snapshots), traced)


def _traced() -> dict[str, float]:
    """The stories lived without a look: under tracemalloc one takes ten times as long."""
    held: dict[str, Any] = {"texts": [], "trainer": Trainer(), "plain": {}, "logs": []}
    traced: dict[str, list[int]] = collections.defaultdict(list)
    tracemalloc.start()
    for step in range(1, max(SNAPSHOT_STEPS) + 1):
        for name, (once, *_) in STORIES.items():
            before = tracemalloc.get_traced_memory()[0]
            once(held, step)
            traced[name].append(tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    return {name: sum(sizes[SNAPSHOT_STEPS[0] :]) / len(sizes[SNAPSHOT_STEPS[0] :]) for name, sizes in traced.items()}


def _live() -> tuple[HeapSnapshot, ...]:
    gains, snapshots = Gains(), []
    texts: list[str] = []
    trainer = Trainer()
    plain: dict[int, str] = {}
    logs: list[Any] = []
    floats: list[float] = []
    newest: collections.deque[str] = collections.deque(maxlen=3)
    bounded: dict[int, str] = {}
    words: list[str] = []
    held = {"texts": texts, "trainer": trainer, "plain": plain, "logs": logs}
    for step in range(1, max(SNAPSHOT_STEPS) + 1):
        for once, *_ in STORIES.values():
            once(held, step)
        floats.append(step * 0.1)
        newest.append(_text(step, 90_000))
        bounded[step] = _text(step, 90_000)
        bounded.pop(step - 3, None)
        if step <= SNAPSHOT_STEPS[1]:
            words.extend(_text(step, 10_000 + k) for k in range(20))
        batch = [float(step + k) for k in range(4000 * step)]  # a new list each step, at the address of the last
        del batch
        if step in SNAPSHOT_STEPS:
            snapshots.append(take_heap_snapshot(step, "step", SnapshotContext(hidden=(gains, snapshots), gains=gains)))
    return tuple(snapshots)


def _findings(snapshots: tuple[HeapSnapshot, ...]) -> dict[str, Finding]:
    rank = Rank(0, (), tuple(replace(one, counted_bytes=None) for one in snapshots), Ended(EndKind.FINISHED, 0, 9))
    run = Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0.1.0", warmup=2, min_bytes=16 * 1024)
    return {finding.subject.partition(" in ")[0]: finding for finding in judge(run).findings}


def test_a_growing_container_is_named_with_rate_and_bytes(lived: Lived) -> None:
    for name, (_, holder, gained) in STORIES.items():
        finding = lived.findings[holder]
        assert (finding.rule, finding.severity) == ("object-growth", "leak")
        assert gained in title(finding)
        assert finding.cut is not None and finding.cut.written == finding.subject
        assert finding.cut.frees_bytes == finding.retained_bytes
        assert finding.bytes_per_step == pytest.approx(lived.traced[name], rel=NEAR)


def test_bounded_and_plateaued_containers_are_no_leak(lived: Lived) -> None:
    leaks = {name for name, finding in lived.findings.items() if finding.severity == "leak"}

    assert leaks == {holder for _, holder, _ in STORIES.values()}


def test_no_object_is_kept_alive() -> None:
    gains, texts = Gains(), [_text(k, 5_000) for k in range(3)]
    other: list[list[str]] = [texts]
    before = [gc.get_referrers(texts) and len(gc.get_referrers(texts))]
    for step in range(3):
        texts.append(_text(step, 5_000))
        take_heap_snapshot(step, "step", SnapshotContext(hidden=(gains,), gains=gains))

    assert len(gc.get_referrers(texts)) == before[0]
    assert not {type(held) for held in gc.get_referents(gains._of)} - {int, type(next(iter(gains._of.values())))}
    assert other


def test_a_cache_of_ours_gains_nothing_and_that_of_the_user_does() -> None:
    @cache
    def theirs(text: str) -> str:
        return text + "!"

    gains = Gains()
    is_users.cache_clear()  # full of what other tests looked up, it would gain nothing
    found: list[GainingContainer] = []
    for step in range(3):
        for k in range(200):
            is_users(f"/no/such/folder/{step}/{k}.py")
            theirs(f"{step} {k} " + "x" * 100)
        found += take_heap_snapshot(step, "step", SnapshotContext(gains=gains, hidden=(gains,))).containers
    assert is_users.cache_info().currsize >= 600
    assert [container.items for container in found] == [400, 600]
