"""Autograd nodes on the paths to inputs and to weights, and the pass over the inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from .boxed import deliver_late, empty
from .check import Roots, gather_roots
from .edges import flatten, functions_keep_their_graph, owner_of
from .full import Grads, differentiate, stage_backward
from .saved import Dropping, any_handles, by_checkpoint

Edge = tuple[Node, int]
TO_INPUT, TO_WEIGHT = 1, 2


class Paths(NamedTuple):
    """The graph below the roots."""

    order: list[Node]
    """Every node, those nearer to the roots first."""
    leads: dict[Node, int]
    """TO_INPUT, TO_WEIGHT, both or 0 for each node."""
    next: dict[Node, tuple[tuple[Node | None, int], ...]]
    weights: list[Node]
    """The AccumulateGrad nodes of the given weights."""
    functions: list[Node]
    """The nodes of custom Functions."""


@dataclass
class WeightGroup:
    """Weights whose gradients are computed together, and where that computation starts."""

    intermediates: list[Node] = field(default_factory=list)
    exits: list[list[Edge] | None] = field(default_factory=list)
    """For each intermediate, the edges that leave the input path; None for a root that was never on it, and empty for a
    weight's own node, whose gradient the input pass has ready.
    """
    weights: set[Node] = field(default_factory=set)
    clamped: bool = False
    """Whether intermediates are on each other's path to the weights, so that each is clamped to its own gradient."""


def trace_paths(roots: Iterable[Node], inputs: set[Node], input_ids: set[int], weight_ids: set[int]) -> Paths:
    """Walk down from the roots. Leaves are identified by the id of their variable, other inputs by their node."""
    following: dict[Node, tuple[tuple[Node | None, int], ...]] = {}
    leads: dict[Node, int] = {}
    order: list[Node] = []
    weights: list[Node] = []
    functions: list[Node] = []
    stack = list(roots)
    while stack:
        node = stack[-1]
        if node in leads:
            stack.pop()
            continue
        edges = following.get(node)
        if edges is None:
            following[node] = edges = node.next_functions
            waiting = len(stack)
            for child, _ in edges:
                if child is not None and child not in leads:
                    stack.append(child)
            if len(stack) > waiting:
                continue
        stack.pop()
        lead = TO_INPUT if node in inputs else 0
        for child, _ in edges:
            if child is not None:
                lead |= leads[child]
        if not edges:
            variable = id(getattr(node, "variable", None))
            if variable in weight_ids:
                lead |= TO_WEIGHT
                weights.append(node)
            if variable in input_ids:
                lead |= TO_INPUT
        if isinstance(node, BackwardCFunction):
            functions.append(node)
        leads[node] = lead
        order.append(node)
    order.reverse()
    return Paths(order, leads, following, weights, functions)


def weight_groups(paths: Paths, roots: list[Node]) -> list[WeightGroup]:
    """The groups, those nearest to the roots first."""
    leads, following = paths.leads, paths.next
    parent: list[int] = []
    label: dict[Node, int] = {}
    starts: list[tuple[Node, list[Edge] | None]] = []
    for node in paths.order:
        lead = leads[node]
        exits: list[Edge] | None = None
        if lead == TO_INPUT | TO_WEIGHT:
            exits = [(child, nr) for child, nr in following[node] if child is not None and leads[child] == TO_WEIGHT]
            if not exits:
                continue
            claimed = [child for child, _ in exits]
        elif lead == TO_WEIGHT and node in roots:
            claimed = [node]
        else:
            continue
        mine = len(parent)
        parent.append(mine)
        starts.append((node, exits))
        while claimed:
            below = claimed.pop()
            before = label.get(below)
            if before is not None:
                parent[_find(parent, before)] = _find(parent, mine)
                continue
            label[below] = mine
            claimed += [child for child, _ in following[below] if child is not None and leads[child] == TO_WEIGHT]
    return _joined(starts, parent, label, paths)


