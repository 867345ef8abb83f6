"""Growing containers are reported with their name, rate and bytes."""

from __future__ import annotations

import collections
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from leakscope.findings import judge
from leakscope.findings.model import Finding
from leakscope.findings.rules.object_growth import ObjectFacts
from leakscope.heap.growth import Gains
from leakscope.heap.snapshot import SnapshotContext, look
from leakscope.report.finding_text import advice, title
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run
from leakscope.run.rows import EndKind

LOOKS = (3, 5, 7, 9)
NEAR = 0.05
"""Share by which measured bytes may differ from what tracemalloc counts: what a list has in reserve."""
_records: list[Any] = []


@dataclass
class Record:
    """One of a sample's."""

    name: str
    scores: list[float]
    step: int


class Node:
    """One of a chain."""

    def __init__(self, text: str, before: Node | None) -> None:
        self.text, self.before = text, before


class Trainer:
    """Has what a trainer has."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self.by_step: dict[int, str] = {}
        self.newest: Node | None = None

    def link(self, text: str) -> None:
        """Put one more in front of the chain."""
        self.newest = Node(text, self.newest)


def _text(step: int, size: int) -> str:
    return f"{step:09}" + "x" * size


def _closure(text: str) -> Callable[[], str]:
    return lambda: text


STORIES: dict[str, tuple[Callable[[dict[str, Any], int], object], str, str]] = {
    "strings": (lambda held, step: held["texts"].append(_text(step, 90_000)), "texts", "1 str"),
    "dict of records": (
        lambda held, step: held["trainer"].history.extend(
            {"step": 1000 + step, "text": _text(step, 30_000), "loss": step * 0.1} for _ in range(3)
        ),
        "trainer.history",
        "3 dict of int, str and float",
    ),
    "dict by step": (
        lambda held, step: held["trainer"].by_step.update({step: _text(step, 80_000)}),
        "trainer.by_step",
        "1 str",
    ),
    "untracked dict": (lambda held, step: held["plain"].update({step: _text(step, 70_000)}), "plain", "1 str"),
    "tuples": (
        lambda held, step: held["queue"].append((1000 + step, _text(step, 85_000))),
        "queue",
        "1 tuple of int and str",
    ),
    "numbers": (
        lambda held, step: held["logs"].append(torch.randn(8, 400).tolist()),
        "logs",
        "1 list of 8 list of 400 float",
    ),
    "records": (
        lambda _, step: _records.append(Record(_text(step, 20), [step + k * 0.1 for k in range(4000)], step)),
        "tests.capture.heap.objects.test_gains._records",
        "1 Record",
    ),
    "set": (lambda held, step: held["seen"].add(_text(step, 75_000)), "seen", "1 str"),
    "linked records": (
        lambda held, step: held["trainer"].link(_text(step, 65_000)),
        "trainer.newest",
        "1 Node",
    ),
    "closures": (
        lambda held, step: held["callbacks"].append(_closure(_text(step, 60_000))),
        "callbacks",
        "1 function",
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
def lived() -> Iterator[Lived]:
    traced = _traced()
    _records.clear()
    looks = _live()
    yield Lived(looks, _told(looks), traced)
    _records.clear()


def _traced() -> dict[str, float]:
    """The stories lived without a look: under tracemalloc one takes ten times as long."""
    held: dict[str, Any] = {
        "texts": [], "trainer": Trainer(), "plain": {}, "queue": collections.deque(), "logs": [], "seen": set(),
        "arrays": [], "callbacks": [],
    }  # fmt: skip
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
    queue: collections.deque[Any] = collections.deque()
    logs: list[Any] = []
    seen: set[str] = set()
    arrays: list[Any] = []
    callbacks: list[Any] = []
    floats: list[float] = []
    newest: collections.deque[str] = collections.deque(maxlen=3)
    bounded: dict[int, str] = {}
    words: list[str] = []
    held = {
        "texts": texts, "trainer": trainer, "plain": plain, "queue": queue, "logs": logs, "seen": seen,
        "arrays": arrays, "callbacks": callbacks,
    }  # fmt: skip
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


@pytest.mark.parametrize("name", STORIES)
def test_what_gains_is_told_with_its_holder_and_its_rate(lived: Lived, name: str) -> None:
    _, holder, gained = STORIES[name]

    finding = lived.findings[holder]

    assert (finding.rule, finding.severity) == ("object-growth", "leak")
    assert f" gains {gained} per step" in title(finding)
    assert title(finding).endswith(" per step, and is never emptied")
    assert holder in advice(finding)
    assert finding.cut is not None and finding.cut.written == finding.subject
    assert finding.cut.frees_bytes == finding.retained_bytes


@pytest.mark.parametrize("name", [name for name in STORIES if name != "small arrays"])
def test_the_bytes_are_those_that_python_asked_for(lived: Lived, name: str) -> None:
    finding = lived.findings[STORIES[name][1]]

    assert finding.bytes_per_step == pytest.approx(lived.traced[name], rel=NEAR)


def test_a_cut_frees_also_what_was_there_before_the_first_look(lived: Lived) -> None:
    finding = lived.findings["texts"]

    assert finding.retained_bytes == pytest.approx(max(LOOKS) * lived.traced["strings"], rel=NEAR)
    assert finding.trace[-2].object == f"list, {max(LOOKS)} items"
    assert finding.trace[-1].object == f"{max(LOOKS)} str"


def test_numbers_bounded_caches_and_what_came_to_rest_are_no_leak(lived: Lived) -> None:
    leaks = {name for name, finding in lived.findings.items() if finding.severity == "leak"}

    assert leaks == {holder for _, holder, _ in STORIES.values()}


def test_what_gains_names_itself_at_every_look_but_the_first(lived: Lived) -> None:
    assert not lived.looks[0].containers
    for earlier, later in zip(lived.looks[1:], lived.looks[2:], strict=False):
        assert len(later.containers) >= len(earlier.containers) >= len(STORIES)


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


def test_its_facts_say_how_many(lived: Lived) -> None:
    facts = lived.findings["trainer.history"].facts
    assert isinstance(facts, ObjectFacts)
    assert (facts.item, facts.items, facts.items_per_step) == ("dict of int, str and float", 18, 3.0)


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


def _asked(*_: Any) -> Any:
    raise AssertionError("code of the user's ran")


class Hostile:
    """Answers nobody."""

    __eq__ = __len__ = __sizeof__ = __iter__ = __repr__ = __getattr__ = _asked
    __hash__ = object.__hash__

    def __init__(self, text: str) -> None:
        self.__dict__["text"] = text


class HostileList(list):  # type: ignore[type-arg]
    """A list that answers nobody."""

    __len__ = __iter__ = __getitem__ = __sizeof__ = __reversed__ = __repr__ = _asked


class HostileDict(dict):  # type: ignore[type-arg]
    """A dict that answers nobody."""

    __len__ = __iter__ = __getitem__ = __sizeof__ = items = values = keys = __reversed__ = __repr__ = _asked


def test_no_code_of_the_users_runs() -> None:
    gains, in_list, in_dict = Gains(), HostileList(), HostileDict()
    looks = []
    for step in range(3):
        list.append(in_list, Hostile(_text(step, 9_000)))
        dict.__setitem__(in_dict, Hostile(_text(step, 9_000)), HostileList())
        looks.append(look(step, "step", SnapshotContext(hidden=(gains, looks), gains=gains)))

    assert {row.item for row in looks[-1].containers} >= {"Hostile", "HostileList"}


def test_another_list_at_the_address_of_the_last_has_gained_nothing() -> None:
    gains = Gains()
    looks = []
    for step in range(4):
        batch = [float(step + k) for k in range(2000 * (step + 1))]
        looks.append(look(step, "step", SnapshotContext(hidden=(gains, looks), gains=gains)))
        del batch

    assert not [row for row in looks[-1].containers if row.item == "float"]
