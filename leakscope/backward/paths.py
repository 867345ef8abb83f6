"""Which grad nodes lead to the stage's inputs, which to its weights, and where do the two part?

The input pass runs the nodes that lead to an input. A weight's gradient leaves that path at a few nodes only, the
*intermediates*: with the gradient that reached an intermediate, the weights beside it can be had later, without the
nodes above it. Intermediates that share a weight form one group. Everything here is linear in the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

Edge = tuple[Node, int]
TO_INPUT, TO_WEIGHT = 1, 2


class Paths(NamedTuple):
    """The graph below the roots."""

    order: list[Node]
    """Every node, those closer to the roots first."""
    leads: dict[Node, int]
    """TO_INPUT, TO_WEIGHT, both or 0 for each node."""
    next: dict[Node, tuple[tuple[Node | None, int], ...]]
    weights: list[Node]
    """The AccumulateGrad nodes of the given weights."""
    functions: list[Node]
    """The nodes of custom Functions."""


@dataclass
class Group:
    """Weights whose gradients are computed together, and where that computation starts."""

    intermediates: list[Node] = field(default_factory=list)
    exits: list[list[Edge] | None] = field(default_factory=list)
    """Per intermediate, the edges that leave the input path; None for a root that never was on it, and nothing for a
    weight's own node, whose gradient the input pass has ready.
    """
    weights: set[Node] = field(default_factory=set)
    clamped: bool = False
    """Whether intermediates lie on each other's way to the weights, so that each is held to its own gradient."""


def trace_paths(roots: Iterable[Node], inputs: set[Node], input_ids: set[int], weight_ids: set[int]) -> Paths:
    """Walk down from the roots. Leaves are known by the id of their variable, other inputs by their node."""
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


def weight_groups(paths: Paths, roots: list[Node]) -> list[Group]:
    """The groups, those closest to the roots first."""
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
) -> list[Group]:
    """The starts that share weights in one group each, with the weights beside them."""
    groups: dict[int, Group] = {}
    for index, (node, exits) in enumerate(starts):
        first = _find(parent, index)
        if first in groups:
            groups[first].intermediates.append(node)
            groups[first].exits.append(exits)
        else:
            groups[first] = Group([node], [exits])
    for weight in paths.weights:
        if paths.leads[weight] == TO_WEIGHT and weight in label:
            groups[_find(parent, label[weight])].weights.add(weight)
    return list(groups.values())


def _find(parent: list[int], group: int) -> int:
    while parent[group] != group:
        parent[group] = parent[parent[group]]
        group = parent[group]
    return group


def exits_apart(group: Group, paths: Paths) -> bool:
    """True where no exit lies on or below another or an off-path root: each can be asked for by itself."""
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


def mask(node: Any, wanted: set[Node]) -> None:
    """Set ``ctx.needs_input_grad`` of a custom Function's node as if only `wanted` of its next nodes needed gradients.

    It has one entry per argument of forward, ``next_functions`` one per tensor argument; the arguments that need a
    gradient are those with a next node, in the same order. The caller puts the old value back.
    """
    answers = iter([child in wanted for child, _ in node.next_functions if child is not None])
    node.needs_input_grad = tuple(bool(needed) and next(answers, True) for needed in node.needs_input_grad)
