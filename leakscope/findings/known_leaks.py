"""Known leaks and documented retention of torch and other libraries, by qualified type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakscope.findings.facts import Origin, RuleName, Upstream
from leakscope.findings.model import Finding, Hop
from leakscope.graph.model import ObjectKind


@dataclass(frozen=True)
class KnownLeak:
    """One leak of a library, or one thing that it keeps longer than it is needed."""

    holder: str
    """As its user would write it: `PipelineStage.fwd_cache`."""
    pattern: str
    """Regular expression over what `spoken` makes of a trace."""
    issue: str
    """owner/repository#number."""
    what: str
    """What the library does, as a clause."""
    rule: RuleName = RuleName.LATE_RELEASE
    """Rule of a finding about what is kept from step to step without growing."""
    without_comm: bool = False
    """Only for storages that no comm operation has used, where those were recorded."""
    cure: str = ""
    """What the script can do about it; "" where only the library can."""
    mended: bool = False
    """`leakscope.backward.install(release_outputs=True)` lets go of it."""


KNOWN = (
    KnownLeak(
        "hooks of PipelineStage.args_recv_info[i][i].buffer",
        r"_RecvInfo\.buffer\.\w*hooks",
        "pytorch/pytorch#185331",
        "receive buffers are the same tensors every step: hooks registered on them pile up",
        cure=("Keep the handle of each hook that is registered on a stage's input and remove it after the step."),
        mended=True,
    ),
    KnownLeak(
        "PipelineStage.args_recv_info[i][i].buffer (set_local_fwd_input)",
        r"\.args_recv_info\S* _RecvInfo\.buffer$",
        "pytorch/pytorch#136380",
        "the stage before it is on the same rank, and its outputs of all microbatches stay in the buffers",
        without_comm=True,
        mended=True,
    ),
    KnownLeak(
        "PipelineStage.grad_recv_info[i][i].buffer (set_local_bwd_input)",
        r"\.grad_recv_info\S* _RecvInfo\.buffer$",
        "pytorch/pytorch#136380",
        "the stage after it is on the same rank, and its inputs' gradients of all microbatches stay in the buffers",
        without_comm=True,
        mended=True,
    ),
    KnownLeak(
        "PipelineStage.args_recv_info[i][i].buffer.grad",
        r"_RecvInfo\.buffer\.grad$",
        "pytorch/pytorch#164329",
        "split backward leaves the gradient it has sent in the receive buffer's .grad until the next "
        "step begins; full backward clears it",
        mended=True,
    ),
    KnownLeak(
        "PipelineStage.args_recv_info[i][i].buffer",
        r"\.args_recv_info\S* _RecvInfo\.buffer",
        "pytorch/pytorch#136380",
        "one receive buffer for each microbatch, allocated once and alive for ever",
        rule=RuleName.P2P_BUFFER,
        mended=True,
    ),
    KnownLeak(
        "PipelineStage.grad_recv_info[i][i].buffer",
        r"\.grad_recv_info\S* _RecvInfo\.buffer",
        "pytorch/pytorch#136380",
        "one receive buffer for each microbatch's gradients, allocated once and alive for ever",
        rule=RuleName.P2P_BUFFER,
        mended=True,
    ),
    KnownLeak(
        "_RecvInfo.buffer",
        r"_RecvInfo\.buffer",
        "pytorch/pytorch#136380",
        "one receive buffer for each microbatch, allocated once and alive for ever",
        rule=RuleName.P2P_BUFFER,
        mended=True,
    ),
    KnownLeak(
        "PipelineStage.fwd_cache",
        r"PipelineStage\.fwd_cache",
        "pytorch/pytorch#128910",
        "a stage keeps the outputs it has sent, and its inputs, until their backward",
        mended=True,
    ),
    # torch 2.15 starts backward from gradient edges, and lets go of the outputs that it has sent where it can
    KnownLeak(
        "PipelineStage._forward_chunk_states[i].live_outputs",
        r"PipelineStage\._forward_chunk_states\S* _ForwardChunkState\.live_outputs",
        "pytorch/pytorch#128910",
        "the last stage keeps its outputs until their backward, and any stage those that are no plain tensors, those "
        "under DistributedDataParallel and those of a dw_builder",
    ),
    KnownLeak(
        "PipelineStage._forward_chunk_states",
        r"PipelineStage\._forward_chunk_states",
        "pytorch/pytorch#128910",
        "a stage keeps its inputs until their backward",
    ),
    KnownLeak(
        "PipelineStage.backward_state[i][i][i]['intermediates']",
        r"PipelineStage\.backward_state\S*\['intermediates'\]",
        "pytorch/pytorch#128910",
        "between the two halves of a split backward the graph below each intermediate stays whole, with "
        "what was saved for the inputs' half only",
    ),
    KnownLeak(
        "PipelineStage.backward_state",
        r"PipelineStage\.backward_state",
        "pytorch/pytorch#128910",
        "between the two halves of a split backward the stage's outputs and their gradients stay, though"
        " the outputs are detached already",
        mended=True,
    ),
    KnownLeak(
        "PipelineStage.bwd_cache",
        r"PipelineStage\.bwd_cache",
        "pytorch/pytorch#128910",
        "nobody takes the gradients of the pipeline's own input out again: they stay until they are overwritten",
    ),
    KnownLeak(
        "PipelineStage.dw_runner",
        r"PipelineStage\.dw_runner",
        "pytorch/pytorch#128910",
        "one function for each microbatch stays, with what its closure holds",
    ),
    KnownLeak(
        "PipelineStage.output_chunks",
        r"PipelineStage\.output_chunks",
        "pytorch/pytorch#159251",
        "outputs of the last stage stay until the next step, beside the merged copy that step() returns",
        cure="Where they are not needed, schedule.step(..., return_outputs=False) keeps none.",
    ),
    KnownLeak(
        "send handles of _step_microbatches()",
        r"_step_microbatches\S* (?:local|closure) (?:send_ops|\w*sends_to_wait)",
        "pytorch/pytorch#193903",
        "the schedule waits for its sends when all microbatches are through, and each Work keeps what it"
        " sent until then",
        mended=True,
    ),
    KnownLeak(
        "extract_tensors_with_grads()",
        r"extract_tensors_with_grads",
        "pytorch/pytorch#136507",
        "a recursive closure holds all stage outputs until gc runs",
        mended=True,
    ),
    KnownLeak(
        "param_group['intermediates']",
        r"param_group.*intermediates|\['intermediates'\]",
        "pytorch/pytorch#136584",
        "a pre-hook's closure holds the parameter group, whose intermediates hold the hook",
        mended=True,
    ),
)
"""In order; the first that fits a trace names it."""