def _joined(
    starts: list[tuple[Node, list[Edge] | None]], parent: list[int], label: dict[Node, int], paths: Paths
) -> list[WeightGroup]:
    """The starts that share weights, in one group each, with those weights."""
    groups: dict[int, WeightGroup] = {}
    for index, (node, exits) in enumerate(starts):
        first = _find(parent, index)
        if first in groups:
            groups[first].intermediates.append(node)
            groups[first].exits.append(exits)
        else:
            groups[first] = WeightGroup([node], [exits])
    for weight in paths.weights:
        if paths.leads[weight] == TO_WEIGHT and weight in label:
            groups[_find(parent, label[weight])].weights.add(weight)
    return list(groups.values())


def _find(parent: list[int], group: int) -> int:
    while parent[group] != group:
        parent[group] = parent[parent[group]]
        group = parent[group]
    return group


def exits_apart(group: WeightGroup, paths: Paths) -> bool:
    """Whether no exit is on or below another one or an off-path root, so that each can be requested separately."""
    exits = [edge[0] for edges in group.exits if edges is not None for edge in edges]
    if len(set(exits)) != len(exits):
        return False
    targets = set(exits)
    seen: set[Node] = set()
    pending: list[Node | None] = [child for node in exits for child, _ in paths.next[node]]
    pending += [node for node, edges in zip(group.intermediates, group.exits, strict=True) if edges is None]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        if node in targets:
            return False
        seen.add(node)
        pending.extend(child for child, _ in paths.next[node])
    return True


def crossed(paths: Paths, starts: set[Node]) -> set[Node]:
    """The nodes on the input path between one of `starts` and the next."""
    below: set[Node] = set()
    for node in paths.order:
        if node in starts or node in below:
            below.update(child for child, _ in paths.next[node] if child and paths.leads[child] & TO_INPUT)
    above: set[Node] = set()
    for node in reversed(paths.order):
        if any(child in starts or child in above for child, _ in paths.next[node]):
            above.add(node)
    return below & above


Masks = list[tuple[Any, tuple[bool, ...]]]
"""Nodes of custom Functions, with the ``needs_input_grad`` to restore."""


def mask(node: Any, wanted: set[Node], masks: Masks) -> None:
    """Set ``ctx.needs_input_grad`` of a custom Function's node as if only `wanted` of its next nodes needed gradients.

    It has one entry per argument of forward, ``next_functions`` one per tensor argument; the arguments that need a
    gradient are those with a next node, in the same order. Unmasked, a Function computes the gradients of all inputs,
    whatever the engine needs (pytorch#174017). The old value is added to `masks`.
    """
    masks.append((node, node.needs_input_grad))
    answers = iter([child in wanted for child, _ in node.next_functions if child is not None])
    node.needs_input_grad = tuple(bool(needed) and next(answers, True) for needed in node.needs_input_grad)


def unmask(masks: Masks) -> None:
    """Restore what `mask` changed."""
    for node, needed in masks:
        node.needs_input_grad = needed


InputGrads = Grads
ParamGroup = dict[str, Any]


