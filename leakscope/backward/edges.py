"""Gradient edges of outputs, and what a grad node saved, read without running a hook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

LISTED = "_raw_saved_tensors"
"""How a custom Function's node lists what it saved; it raises once that is freed."""


@cache
def saved_names(kind: type) -> tuple[str, ...]:
    """The names of a grad node type's saved tensors that can be read without running unpack hooks."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def variables(node: Node) -> list[Any]:
    """The saved tensors of a node, read without running unpack hooks."""
    found: list[Any] = []
    for name in saved_names(type(node)):
        saved = getattr(node, name)
        if isinstance(saved, tuple):
            found += saved
        else:
            found.append(saved)
    return found


def freed(start: Node) -> bool:
    """Whether an earlier backward freed what the first nodes below `start` saved. Runs no unpack hook.

    Checks the first node on each path that saved anything; a graph freed only further down fails in the engine.
    """
    seen = {start}
    pending = [start]
    while pending:
        node = pending.pop()
        names = saved_names(type(node))
        if not names:
            children = [child for child, _ in node.next_functions if child is not None and child not in seen]
            seen.update(children)
            pending.extend(children)
        elif _emptied(node, names):
            return True
    return False


def _emptied(node: Node, names: tuple[str, ...]) -> bool:
    empty = 0
    for name in names:
        try:
            entry = getattr(node, name)
        except RuntimeError:  # freed buffers of a custom Function raise when listed
            return True
        for variable in entry if isinstance(entry, tuple) else (entry,):
            if variable.data is not None:
                return False
            empty += 1
    if not empty:
        return False
    # A freed and an undefined saved tensor both read None; only the checked access tells them apart. No hook holds
    # a payload here, so none runs.
    try:
        getattr(node, names[0].replace("_raw_saved_", "_saved_"), None)
    except RuntimeError:
        return True
    return False


_CONTAINERS = (list, tuple, Mapping)


SMALL = 4096
"""Bytes up to which a gradient is not delivered separately, which takes 2.5 KB and 13 us (measured)."""


class OutputEdge(GradientEdge):
    """An edge made by `output_edges`, with its own node, so that no other gradient and no user hook is involved."""

    __slots__ = ()


class Output(NamedTuple):
    """One tensor, edge or other value in a (nested) stage output, with its gradient."""

    name: str
    """Its position, as written in code: ``output 1`` or ``output 'logits'[0]``."""
    value: Any
    grad: Any
    skipped: bool
    """Whether it is below a container whose gradient is None: torch's contract omits such a container."""
    owner: Any
    """The container that holds the value, None for a bare output."""


def output_edges(outputs: Any) -> Any:
    """The gradient edges of a stage output, in the same nesting of tuples, lists and mappings.

    Hand the result to `stage_backward` or `stage_backward_input` in place of the outputs, send the outputs
    and drop them. A tensor that needs no gradient and any other value become None. Edges stay what they are.

    The edge leads through a view node of its own, but for outputs of 4 KiB or less. So it also keeps the graph of a
    custom Function alive, whose Python node does not own it in every torch (see the ownership token of
    ``torch.autograd.graph.get_gradient_edge``), and a boxed backward can hand its gradient over late.

    >>> import torch
    >>> from leakscope.backward import output_edges, stage_backward
    >>> stage, x = torch.nn.Linear(4, 8), torch.randn(2, 4, requires_grad=True)
    >>> outputs = [stage(x), "a name"]
    >>> edges = output_edges(outputs)
    >>> edges[1] is None, outputs.clear()    # the graph lives on without its outputs
    (True, None)
    >>> (grad,) = stage_backward(edges, [torch.ones(2, 8), None], [x])
    >>> grad.shape
    torch.Size([2, 4])

    Args:
        outputs: A tensor, edge or other value, or a nested tuple, list or mapping of them.

    Returns:
        `torch.autograd.graph.GradientEdge` or None for each value, nested in the same way.

    """
    root: list[Any] = [outputs]
    pending: list[tuple[Any, Any]] = [(root, 0)]
    rebuilt: list[tuple[Any, Any, type]] = []
    while pending:
        container, key = pending.pop()
        value = container[key]
        if isinstance(value, GradientEdge):
            continue
        if isinstance(value, Tensor):
            container[key] = edge_of(value) if value.requires_grad else None
        elif isinstance(value, Mapping):
            container[key] = dict(value)
            pending.extend((container[key], k) for k in value)
        elif isinstance(value, (list, tuple)):
            container[key] = list(value)
            pending.extend((container[key], i) for i in range(len(value)))
            if isinstance(value, tuple):
                rebuilt.append((container, key, type(value)))
        else:
            container[key] = None
    for container, key, kind in reversed(rebuilt):
        items = container[key]
        container[key] = kind(*items) if hasattr(kind, "_fields") else tuple(items)
    return root[0]