TYPES = "torch.distributed.pipelining."
_FILES = "<torch/distributed/pipelining/"
"""What a hop of torch's own pipelining begins with: its type, and its line."""


def spoken(trace: Sequence[Hop]) -> str:
    """The references of a trace, the library's own objects and functions named between them.

    `PipelineStage.args_recv_info[i][i] _RecvInfo.buffer.grad`.
    """
    text = ""
    for hop in trace:
        if hop.type.startswith(TYPES):
            text += f" {hop.type.rpartition('.')[2]}"
        elif hop.where.startswith(_FILES) and hop.kind in (ObjectKind.FRAME, ObjectKind.FUNCTION, ObjectKind.GENERATOR):
            text += f" {hop.object.split()[-1]}"
        space = "" if hop.reference.startswith((".", "[")) or not hop.reference else " "
        text += "" if hop.reference == "storage" else space + hop.reference
    return text.strip()


def known_leak(trace: Sequence[Hop], comm_used: bool | None = None) -> KnownLeak | None:
    """The known leak that a trace shows; None for anything else.

    A script's own copy of such code is the script's: at least one hop must be of torch's own type or file.
    `comm_used` says whether a comm operation has used the storage, None where none was recorded.
    """
    if not any(hop.type.startswith(TYPES) or hop.where.startswith(_FILES) for hop in trace):
        return None
    text = spoken(trace)
    fitting = (known for known in KNOWN if not known.without_comm or comm_used is False)
    return next((known for known in fitting if re.search(known.pattern, text)), None)


def named_upstream(finding: Finding) -> Finding:
    """The finding as the library's, with the upstream issue, where it is known there."""
    known = None if finding.upstream else known_leak(finding.trace)
    if known is None:
        return finding
    return replace(
        finding, origin=Origin.LIBRARY, library="torch", upstream=Upstream(known.issue, known.what, known.cure)
    )


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