def input_pass(
    outputs: Any, output_grads: Any, input_values: Any, weights: Iterable[Tensor], park_grad: bool, boxed: bool
) -> tuple[InputGrads, list[ParamGroup]]:
    """Run backward up to the inputs and record for each group what the weights' gradients will need later."""
    inputs = list(input_values)
    wanted: list[Tensor] = []
    places: dict[int, int] = {}
    for value in inputs:
        if isinstance(value, Tensor) and value.requires_grad:
            places.setdefault(id(value), len(wanted))
            wanted.append(value)
    roots = gather_roots(outputs, output_grads, ones=True, boxed=boxed)
    if boxed:
        for handed_over in (outputs, output_grads, input_values):
            empty(handed_over)
    tops = [node for node, _ in roots.nodes]
    ends = {tensor.grad_fn for tensor in wanted if tensor.grad_fn is not None}
    paths = trace_paths(tops, ends, set(map(id, wanted)), set(map(id, weights)))
    functions = paths.functions
    if functions and any(node.name() == "CheckpointFunctionBackward" for node in functions):
        return _whole_backward(roots, inputs, park_grad), []
    groups, again = _groups(paths, tops)
    kept = [owner_of(start) for start in roots.starts] if functions and not functions_keep_their_graph() else []
    done: list[Node] = []
    if functions or any_handles():
        done = [node for node, lead in paths.leads.items() if lead & TO_INPUT and node not in again]
    dropping = Dropping(done)
    try:
        arrived, param_groups = _run(roots, wanted, groups, paths, boxed)
        dropping.drop()
    finally:
        dropping.close()
    for group in param_groups if kept else ():
        group["graph"] = kept
    del roots
    returned = tuple([arrived[places.pop(id(value))] if id(value) in places else None for value in inputs])
    if park_grad:
        _park(inputs, returned)
    if not boxed:
        _detach(outputs, paths)
    return returned, param_groups


def _run(
    roots: Roots, wanted: list[Tensor], groups: list[WeightGroup], paths: Paths, boxed: bool
) -> tuple[InputGrads, list[ParamGroup]]:
    """Run the engine down to the inputs, and catch what arrives at each intermediate."""
    param_groups = _param_groups(groups)
    catches: list[tuple[list[Any], int, int]] = []
    edges: list[GradientEdge] = []
    handles: list[Any] = []
    masks: Masks = []
    try:
        root_grads, hooks = deliver_late(roots) if boxed else (roots.grads, [])
        handles += hooks
        for group, param_group in zip(groups, param_groups, strict=True):
            grads = param_group["grads"]
            for index, (node, exits) in enumerate(zip(group.intermediates, group.exits, strict=True)):
                count = len(node._input_metadata)
                grads[index] = (None,) * count
                if exits is None:
                    grads[index] = _root_grads(node, count, roots)
                elif group.clamped:
                    handles.append(node.register_prehook(_catch_into(grads, index)))
                else:
                    catches.append((grads, index, count))
                    edges.extend(GradientEdge(node, number) for number in range(count))
                if exits is not None and isinstance(node, BackwardCFunction):
                    mask(node, _leading(node, paths, TO_INPUT), masks)
        if boxed:
            roots.grads.clear()
        ends = [*wanted, *edges] if wanted else []
        dinputs = differentiate(roots.starts, root_grads, ends, retain_graph=bool(param_groups))
        caught = iter(dinputs[len(wanted) :])
        for grads, index, count in catches:
            grads[index] = tuple(next(caught) for _ in range(count))
        return dinputs[: len(wanted)], param_groups
    finally:
        for handle in handles:
            handle.remove()
        unmask(masks)


def _groups(paths: Paths, roots: list[Node]) -> tuple[list[WeightGroup], set[Node]]:
    """The groups, and the nodes on the input path that the weight pass runs again."""
    groups = weight_groups(paths, roots)
    joint = False
    for group in groups:
        for node in group.intermediates:
            joint = joint or by_checkpoint(node)
    again: set[Node] = set()
    clamped: set[Node] = set()
    for group in groups:
        on_path = sum([exits is not None for exits in group.exits])
        group.clamped = on_path > 0 and (joint or (on_path > 1 and not exits_apart(group, paths)))
        if not group.clamped and _ready_sooner(group):
            group.intermediates = list(group.weights)
            group.exits = [[] for _ in group.weights]
        again.update(group.intermediates)
        if group.clamped:
            clamped.update(group.intermediates)
    if clamped:
        again |= crossed(paths, clamped)
        if any(by_checkpoint(node, once=True) for node in again):
            own = [weight for weight in paths.weights if paths.leads[weight] == TO_WEIGHT]
            return [WeightGroup([weight], [[]], {weight}) for weight in own], set()
    return groups, again


