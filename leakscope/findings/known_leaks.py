"""Known leaks and documented retention of torch and other libraries, by qualified type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.findings.facts import LibraryIssue, Origin, RuleName
from leakscope.findings.model import Finding, Hop
from leakscope.graph.model import ObjectKind


@dataclass(frozen=True)
class KnownLeak:
    """A leak of a library, or memory that it retains longer than needed."""

    holder: str
    """Referrer as an expression: `PipelineStage.fwd_cache`."""
    pattern: str
    """Regular expression over the result of `spoken` for a trace."""
    issue: str
    """owner/repository#number."""
    what: str
    """What the library does, as a clause."""
    rule: RuleName = RuleName.LATE_RELEASE
    """Rule of a finding about memory that is retained between steps without growth."""
    without_comm: bool = False
    """Only for storages that no recorded communication operation has used."""
    cure: str = ""
    """Fix in the script; "" if only the library can fix it."""
    is_fixed_by_install: bool = False
    """Whether `leakscope.backward.install(release_outputs=True)` releases it."""


KNOWN = (
    KnownLeak(
        "hooks of PipelineStage.args_recv_info[i][i].buffer",
        r"_RecvInfo\.buffer\.\w*hooks",
        "pytorch/pytorch#185331",
        "receive buffers are reused in every step, so hooks registered on them accumulate",
        cure="Keep the handle of each hook that is registered on the input of a stage and remove it after the step.",
        is_fixed_by_install=True,
    ),
    KnownLeak(
        "PipelineStage.args_recv_info[i][i].buffer (set_local_fwd_input)",
        r"\.args_recv_info\S* _RecvInfo\.buffer$",
        "pytorch/pytorch#136380",
        "the previous stage is on the same rank, and its outputs of all microbatches stay in the buffers",
        without_comm=True,
        is_fixed_by_install=True,
    ),
    KnownLeak(
        "PipelineStage.grad_recv_info[i][i].buffer (set_local_bwd_input)",
        r"\.grad_recv_info\S* _RecvInfo\.buffer$",
        "pytorch/pytorch#136380",
        "the next stage is on the same rank, and the gradients of its inputs for all microbatches stay in the buffers",
        without_comm=True,
        is_fixed_by_install=True,
    ),
    KnownLeak(
        "PipelineStage.args_recv_info[i][i].buffer.grad",
        r"_RecvInfo\.buffer\.grad$",
        "pytorch/pytorch#164329",
        "split backward leaves the sent gradient in .grad of the receive buffer until the next step; full backward "
        "clears it",
        is_fixed_by_install=True,
    ),
    KnownLeak(
        "PipelineStage.args_recv_info[i][i].buffer",
        r"\.args_recv_info\S* _RecvInfo\.buffer",
        "pytorch/pytorch#136380",
        "one receive buffer per microbatch is allocated once and never released",
        rule=RuleName.P2P_BUFFER,
        is_fixed_by_install=True,
    ),
    KnownLeak(
        "PipelineStage.grad_recv_info[i][i].buffer",
        r"\.grad_recv_info\S* _RecvInfo\.buffer",
        "pytorch/pytorch#136380",
        "one receive buffer for the gradients of each microbatch is allocated once and never released",
        rule=RuleName.P2P_BUFFER,
        is_fixed_by_install=True,
    ),
    KnownLeak(
        "_RecvInfo.buffer",
        r"_RecvInfo\.buffer",
        "pytorch/pytorch#136380",
        "one receive buffer per microbatch is allocated once and never released",
        rule=RuleName.P2P_BUFFER,
        is_fixed_by_install=True,
    ),
    KnownLeak(
        "PipelineStage.fwd_cache",
        r"PipelineStage\.fwd_cache",
        "pytorch/pytorch#128910",
        "a stage retains its sent outputs and its inputs until their backward",
        is_fixed_by_install=True,
    ),
    # torch 2.15 starts backward from gradient edges and releases sent outputs where possible
    KnownLeak(
        "PipelineStage._forward_chunk_states[i].live_outputs",
        r"PipelineStage\._forward_chunk_states\S* _ForwardChunkState\.live_outputs",
        "pytorch/pytorch#128910",
        "the last stage retains its outputs until their backward; other stages retain outputs that are not plain "
        "tensors, outputs under DistributedDataParallel and outputs of a dw_builder",
    ),
    KnownLeak(
        "PipelineStage._forward_chunk_states",
        r"PipelineStage\._forward_chunk_states",
        "pytorch/pytorch#128910",
        "a stage retains its inputs until their backward",
    ),
    KnownLeak(
        "PipelineStage.backward_state[i][i][i]['intermediates']",
        r"PipelineStage\.backward_state\S*\['intermediates'\]",
        "pytorch/pytorch#128910",
        "between the two halves of a split backward the graph below each intermediate is retained, with the tensors "
        "saved only for the input half",
    ),
    KnownLeak(
        "PipelineStage.backward_state",
        r"PipelineStage\.backward_state",
        "pytorch/pytorch#128910",
        "between the two halves of a split backward the outputs of the stage and their gradients are retained, "
        "although the outputs are already detached",
        is_fixed_by_install=True,
    ),
    KnownLeak(
        "PipelineStage.bwd_cache",
        r"PipelineStage\.bwd_cache",
        "pytorch/pytorch#128910",
        "the gradients of the pipeline input are retained until they are overwritten",
    ),
    KnownLeak(
        "PipelineStage.dw_runner",
        r"PipelineStage\.dw_runner",
        "pytorch/pytorch#128910",
        "one function per microbatch is retained, with its closure",
    ),
    KnownLeak(
        "PipelineStage.output_chunks",
        r"PipelineStage\.output_chunks",
        "pytorch/pytorch#159251",
        "outputs of the last stage are retained until the next step, in addition to the merged copy from step()",
        cure="If they are not needed, call schedule.step(..., return_outputs=False).",
    ),
    KnownLeak(
        "send handles of _step_microbatches()",
        r"_step_microbatches\S* (?:local|closure) (?:send_ops|\w*sends_to_wait)",
        "pytorch/pytorch#193903",
        "the schedule waits for its sends after all microbatches, and each Work retains its buffer until then",
        is_fixed_by_install=True,
    ),
    KnownLeak(
        "extract_tensors_with_grads()",
        r"extract_tensors_with_grads",
        "pytorch/pytorch#136507",
        "a recursive closure retains all stage outputs until garbage collection",
        is_fixed_by_install=True,
    ),
    KnownLeak(
        "param_group['intermediates']",
        r"param_group.*intermediates|\['intermediates'\]",
        "pytorch/pytorch#136584",
        "the closure of a pre-hook references the parameter group, whose intermediates reference the hook",
        is_fixed_by_install=True,
    ),
)
"""In order: the first match applies."""


