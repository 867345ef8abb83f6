"""Leaks that torch is known to have: what of a trace they are known by, and the upstream issue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakscope.findings.model import Finding, Hop


@dataclass(frozen=True)
class Known:
    """One leak of a library."""

    pattern: str
    """Regular expression over `label, reference` of the hops, one hop a line."""
    issue: str
    """owner/repository#number."""
    said: str


KNOWN = (
    Known(r"PipelineStage[^\n]*\n[^\n]*\.fwd_cache", "pytorch/pytorch#128910", "sent outputs stay in fwd_cache until their backward"),
    Known(r"_RecvInfo[^\n]*\.buffer[^\n]*\n(?:[^\n]*\n)*?[^\n]*(?:_backward_hooks|hook)", "pytorch/pytorch#185331",
          "receive buffers are the same tensors every step: hooks registered on them pile up"),
    Known(r"\.(?:args_recv_info|grad_recv_info|set_local_fwd_input|set_local_bwd_input)", "pytorch/pytorch#136380",
          "one receive buffer for each microbatch, allocated once and alive for ever"),
    Known(r"_RecvInfo[^\n]*\.buffer", "pytorch/pytorch#136380", "one receive buffer for each microbatch, allocated once and alive for ever"),
    Known(r"PipelineStage[^\n]*\n?[^\n]*\.(?:bwd_cache|backward_state|dw_runner)", "pytorch/pytorch#136380",
          "gradients and stage outputs of split backward stay in the stage's own state"),
    Known(r"PipelineStage[^\n]*\n?[^\n]*\.output_chunks", "pytorch/pytorch#128910", "outputs of the last stage stay until the next step"),
    Known(r"extract_tensors_with_grads", "pytorch/pytorch#136507", "a recursive closure holds all stage outputs until gc runs"),
    Known(r"param_group[^\n]*\n(?:[^\n]*\n)*?[^\n]*intermediates|\['intermediates'\]", "pytorch/pytorch#136584",
          "a pre-hook's closure holds the parameter group, whose intermediates hold the hook"),
)  # fmt: skip
"""In order; the first that fits a trace names it."""


_TYPES = "torch.distributed.pipelining."
_FILES = "<torch/distributed/pipelining/"


def known_leak(trace: Sequence[Hop]) -> Known | None:
    """The known leak that a trace shows; None for anything else.

    A script's own copy of such code is the script's: at least one hop must be of torch's own type or file.
    """
    if not any(hop.type.startswith(_TYPES) or hop.where.startswith(_FILES) for hop in trace):
        return None
    text = "\n".join(f"{hop.object}, {hop.reference}" for hop in trace)
    return next((known for known in KNOWN if re.search(known.pattern, text)), None)


def named_upstream(finding: Finding) -> Finding:
    """The finding as the library's, with the upstream issue in its advice, where it is known there."""
    known = known_leak(finding.trace)
    if known is None:
        return finding
    return replace(finding, origin="library", advice=f"Known upstream, {known.issue}: {known.said}. {finding.advice}")
