"""Frames, stacks and given objects are GC roots, without being kept alive."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import pytest
import torch

import leakscope
from leakscope.findings import judge
from leakscope.graph.model import RootKind
from leakscope.heap.autograd import operands_of, own_memory
from leakscope.heap.snapshot import SnapshotContext, take_heap_snapshot
from leakscope.recorder.verify_cut import verify_cuts
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step


class Metric(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.preds: list[torch.Tensor] = []


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.metrics = torch.nn.ModuleDict({"auroc": Metric()})

    def train_step(self) -> None:
        metric = self.metrics["auroc"]
        assert isinstance(metric, Metric)
        metric.preds.append(torch.ones(1 << 16))


class Trainer:
    def __init__(self) -> None:
        self._parts = {"model": Model()}

    def fit(self, profiler: leakscope.Profiler) -> None:
        def on_step_end(module: torch.nn.Module) -> None:
            if type(module) is Model:
                with profiler.step():
                    pass

        for _ in range(10):
            self._parts["model"].train_step()
            self._parts["model"].apply(on_step_end)  # torch's own frame calls it


def test_a_path_through_a_given_root_begins_there() -> None:
    trainer = Trainer()
    model = trainer._parts["model"]
    roots = {"trainer": trainer, "trainer.model": model}
    with leakscope.Profiler(budget=1.0, roots=roots) as profiler:
        trainer.fit(profiler)
    [finding] = profiler.findings.findings
    assert finding.cut is not None and finding.cut.references[0].written == "trainer.model.metrics['auroc'].preds"
    assert finding.trace[0].object == "trainer.model (Model module)"
    gone = weakref.ref(trainer)
    roots.clear()
    del trainer, model
    gc.collect()
    assert gone() is None


def test_a_callback_of_a_library_is_a_root_of_its_own_kind() -> None:
    trainer = Trainer()
    with leakscope.Profiler(budget=1.0) as profiler:
        trainer.fit(profiler)
    [finding] = profiler.findings.findings
    assert finding.cut is not None
    assert "on_step_end" not in finding.cut.references[0].written
    heap = profiler.run.ranks[0].heap_snapshots[-1].heap
    kinds = {heap.object(k).name.rpartition(".")[2]: heap.object(k).root for k in heap.roots.tolist()}
    assert kinds["on_step_end"] == RootKind.CALLBACK
    assert RootKind.CALLBACK not in (kinds.get("fit"), kinds.get("train_step"))


@pytest.mark.parametrize("roots", [{"state": {}}, {"": Trainer}], ids=["no weak reference", "no name"])
def test_an_unusable_root_is_refused(roots: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        leakscope.Profiler(roots=roots)


SNAPSHOT_STEPS = (4, 6, 8)
LAST = SNAPSHOT_STEPS[-1]
SIZE = 1 << 20
Trained = Callable[[], torch.Tensor]
pytestmark = pytest.mark.skipif(
    not (3, 11) <= sys.version_info[:2] <= (3, 13), reason="the stack of a frame is read in Python 3.11 to 3.13 only"
)


def in_a_generator(step: Trained) -> None:
    """Its iterator is on the stack of the loop alone: no statement's end releases it."""

    def batches() -> Iterator[None]:
        seen = []
        for _ in range(LAST):
            seen.append(torch.ones(SIZE // 4))
            yield

    for _ in batches():
        step()


@pytest.mark.process
def test_a_list_held_by_the_stack_of_a_loop_is_cut_at_its_variable() -> None:
    snapshots: list[HeapSnapshot] = []
    answers: dict[str, int | str] = {}
    number = 0

    def run(proved: Mapping[str, int | str]) -> Run:
        steps = tuple(Step(n, 0.1, None, None) for n in range(1, number + 1))
        rank = Rank(0, steps, tuple(snapshots), Ended("stopped", 0, number), proved=proved)
        return Run(("train.py",), (rank,), 1, "cpu", "", "")

    def step() -> torch.Tensor:
        nonlocal number
        number += 1
        if number == LAST:
            answers.update(verify_cuts(run({}), run({}).ranks[0], number, SnapshotContext(hidden=(snapshots,))))
        if number in SNAPSHOT_STEPS:
            snapshots.append(
                take_heap_snapshot(number, "last" if number == LAST else "step", SnapshotContext(hidden=(snapshots,)))
            )
        return torch.ones(SIZE // 4)

    in_a_generator(step)
    (finding,) = (f for f in judge(run(answers)).findings if f.severity == "leak")
    assert finding.cut is not None and finding.cut.written == "local seen of in_a_generator.<locals>.batches()"
    assert (finding.cut.frees_bytes, finding.cut.unproved) == (LAST * SIZE, "")
    assert finding.cut.proved_bytes == finding.cut.frees_bytes


def test_what_a_frame_has_on_its_stack_is_read() -> None:
    def called(*given: Any) -> set[int]:
        frame: FrameType = sys._getframe(1)
        with own_memory() as words:
            return set(operands_of(frame, words))

    first, second = object(), [object()]
    free: Any = None

    def closes() -> Any:
        return free, first

    found = (first, second, called())[2]
    assert {id(first), id(second)} <= found and id(closes) not in found
    assert not {id(first), id(second)} & called()
