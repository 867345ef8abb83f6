"""Library hints are given only where types of the library are on the reference path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.examples import growth_finding as leak

from leakscope.findings.facts import HopStatus, Origin
from leakscope.findings.known_leaks import SAYINGS, passed, saying_of
from leakscope.findings.model import Hop
from leakscope.graph.model import ObjectKind

_LIGHTNING = "train.Net<lightning.pytorch.core.module.LightningModule>"
CASES = {
    "curve": ("torchmetrics.classification.auroc.BinaryAUROC .preds, list [i], torch.Tensor storage", "thresholds=100"),
    "values": ("torchmetrics.aggregation.CatMetric .value, list [i], torch.Tensor storage", "MeanMetric"),
    "list state": (
        "torchmetrics.regression.spearman.SpearmanCorrCoef .target, list [i], torch.Tensor storage",
        "reset()",
    ),
    "own metric": ("train.Seen<torchmetrics.metric.Metric> .seen, list [i], torch.Tensor storage", "reset()"),
    "own list": (f"{_LIGHTNING} .kept, list [i], torch.Tensor .grad_fn, MulBackward0 saved self", "on_epoch=True"),
    "list of dicts": (f"{_LIGHTNING} .outputs, list [i], dict ['loss'], torch.Tensor storage", "on_epoch=True"),
    "older lightning": (
        "train.Net<pytorch_lightning.core.module.LightningModule> .kept, list [i], torch.Tensor storage",
        "on_epoch=True",
    ),
    "adapters": (
        "peft.tuners.lora.layer.Linear .lora_A, torch.nn.modules.container.ModuleDict ['task{i}'], "
        "torch.nn.modules.linear.Linear .weight",
        "delete_adapter",
    ),
    "outputs": ("list [i], transformers.cache_utils.DynamicCache .layers, list [i], torch.Tensor storage", "use_cache"),
    "one cache": ("transformers.cache_utils.DynamicCache .layers, list [0], torch.Tensor storage", "StaticCache"),
    "prepared": (
        "accelerate.accelerator.Accelerator ._models, list [i], torch.nn.modules.linear.Linear .weight",
        "free_memory",
    ),
}
OTHERS = (
    "train.AUROC .preds, list [i], torch.Tensor storage",
    "module .torchmetrics, list [i], torch.Tensor storage",
    f"{_LIGHTNING} .blocks, list [i], torch.nn.modules.linear.Linear .weight, torch.nn.parameter.Parameter storage",
    f"{_LIGHTNING} .last, torch.Tensor storage",
    "train.DynamicCache .layers, list [0], torch.Tensor storage",
    "torchmetrics.classification.auroc.BinaryAUROC .confmat, torch.Tensor storage",
)


def trace_of(text: str) -> tuple[Hop, ...]:
    hops = []
    for part in ("frame local it, " + text).split(", "):
        words, reference = part.split(maxsplit=1)
        type_, _, base = words.removesuffix(">").partition("<")
        hops.append(Hop("an object", type_, ObjectKind.INSTANCE, "", HopStatus.LEAKED, reference, base=base))
    return tuple(hops)


@pytest.mark.parametrize("case", CASES)
def test_a_package_says_what_to_write_instead(case: str) -> None:
    text, word = CASES[case]
    finding = replace(leak(), trace=trace_of(text))
    saying = saying_of(finding)
    assert saying is not None and word in saying.cure, passed(finding.trace)
    assert saying_of(replace(finding, origin=Origin.LIBRARY)) is None


@pytest.mark.parametrize("text", OTHERS)
def test_names_of_the_user_s_own_say_nothing(text: str) -> None:
    assert saying_of(replace(leak(), trace=trace_of(text))) is None


def test_every_saying_is_tried_and_says_where_it_is_from() -> None:
    said: Sequence[object] = [saying_of(replace(leak(), trace=trace_of(text))) for text, _ in CASES.values()]
    assert {id(saying) for saying in said} == {id(saying) for saying in SAYINGS}
    assert all(saying.source and saying.cure.endswith(".") and not saying.what.endswith(".") for saying in SAYINGS)
