"""What would a package's own documentation say to do about this leak?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.findings.kinds import Origin
from leakscope.findings.model import Finding, Hop


@dataclass(frozen=True)
class Saying:
    """How one use of a package leaks, and what its documentation says to do instead."""

    pattern: str
    """Regular expression over what `passed` makes of a trace; it names the package's types and attributes only."""
    what: str
    """What the package does there, as a clause."""
    cure: str
    """What to write instead, in the package's own words."""
    source: str
    """Where the package says so."""


_METRIC = r"(?<= )(?:torchmetrics\.\S+|\S+<torchmetrics\.\S+>)"
_MODULE = r"<(?:lightning\.pytorch|pytorch_lightning)\.\S*\.LightningModule>"

SAYINGS = (
    Saying(
        r"(?<= )torchmetrics\.aggregation\.CatMetric\.value list\[",
        "a CatMetric keeps every value it is given until reset()",
        "Where a mean, a sum or an extreme is all that is asked for, MeanMetric, SumMetric, MaxMetric and MinMetric "
        "keep one number; else call reset() at the end of each epoch.",
        "torchmetrics/aggregation.py",
    ),
    Saying(
        r"(?<= )torchmetrics\.\S*(?:AUROC|AveragePrecision|PrecisionRecallCurve|ROC|Recall|Precision|Sensitivity|"
        r"Specificity)\w*\.(?:preds|target) list\[",
        "with thresholds=None the metric keeps the predictions and targets of every batch until reset()",
        "Give it thresholds=100 or so: it then keeps counts of one size, whatever number of batches it sees. Where the "
        "exact curve is wanted, call reset() at the end of each epoch.",
        "torchmetrics/classification/precision_recall_curve.py",
    ),
    Saying(
        _METRIC + r"\.\w+ list\[",
        "a metric with a list state keeps what every batch gives it until reset()",
        "Call reset() at the end of each epoch; a state that add_state() begins as a tensor, with "
        "dist_reduce_fx='sum', keeps one size.",
        "torchmetrics/metric.py, Metric.add_state",
    ),
    Saying(
        _MODULE + r"\.\w+ (?:(?:list|dict|tuple|collections\.\w+)\[[^\]]*\] )+torch\.Tensor",
        "a LightningModule keeps what its steps put into a container of its own until somebody clears it",
        "A figure for the epoch is self.log(name, value, on_step=False, on_epoch=True), which keeps a running mean and "
        "no graph. Where the tensors themselves are needed, append value.detach() and clear the container in "
        "on_train_epoch_end() or on_validation_epoch_end().",
        "lightning/pytorch/core/module.py, LightningModule.log; the upgrade guide to Lightning 2.0",
    ),
    Saying(
        r"(?<= )peft\.tuners\.\S+ torch\.nn\.modules\.container\.(?:Module|Parameter)Dict\[",
        "every adapter that was added stays in each layer it was added to, in use or not",
        "Take one out that is done with by model.delete_adapter(name); to go on with another, load it under the same "
        "name.",
        "peft/tuners/tuners_utils.py, BaseTuner.delete_adapter",
    ),
    Saying(
        r"\[(?:i|\.\.\.)\] transformers\.cache_utils\.\w*Cache\b",
        "each output that is kept has past_key_values with it: keys and values of every token, of every layer",
        "Keep output.logits or output.sequences, not the whole output; while nothing is generated, call the model with "
        "use_cache=False.",
        "transformers/cache_utils.py",
    ),
    Saying(
        r"(?<= )transformers\.cache_utils\.\w*Cache\.layers list\[",
        "a DynamicCache gains the keys and values of every token that goes through the model, as long as it is passed "
        "on as past_key_values",
        "Begin each sequence with a new cache, or pass a StaticCache, which has one size.",
        "transformers/cache_utils.py, StaticCache",
    ),
    Saying(
        r"(?<= )accelerate\.accelerator\.Accelerator\._(?:models|optimizers|schedulers|dataloaders) list\[",
        "an Accelerator keeps all that prepare() was ever given",
        "Call prepare() once; before another model is prepared, "
        "model, optimizer = accelerator.free_memory(model, optimizer) lets go of what was.",
        "accelerate/accelerator.py, Accelerator.free_memory",
    ),
)
"""In order; the first that fits a trace is said."""


def passed(trace: Sequence[Hop]) -> str:
    """The types of a trace with the references between them, a type of the user's with the package's it derives from.

    ` train.Net<lightning.pytorch.core.module.LightningModule>.kept list[i] torch.Tensor storage`.
    """
    text = ""
    for hop in trace:
        of_package = f"<{hop.base}>" if hop.base else ""
        space = "" if hop.reference.startswith((".", "[")) or not hop.reference else " "
        text += f" {hop.type}{of_package}{space}{hop.reference}"
    return text


def saying_of(finding: Finding) -> Saying | None:
    """What a package says of this leak; None where none does, or where the leak is known as the library's own."""
    if finding.upstream is not None or finding.origin == Origin.LIBRARY or finding.settled:
        return None
    text = passed(finding.trace)
    return next((saying for saying in SAYINGS if re.search(saying.pattern, text)), None)