def edge_of(tensor: Tensor, of_its_own: bool = False) -> GradientEdge:
    """The edge of a tensor that requires a gradient; with `of_its_own` always one through a view node made for it."""
    node = tensor.grad_fn
    small = type(tensor) is Tensor and tensor.nbytes <= SMALL
    if small and not of_its_own and node is not None and not isinstance(node, BackwardCFunction):
        return GradientEdge(node, tensor.output_nr)
    if torch.is_grad_enabled():
        node = tensor.view_as(tensor).grad_fn
    else:
        with torch.enable_grad():
            node = tensor.view_as(tensor).grad_fn
    assert node is not None
    return OutputEdge(node, 0)


def owner_of(root: Tensor | GradientEdge) -> GradientEdge:
    """The object that keeps the graph below a root alive, without keeping the root."""
    return edge_of(root) if isinstance(root, Tensor) else root


class _Same(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, given: Tensor) -> Tensor:
        return given.view_as(given)

    @staticmethod
    def backward(_: Any, *grads: Any) -> Any:
        return grads[0]


@cache
def functions_keep_their_graph() -> bool:
    """Whether the Python node of a custom Function keeps what is below it: in torch 2.10 it does not."""
    with torch.inference_mode(False), torch.enable_grad():
        same: Any = _Same
        node = same.apply(torch.empty(0, requires_grad=True, device="cpu")).grad_fn
    try:
        return bool(node.next_functions)
    except RuntimeError:
        return False


def gradient_edge(root: Tensor | GradientEdge) -> tuple[Node, int]:
    """The grad node of a root, and the index of its input."""
    if isinstance(root, Tensor) and root.grad_fn is not None:
        return root.grad_fn, root.output_nr
    edge = root if isinstance(root, GradientEdge) else get_gradient_edge(root)
    return edge.node, edge.output_nr


def flatten(outputs: Any, grads: Any) -> Iterator[Output]:
    """Walk a nested output and its gradients in parallel, in the order of the outputs.

    ``grads=None`` at the top means "no gradients given" for every output. Raises AssertionError if the containers of
    outputs and gradients differ in kind, length or keys.
    """
    absent = grads is None
    pending = [Output("output", outputs, grads, False, None)]
    while pending:
        item = pending.pop()
        value, grad = item.value, item.grad
        if isinstance(value, (Tensor, GradientEdge)) or not isinstance(value, _CONTAINERS):
            yield item
            continue
        keys: list[Any] = list(value) if isinstance(value, Mapping) else list(range(len(value)))
        given = grad is not None
        if given:
            _same_container(item.name, value, grad)
        skipped = item.skipped or not (given or absent)
        for key in reversed(keys):
            name = f"output {key!r}" if item.owner is None else f"{item.name}[{key!r}]"
            pending.append(Output(name, value[key], grad[key] if given else None, skipped, value))


def _same_container(name: str, value: Any, grad: Any) -> None:
    mapping = isinstance(value, Mapping)
    if mapping != isinstance(grad, Mapping) or not (mapping or isinstance(grad, (list, tuple))):
        raise AssertionError(
            f"{name} is a {type(value).__name__}, so its gradients must come in one too, not in a {type(grad).__name__}"
        )
    if mapping and set(value) != set(grad):
        raise AssertionError(
            f"{name} has the keys {sorted(map(repr, value))}, its gradients have {sorted(map(repr, grad))}"
        )
    if not mapping and len(value) != len(grad):
        raise AssertionError(f"{name} has {len(value)} parts but {len(grad)} gradients were given")
