"""What torch is known to keep or to leak: by what of a trace it is known, and the upstream issue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakscope.findings.facts import Upstream
from leakscope.findings.kinds import Origin, RuleName
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