def _ready_sooner(group: WeightGroup) -> bool:
    """Whether the input pass should compute these weights' gradients and keep them in place of its intermediates'.

    This applies to norms and separate biases: small vectors, each the sum of a whole activation's gradient, for which
    the weight pass would need the activation too. A weight with hooks would be notified in both passes.
    """
    weights: list[Any] = [node.variable for node in group.weights]  # type: ignore[attr-defined]
    for weight in weights:
        if weight.dim() > 1 or weight._backward_hooks:
            return False
    if None in group.exits:
        return False
    arriving: list[Any] = [meta for node in group.intermediates for meta in node._input_metadata]
    if any(meta.is_nested_tensor for meta in arriving):
        return False
    longest = max((size for meta in arriving for size in meta.shape), default=0)  # many weights flattened take longer
    sizes = [weight.numel() for weight in weights]
    return all(size <= longest for size in sizes) and sum(sizes) < sum(prod(meta.shape) for meta in arriving)


def _param_groups(groups: list[WeightGroup]) -> list[ParamGroup]:
    """Torch's three keys, and our own that the weight pass reads if present."""
    waiting = {place: group.clamped for place, group in enumerate(groups)}
    return [
        {
            "params": group.weights,
            "intermediates": group.intermediates,
            "grads": [()] * len(group.intermediates),
            "exits": group.exits,
            "clamped": group.clamped,
            "place": place,
            "waiting": waiting,
        }
        for place, group in enumerate(groups)
    ]


def _catch_into(grads: list[Any], index: int) -> Any:
    def catch(arrived: tuple[Tensor, ...]) -> None:
        grads[index] = tuple(arrived)

    return catch


def _root_grads(node: Node, count: int, roots: Roots) -> tuple[Tensor | None, ...]:
    arrived: list[Tensor | None] = [None] * count
    for (root, number), grad in zip(roots.nodes, roots.grads, strict=True):
        if root is node:
            before = arrived[number]
            arrived[number] = grad if before is None else before + grad
    return tuple(arrived)


def _leading(node: Node, paths: Paths, where: int) -> set[Node]:
    return {child for child, _ in paths.next[node] if child is not None and paths.leads[child] & where}


def _whole_backward(roots: Roots, inputs: list[Any], park_grad: bool) -> InputGrads:
    leaves = [(tensor, tensor.grad) for tensor in inputs if isinstance(tensor, Tensor) and tensor.is_leaf]
    for tensor, _ in leaves:
        tensor.grad = None
    try:
        dinputs = stage_backward(roots.starts, roots.grads, inputs)
    finally:
        for tensor, before in leaves:
            tensor.grad = before
    if park_grad:
        _park(inputs, dinputs)
    return dinputs


def _park(inputs: list[Any], dinputs: InputGrads) -> None:
    for tensor, grad in zip(inputs, dinputs, strict=True):
        if grad is not None:
            # Out of place: the tensor in .grad may be the one an earlier call returned.
            tensor.grad = grad if tensor.grad is None else tensor.grad + grad


def _detach(outputs: Any, paths: Paths) -> None:
    """Detach the outputs from their graph, so that the caller's references do not keep what is above the intermediates.

    A view cannot be detached in place. An output that the stage itself used further may be saved for the weights'
    gradients, and autograd refuses a saved tensor that was detached in place.
    """
    if type(outputs) in (list, tuple) and len(outputs) == 1 and isinstance(outputs[0], Tensor):
        tensors: list[Any] = [outputs[0]]
    else:
        tensors = [item.value for item in flatten(outputs, None) if isinstance(item.value, Tensor)]
    inside: set[Node | None] = set()
    if len(tensors) > 1:
        inside = {child for edges in paths.next.values() for child, _ in edges}
    for output in tensors:
        if output.grad_fn is not None and output.grad_fn not in inside and not output._is_view():
            output.detach_()