TYPES = "torch.distributed.pipelining."
_FILES = "<torch/distributed/pipelining/"
"""Prefixes of the type and of the line of a hop in torch's pipelining."""


def spoken(trace: Sequence[Hop]) -> str:
    """The references of a trace, with the objects and functions of the library between them.

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
    """The known leak of a trace, or None.

    At least one hop must have a type or file of torch: a copy of its code in a script belongs to the script.
    `comm_used` states whether a communication operation has used the storage, None if none was recorded.
    """
    if not any(hop.type.startswith(TYPES) or hop.where.startswith(_FILES) for hop in trace):
        return None
    text = spoken(trace)
    fitting = (known for known in KNOWN if not known.without_comm or comm_used is False)
    return next((known for known in fitting if re.search(known.pattern, text)), None)


def issue_of(finding: Finding) -> LibraryIssue | None:
    """The issue about a finding that is a known leak of torch; None for others, and if the finding names one."""
    known = None if finding.upstream else known_leak(finding.trace)
    return None if known is None else LibraryIssue(known.issue, known.what, known.cure)


@dataclass(frozen=True)
class PackageAdvice:
    """A use of a package that leaks, and the fix from its documentation."""

    pattern: str
    """Regular expression over the text that `passed` makes of a trace."""
    what: str
    """What the package does, as a clause."""
    cure: str
    """The fix."""
    source: str
    """The source in the package."""


_METRIC = r"(?<= )(?:torchmetrics\.\S+|\S+<torchmetrics\.\S+>)"
_MODULE = r"<(?:lightning\.pytorch|pytorch_lightning)\.\S*\.LightningModule>"

PACKAGE_ADVICE = (
    PackageAdvice(
        r"(?<= )torchmetrics\.aggregation\.CatMetric\.value list\[",
        "a CatMetric retains every value until reset()",
        "For a mean, a sum, a maximum or a minimum use MeanMetric, SumMetric, MaxMetric or MinMetric, which store one "
        "number; otherwise call reset() at the end of each epoch.",
        "torchmetrics/aggregation.py",
    ),
    PackageAdvice(
        r"(?<= )torchmetrics\.\S*(?:AUROC|AveragePrecision|PrecisionRecallCurve|ROC|Recall|Precision|Sensitivity|"
        r"Specificity)\w*\.(?:preds|target) list\[",
        "with thresholds=None the metric retains the predictions and targets of every batch until reset()",
        "Set for example thresholds=100: the metric then stores counts of fixed size. For the exact curve, call "
        "reset() "
        "at the end of each epoch.",
        "torchmetrics/classification/precision_recall_curve.py",
    ),
    PackageAdvice(
        _METRIC + r"\.\w+ list\[",
        "a metric with a list state retains the values of every batch until reset()",
        "Call reset() at the end of each epoch, or use add_state() with a tensor and dist_reduce_fx='sum', which has a "
        "fixed size.",
        "torchmetrics/metric.py, Metric.add_state",
    ),
    PackageAdvice(
        _MODULE + r"\.\w+ (?:(?:list|dict|tuple|collections\.\w+)\[[^\]]*\] )+torch\.Tensor",
        "a LightningModule retains what its steps store in its containers until they are cleared",
        "For a value per epoch use self.log(name, value, on_step=False, on_epoch=True), which stores a running mean "
        "and no graph. If the tensors are needed, append value.detach() and clear the container in "
        "on_train_epoch_end() or on_validation_epoch_end().",
        "lightning/pytorch/core/module.py, LightningModule.log; the upgrade guide to Lightning 2.0",
    ),
    PackageAdvice(
        r"(?<= )peft\.tuners\.\S+ torch\.nn\.modules\.container\.(?:Module|Parameter)Dict\[",
        "every added adapter stays in its layers, whether it is used or not",
        "Remove unused adapters with model.delete_adapter(name), or load the next one under the same name.",
        "peft/tuners/tuners_utils.py, BaseTuner.delete_adapter",
    ),
    PackageAdvice(
        r"\[(?:i|\.\.\.)\] transformers\.cache_utils\.\w*Cache\b",
        "each stored output includes past_key_values: keys and values of every token and layer",
        "Store output.logits or output.sequences instead of the whole output, or call the model with use_cache=False "
        "if it does not generate.",
        "transformers/cache_utils.py",
    ),
    PackageAdvice(
        r"(?<= )transformers\.cache_utils\.\w*Cache\.layers list\[",
        "a DynamicCache gains the keys and values of every token as long as it is passed as past_key_values",
        "Create a new cache for each sequence, or pass a StaticCache, which has a fixed size.",
        "transformers/cache_utils.py, StaticCache",
    ),
    PackageAdvice(
        r"(?<= )accelerate\.accelerator\.Accelerator\._(?:models|optimizers|schedulers|dataloaders) list\[",
        "an Accelerator retains all arguments of prepare()",
        "Call prepare() once. Before preparing another model, release the previous one with "
        "model, optimizer = accelerator.free_memory(model, optimizer).",
        "accelerate/accelerator.py, Accelerator.free_memory",
    ),
)
"""In order: the first match applies."""


def passed(trace: Sequence[Hop]) -> str:
    """The types of a trace with the references between them, a user's type with the package's type that it derives
    from.

    ` train.Net<lightning.pytorch.core.module.LightningModule>.kept list[i] torch.Tensor storage`.
    """
    text = ""
    for hop in trace:
        of_package = f"<{hop.base}>" if hop.base else ""
        space = "" if hop.reference.startswith((".", "[")) or not hop.reference else " "
        text += f" {hop.type}{of_package}{space}{hop.reference}"
    return text


def package_advice_for(finding: Finding) -> PackageAdvice | None:
    """The hint of a package for this leak; None if there is none, or if the leak belongs to the library."""
    if finding.upstream is not None or finding.origin == Origin.LIBRARY or finding.settled:
        return None
    text = passed(finding.trace)
    return next((package_advice for package_advice in PACKAGE_ADVICE if re.search(package_advice.pattern, text)), None)
