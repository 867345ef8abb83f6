"""All rules, in the order in which a group of storages is offered to them."""

from __future__ import annotations

from types import ModuleType

from leakscope.findings.rules import (
    dist_autograd_context,
    frame_hold,
    hook_pileup,
    immortal_cycle,
    native_hold,
    p2p_buffer,
    retained_graph,
    step_growth,
    tensor_cycle,
    view_hold,
)

ORDER: tuple[ModuleType, ...] = (
    immortal_cycle,
    tensor_cycle,
    dist_autograd_context,
    p2p_buffer,
    hook_pileup,
    frame_hold,
    retained_graph,
    view_hold,
    native_hold,
    step_growth,
)
"""Each has NAME, applies(candidate), title(candidate, cut), advice(candidate, cut); some have cure(candidate), a slug of `findings.cures` or ""."""
