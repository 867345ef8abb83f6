"""The weight pass of a split backward: from what the input pass caught to the weights, group by group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from .full import Grads, accumulate
from .input_pass import Edge, Masks, ParamGroup, mask, unmask


def weight_pass(weights: list[torch.Tensor], param_groups: list[ParamGroup], retain_graph: bool, boxed: bool) -> Grads:
    """Accumulate the gradients of `weights`, and return the previous ``.grad`` of each."""
    before = tuple([weight.grad for weight in weights])
    wanted = set(map(id, weights))
    graphs: list[Any] = []  # kept until the end
    clamped: list[ParamGroup] = []
    pending: list[ParamGroup] = []
    for group in param_groups:
        if "graph" in group:
            graphs.append(group.pop("graph"))
        is_torchs = "clamped" not in group
        joined = len(group.get("intermediates", ())) > 1 if is_torchs else group["clamped"]
        (clamped if joined else pending).append(group)
    pending.reverse()
    if boxed:
        param_groups.clear()
    if clamped:
        _run_clamped(clamped, wanted, _others_wait(clamped) or retain_graph or bool(pending))
        clamped.clear()
    while pending:
        group = pending.pop()
        _run_group(group, wanted, _others_wait([group]) or retain_graph)
    return before


def _others_wait(groups: list[ParamGroup]) -> bool:
    """Whether later groups of the same input pass need what the call of these ones runs through.

    The call of clamped groups crosses the nodes between their intermediates, other groups' among them.
    """
    waiting: list[dict[int, bool]] = []
    clamped = False
    for group in groups:
        waiting.append(group.pop("waiting", {}))
        waiting[-1].pop(group.get("place", -1), None)
        clamped = clamped or group.get("clamped", False)
    return any([others and (clamped or True in others.values()) for others in waiting])


def _take(group: ParamGroup) -> tuple[list[Node], list[Grads], list[list[Edge] | None]]:
    """Remove what keeps the graph alive from a group, so that it is freed with the engine call."""
    grads = group.pop("grads")
    intermediates = group.pop("intermediates")
    return intermediates, grads, group.pop("exits", None) or [None] * len(intermediates)


def _run_group(group: ParamGroup, wanted: set[int], retain_graph: bool) -> None:
    """Run one group whose intermediates are not on each other's path to its weights."""
    targets = _targets(group, wanted)
    intermediates, grads, exits = _take(group)
    # What arrived at a weight's own node has been through the hooks of the weight, which run again.
    overrides = [
        (node, caught) for node, caught, edges in zip(intermediates, grads, exits, strict=False) if edges == []
    ]
    if sum([bool(edges) for edges in exits]) > 1:
        starts, start_grads = _through_exits(intermediates, grads, exits, wanted, retain_graph, overrides)
        masks: Masks = []
    else:
        starts, start_grads = _starts(intermediates, grads)
        masks = _masked(zip(intermediates, exits, strict=True))
    del intermediates, grads, exits
    try:
        _accumulate(starts, start_grads, targets, retain_graph, overrides)
    finally:
        unmask(masks)


def _run_clamped(groups: list[ParamGroup], wanted: set[int], retain_graph: bool) -> None:
    """Run groups whose intermediates are on each other's path in one call, each clamped to its own gradient.

    Between intermediates the engine computes the inputs' gradient once more; what arrives is replaced by what the input
    pass caught. A non-reentrant checkpoint is thus recomputed once, not once per group.
    """
    starts: list[GradientEdge] = []
    start_grads: list[torch.Tensor] = []
    targets: list[torch.Tensor] = []
    overrides: list[tuple[Node, Grads]] = []
    for group in groups:
        targets += _targets(group, wanted)
        is_torchs = "exits" not in group
        intermediates, grads, exits = _take(group)
        more_starts, more_grads = _starts(intermediates, grads)
        starts += more_starts
        start_grads += more_grads
        overrides += [
            (node, caught)
            for node, caught, edges in zip(intermediates, grads, exits, strict=False)
            if is_torchs or edges is not None
        ]
    _accumulate(starts, start_grads, targets, retain_graph, overrides)


