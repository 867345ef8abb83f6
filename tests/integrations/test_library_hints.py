"""Library hints match what torchmetrics, peft, transformers and accelerate retain, and fix it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("peft")
pytest.importorskip("transformers")
import torch
import torchmetrics
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torchmetrics.classification import BinaryAUROC
from transformers import DynamicCache

import leakscope
from leakscope.findings.known_leaks import package_advice_for

pytestmark = pytest.mark.integrations


class Seen(torchmetrics.Metric):
    """A list state of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("seen", default=[], dist_reduce_fx="cat")

    def update(self, x: torch.Tensor) -> None:
        self.seen.append(x)

    def compute(self) -> torch.Tensor:
        return torch.cat(self.seen)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.query(x)


def curve(thresholds: int | None = None) -> Callable[[int], object]:
    metric = BinaryAUROC(thresholds=thresholds)
    return lambda _: metric.update(torch.rand(4096), torch.randint(0, 2, (4096,)))


def values(kind: Any = torchmetrics.CatMetric) -> Callable[[int], object]:
    metric = kind()
    return lambda _: metric.update(torch.rand(4096))


def adapters(delete: bool = False) -> Callable[[int], object]:
    model = get_peft_model(Net(), LoraConfig(target_modules=["query"]))

    def add(step: int) -> None:
        model.add_adapter(f"task{step}", LoraConfig(target_modules=["query"]))
        if delete:
            model.delete_adapter(f"task{step}")

    return add


def cache(anew: bool = False) -> Callable[[int], object]:
    kept = DynamicCache()

    def generate(_: int) -> None:
        nonlocal kept
        kept = DynamicCache() if anew else kept
        kept.update(torch.rand(1, 4, 16, 64), torch.rand(1, 4, 16, 64), 0)

    return generate


def outputs() -> Callable[[int], object]:
    kept = []

    def generate(_: int) -> None:
        one = DynamicCache()
        one.update(torch.rand(1, 4, 16, 64), torch.rand(1, 4, 16, 64), 0)
        kept.append(one)

    return generate


def prepared(free: bool = False) -> Callable[[int], object]:
    accelerator = Accelerator(cpu=True)

    def trial(_: int) -> None:
        model = torch.nn.Linear(256, 256)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        if free:
            model, optimizer = accelerator.free_memory(model, optimizer)

    return trial


LEAKING: dict[str, tuple[Callable[[], Callable[[int], object]], str]] = {
    "curve": (curve, "thresholds=100"),
    "values": (values, "MeanMetric"),
    "own_list_state": (lambda: values(Seen), "reset()"),
    "adapters": (adapters, "delete_adapter"),
    "one_cache": (cache, "a new cache"),
    "outputs_kept": (outputs, "use_cache=False"),
    "prepared_again": (prepared, "free_memory"),
}
CURED: dict[str, Callable[[], Callable[[int], object]]] = {
    "curve": lambda: curve(100),
    "values": lambda: values(torchmetrics.MeanMetric),
    "adapters": lambda: adapters(delete=True),
    "one_cache": lambda: cache(anew=True),
    "prepared_again": lambda: prepared(free=True),
}


def findings_of(**steps: Callable[[int], object]) -> Any:
    """Of all together: a look at a process with these packages takes its time."""
    each = SimpleNamespace(**steps)
    del steps
    with leakscope.Profiler(budget=1.0, min_bytes="1 KiB") as profiler:
        for number in range(12):
            with profiler.step():
                for name in vars(each):
                    getattr(each, name)(number)
    return profiler.findings


def test_what_each_package_keeps_is_told_in_its_own_words() -> None:
    findings = findings_of(**{kind: make() for kind, (make, _) in LEAKING.items()})
    messages = [package_advice_for(finding) for finding in findings.findings]
    reported = {
        kind for kind, (_, word) in LEAKING.items() if any(saying and word in saying.cure for saying in messages)
    }
    assert reported == set(LEAKING), str(findings)


def test_what_they_say_to_do_helps() -> None:
    findings = findings_of(**{kind: make() for kind, make in CURED.items()})
    assert [finding for finding in findings.findings if finding.severity == "leak"] == [], str(findings)
