"""Threads of the script go on while it is looked at, and so does the look."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from leakscope import Profiler
from leakscope.graph.model import HeapGraph
from leakscope.heap import snapshot as heap
from leakscope.process.gc_control import SnapshotTimeout, check_deadline, deadline, paused
from leakscope.recorder import snapshots

Command = Callable[..., "subprocess.CompletedProcess[str]"]

STEPS = """
for step in range(9):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
print("done")
"""
MODEL = """
import sys, threading, time
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
COMPUTES = """
going, count = True, 0
def spin():
    global count
    while going:
        count += 1
threading.Thread(target=spin, daemon=True).start()
"""


@pytest.fixture(params=[1e-6, 1000.0])
def interval(request: pytest.FixtureRequest) -> Iterator[float]:
    found = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield float(request.param)
    sys.setswitchinterval(found)


def test_threads_take_turns_during_a_look_whatever_the_script_has_set(interval: float) -> None:
    with paused():
        assert 0.001 <= sys.getswitchinterval() <= 0.05
    assert sys.getswitchinterval() == pytest.approx(interval)


@pytest.mark.process
def test_a_run_ends_beside_a_thread_that_computes_and_without_sleep(
    leakscope: Command, script: Callable[[str], Path]
) -> None:
    ran = leakscope("run", script(MODEL + COMPUTES + "time.sleep = lambda seconds: None\n" + STEPS), timeout=240)
    assert ran.returncode == 0 and ran.stdout.startswith("done") and "9 steps" in ran.stdout + ran.stderr, ran.stderr


class _Node:
    """Of cycles."""


class _Churning:
    """A thread that makes and drops tensors, in containers that looks go through, and cycles that it takes apart."""

    def __init__(self) -> None:
        self.going, self.errors = True, list[BaseException]()
        self.thread = threading.Thread(target=self._run)
        self.held = [{}, set(), deque(), OrderedDict(), []]  # type: ignore[var-annotated]
        self.alive = _Node()
        self.alive.tensor = torch.ones(ALIVE)  # type: ignore[attr-defined]

    def _run(self) -> None:
        mapping, members, queue, ordered, items = self.held
        try:
            for k in itertools.count():
                made = [torch.ones(64 + n) for n in range(20)]
                mapping.update(enumerate(made))  # type: ignore[attr-defined]
                members.update(made)  # type: ignore[attr-defined]
                queue.extend(made)  # type: ignore[attr-defined]
                ordered.update(enumerate(made))  # type: ignore[attr-defined]
                items.extend(made)  # type: ignore[attr-defined]
                made[0].data = torch.zeros(100 + k % 50)
                first, second = self.alive, _Node()  # a cycle of what is alive, for a moment
                second.other, first.other = first, second  # type: ignore[attr-defined]
                del first.other  # type: ignore[attr-defined]
                for each in self.held:
                    each.clear()  # type: ignore[attr-defined]
                if not self.going:
                    return
        except BaseException as error:
            self.errors.append(error)
            raise

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.going = False
        self.thread.join()


ALIVE, LEAKED, KEPT = 5001, 5002, 5003
"""Elements of tensors that are told apart by their sizes."""


@pytest.mark.look
@pytest.mark.parametrize("pure", ["", "1"], ids=["native", "Python"])
def test_what_other_threads_change_is_no_garbage_and_the_garbage_is_found(
    pure: str, monkeypatch: pytest.MonkeyPatch, nothing_collected: None
) -> None:
    monkeypatch.setenv("LEAKSCOPE_PURE", pure)
    of_others = _garbage(heap.look(0, "step").heap)
    leaked = _Node()
    leaked.me, leaked.tensor = leaked, torch.ones(LEAKED)  # type: ignore[attr-defined]
    del leaked
    kept = {"tensor": torch.ones(KEPT)}
    churning = [_Churning(), _Churning()]
    with churning[0], churning[1]:
        seen = [heap.look(number, "step") for number in (1, 2)]
    for look in seen:
        assert _garbage(look.heap) - of_others == {4 * LEAKED: 1}, look.unjudged
        assert {4 * KEPT, 4 * ALIVE} <= set(look.heap.bytes.tolist())
    assert not churning[0].errors + churning[1].errors
    assert kept


def _garbage(graph: HeapGraph) -> Counter[int]:
    """How many storages of each size a collection would free; other tests of the process may have left some."""
    return Counter(int(graph.bytes[k]) for k in graph.storages.tolist() if graph.freed[k])


def test_what_takes_too_long_is_given_up_and_only_there() -> None:
    with deadline(60.0):
        with pytest.raises(SnapshotTimeout), deadline(-1.0):
            check_deadline()
        check_deadline()
    check_deadline()


@pytest.mark.look
def test_a_run_goes_on_without_the_look_that_was_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_MOST_TIMES", -1)
    model = torch.nn.Linear(8, 8)
    with Profiler(tmp_path / "run", budget=1.0) as profiler:
        for _ in range(8):
            with profiler.step():
                model(torch.randn(2, 8)).sum().backward()
    (rank,) = profiler.run.ranks
    assert len(rank.steps) == 8 and not rank.looks
    assert any("timed out" in note for note in rank.notes)
    assert profiler.findings.verdict.value == "inconclusive"