def _through_exits(
    intermediates: list[Node],
    grads: list[Grads],
    exits: list[list[Edge] | None],
    wanted: set[int],
    retain_graph: bool,
    overrides: list[tuple[Node, Grads]],
) -> tuple[list[GradientEdge], list[torch.Tensor]]:
    """Run each intermediate separately, up to where it leaves the input path; start the rest from there.

    For weights used by several layers: requesting the weight itself from an intermediate would lead the engine through
    the layers below. Biases and other leaves directly at the exit are accumulated at once.
    """
    starts: list[GradientEdge] = []
    start_grads: list[torch.Tensor] = []
    reached: dict[Node, dict[int, torch.Tensor]] = {}
    while intermediates:
        node, caught, edges = intermediates.pop(), grads.pop(), exits.pop()
        node_starts, node_grads = _starts([node], [caught])
        if edges is None:
            starts += node_starts
            start_grads += node_grads
            continue
        if not node_starts:
            continue
        masks = _masked([(node, edges)])
        try:
            leaves: list[Any] = [leaf for child, _ in edges if id(leaf := getattr(child, "variable", None)) in wanted]
            further = [GradientEdge(child, number) for child, number in edges if not hasattr(child, "variable")]
            _accumulate(node_starts, node_grads, leaves, retain_graph or bool(further), [])
            if not further:
                continue
            arrived = torch.autograd.grad(
                node_starts, further, node_grads, retain_graph=retain_graph, allow_unused=True
            )
        finally:
            unmask(masks)
        for edge, grad in zip(further, arrived, strict=True):
            if grad is not None:
                starts.append(edge)
                start_grads.append(grad)
                reached.setdefault(edge.node, {})[edge.output_nr] = grad
    # Requested as an end, an exit has already run the hooks of its tensor; as a start, it runs them again.
    overrides += [
        (node, tuple(arrivals.get(number) for number in range(len(node._input_metadata))))
        for node, arrivals in reached.items()
    ]
    return starts, start_grads


def _targets(group: ParamGroup, wanted: set[int]) -> list[torch.Tensor]:
    return [node.variable for node in group["params"] if id(node.variable) in wanted]


def _starts(intermediates: list[Node], grads: list[Grads]) -> tuple[list[GradientEdge], list[torch.Tensor]]:
    starts: list[GradientEdge] = []
    start_grads: list[torch.Tensor] = []
    for node, caught in zip(intermediates, grads, strict=False):
        for number, grad in enumerate(caught):
            if grad is not None:
                starts.append(GradientEdge(node, number))
                start_grads.append(grad)
    return starts, start_grads


def _accumulate(
    starts: list[GradientEdge],
    grads: list[torch.Tensor],
    targets: list[torch.Tensor],
    retain_graph: bool,
    overrides: list[tuple[Node, Grads]],
) -> None:
    if not starts or not targets:
        return
    handles = [node.register_prehook(_answer(caught)) for node, caught in overrides]
    try:
        if _fit(starts, grads):
            accumulate(starts, grads, retain_graph, targets)
        else:
            torch.autograd.backward(starts, grads, retain_graph=retain_graph, inputs=targets)
    finally:
        for handle in handles:
            handle.remove()


def _fit(starts: list[GradientEdge], grads: list[torch.Tensor]) -> bool:
    """Whether the gradients have the shapes they had when they were caught; the caller may have replaced them."""
    for start, grad in zip(starts, grads, strict=True):
        made = start.node._input_metadata[start.output_nr]
        if type(grad) is not torch.Tensor or made.shape != [*grad.shape] or made.dtype is not grad.dtype:
            return False
    return True


def _answer(caught: Grads) -> Any:
    def answer(_arrived: Grads) -> Grads:
        return caught

    return answer


def _masked(starts: Iterable[tuple[Node, list[Edge] | None]]) -> Masks:
    """Mask the custom Functions among the starts: this pass needs the gradients of these edges only."""
    masks: Masks = []
    for node, edges in starts:
        if edges is not None and isinstance(node, BackwardCFunction):
            mask(node, {child for child, _ in edges}, masks)
    return masks
