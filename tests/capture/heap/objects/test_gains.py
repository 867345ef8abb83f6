"""Growing containers are reported with their name, rate and bytes."""

from __future__ import annotations

import collections
import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from leakscope.findings import judge
from leakscope.findings.model import Finding
from leakscope.heap.growth import Gains
from leakscope.heap.snapshot import SnapshotContext, look
from leakscope.report.finding_text import title
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run
from leakscope.run.rows import EndKind

LOOKS = (3, 5, 7, 9)
NEAR = 0.05
"""Share by which measured bytes may differ from what tracemalloc counts: what a list has in reserve."""


class Node:
    """One of a chain."""

    def __init__(self, text: str, before: Node | None) -> None:
        self.text, self.before = text, before


class Trainer:
    """Has what a trainer has."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self.newest: Node | None = None

    def link(self, text: str) -> None:
        """Put one more in front of the chain."""
        self.newest = Node(text, self.newest)


def _text(step: int, size: int) -> str:
    return f"{step:09}" + "x" * size


STORIES: dict[str, tuple[Callable[[dict[str, Any], int], object], str, str]] = {
    "strings": (lambda held, step: held["texts"].append(_text(step, 90_000)), "texts", "1 str"),
    "dict of records": (
        lambda held, step: held["trainer"].history.extend(
            {"step": 1000 + step, "text": _text(step, 30_000), "loss": step * 0.1} for _ in range(3)
        ),
        "trainer.history",
        "3 dict of int, str and float",
    ),
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
    "small arrays": (
        lambda held, _: held["arrays"].extend(np.zeros(100) for _ in range(100)),
        "arrays",
        "100 ndarray",
    ),
}
"""Name to (one step of it, how its holder is written, what it gains a step)."""


@dataclass(frozen=True)
class Lived:
    """All stories, lived in one process at once."""

    looks: tuple[HeapSnapshot, ...]
    findings: dict[str, Finding]
    """By how the holder is written."""
    traced: dict[str, float]
    """Bytes a step that tracemalloc counts of each story."""


@pytest.fixture(scope="module")
def lived() -> Lived:
    traced = _traced()
    looks = _live()
    return Lived(looks, _told(looks), traced)


def _traced() -> dict[str, float]:
    """The stories lived without a look: under tracemalloc one takes ten times as long."""
    held: dict[str, Any] = {"texts": [], "trainer": Trainer(), "plain": {}, "logs": [], "arrays": []}
    traced: dict[str, list[int]] = collections.defaultdict(list)
    tracemalloc.start()
    for step in range(1, max(LOOKS) + 1):
        for name, (once, *_) in STORIES.items():
            before = tracemalloc.get_traced_memory()[0]
            once(held, step)
            traced[name].append(tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    return {name: sum(sizes[LOOKS[0] :]) / len(sizes[LOOKS[0] :]) for name, sizes in traced.items()}


def _live() -> tuple[HeapSnapshot, ...]:
    gains, looks = Gains(), []
    texts: list[str] = []
    trainer = Trainer()
    plain: dict[int, str] = {}
    logs: list[Any] = []
    arrays: list[Any] = []
    floats: list[float] = []
    newest: collections.deque[str] = collections.deque(maxlen=3)
    bounded: dict[int, str] = {}
    words: list[str] = []
    held = {"texts": texts, "trainer": trainer, "plain": plain, "logs": logs, "arrays": arrays}
    for step in range(1, max(LOOKS) + 1):
        for once, *_ in STORIES.values():
            once(held, step)
        floats.append(step * 0.1)
        newest.append(_text(step, 90_000))
        bounded[step] = _text(step, 90_000)
        bounded.pop(step - 3, None)
        if step <= LOOKS[1]:
            words.extend(_text(step, 10_000 + k) for k in range(20))
        batch = [float(step + k) for k in range(4000 * step)]  # a new list each step, at the address of the last
        del batch
        if step in LOOKS:
            looks.append(look(step, "step", SnapshotContext(hidden=(gains, looks), gains=gains)))
    return tuple(looks)


def _told(looks: tuple[HeapSnapshot, ...]) -> dict[str, Finding]:
    rank = Rank(0, (), tuple(replace(one, counted_bytes=None) for one in looks), Ended(EndKind.FINISHED, 0, 9))
    run = Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0.1.0", warmup=2, min_bytes=16 * 1024)
    return {finding.subject.partition(" in ")[0]: finding for finding in judge(run).findings}


def test_what_gains_has_its_holder_its_rate_and_the_bytes_that_python_asked_for(lived: Lived) -> None:
    for name, (_, holder, gained) in STORIES.items():
        finding = lived.findings[holder]
        assert (finding.rule, finding.severity) == ("object-growth", "leak")
        assert gained in title(finding)
        assert finding.cut is not None and finding.cut.written == finding.subject
        assert finding.cut.frees_bytes == finding.retained_bytes
        if name != "small arrays":
            assert finding.bytes_per_step == pytest.approx(lived.traced[name], rel=NEAR)


def test_numbers_bounded_caches_and_what_came_to_rest_are_no_leak(lived: Lived) -> None:
    leaks = {name for name, finding in lived.findings.items() if finding.severity == "leak"}

    assert leaks == {holder for _, holder, _ in STORIES.values()}


def test_no_object_is_kept_alive() -> None:
    gains, texts = Gains(), [_text(k, 5_000) for k in range(3)]
    other: list[list[str]] = [texts]
    before = [gc.get_referrers(texts) and len(gc.get_referrers(texts))]
    for step in range(3):
        texts.append(_text(step, 5_000))
        look(step, "step", SnapshotContext(hidden=(gains,), gains=gains))

    assert len(gc.get_referrers(texts)) == before[0]
    assert not {type(held) for held in gc.get_referents(gains._of)} - {int, type(next(iter(gains._of.values())))}
    assert other


def test_hooks_that_keep_nothing_are_a_leak_however_small() -> None:
    gains, looks, model = Gains(), [], torch.nn.Linear(2, 2)
    for step in range(1, max(LOOKS) + 1):
        model.register_forward_hook(lambda *_, step=step: None)
        if step in LOOKS:
            looks.append(look(step, "step", SnapshotContext(hidden=(gains, looks), gains=gains)))
    rank = Rank(0, (), tuple(replace(one, counted_bytes=None) for one in looks), Ended(EndKind.FINISHED, 0, 9))
    run = Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0.1.0", warmup=2)
    (finding,) = judge(run).findings
    assert (finding.rule, finding.severity) == ("hook-pileup", "leak")
    assert finding.subject.startswith("model._forward_hooks")
    (small,) = judge(replace(run, min_bytes=4096)).findings
    assert small.severity == "note"


def test_another_list_at_the_address_of_the_last_has_gained_nothing() -> None:
    gains = Gains()
    looks = []
    for step in range(4):
        batch = [float(step + k) for k in range(2000 * (step + 1))]
        looks.append(look(step, "step", SnapshotContext(hidden=(gains, looks), gains=gains)))
        del batch

    assert not [row for row in looks[-1].containers if row.item == "float"]
