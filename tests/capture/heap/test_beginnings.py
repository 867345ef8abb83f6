"""Callback frames and user-given roots are recognized as GC roots, without keeping objects alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import leakscope
from leakscope.graph.model import RootKind


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
    heap = profiler.run.ranks[0].looks[-1].heap
    kinds = {heap.object(k).name.rpartition(".")[2]: heap.object(k).root for k in heap.roots.tolist()}
    assert kinds["on_step_end"] == RootKind.CALLBACK
    assert RootKind.CALLBACK not in (kinds.get("fit"), kinds.get("train_step"))


@pytest.mark.parametrize("roots", [{"state": {}}, {"": Trainer}], ids=["no weak reference", "no name"])
def test_an_unusable_root_is_refused(roots: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        leakscope.Profiler(roots=roots)
