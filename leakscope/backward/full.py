"""The whole backward of a stage, run by torch's engine."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import graph
from torch.autograd.graph import GradientEdge

from .boxed import deliver_late, empty
from .check import gather_roots, require_lists
from .edges import OutputEdge, flatten

_run_engine: Any = getattr(graph, "_engine_run_backward", None)
_transforms_active = torch._C._are_functorch_transforms_active
_PLAIN = frozenset({Tensor, torch.nn.Parameter, GradientEdge, OutputEdge})
"""Types without ``__torch_function__``."""

Grads = tuple[Tensor | None, ...]


def accumulate(
    starts: Sequence[Any], grads: Sequence[Tensor], retain_graph: bool = False, ends: Sequence[Any] = ()
) -> None:
    """As ``torch.autograd.backward``, for starts and gradients of the same shapes; into all leaves without `ends`."""
    starts, ends, grads = tuple(starts), tuple(ends), tuple(grads)
    if _direct(starts, ends):
        _run_engine(starts, grads, retain_graph, False, ends, True, accumulate_grad=True)
    else:
        torch.autograd.backward(starts, grads, retain_graph=retain_graph, inputs=ends or None)


def differentiate(starts: Sequence[Any], grads: Sequence[Tensor], ends: Sequence[Any], retain_graph: bool) -> Grads:
    """As ``torch.autograd.grad``, for starts and gradients of the same shapes; None for an end that is not reached."""
    if not starts or not ends:
        return (None,) * len(ends)
    starts, ends, grads = tuple(starts), tuple(ends), tuple(grads)
    if not _direct(starts, ends):
        return torch.autograd.grad(starts, ends, grads, retain_graph=retain_graph, allow_unused=True)
    arrived: Grads = _run_engine(starts, grads, retain_graph, False, ends, True, accumulate_grad=False)
    return arrived


def _direct(starts: Sequence[Any], ends: Sequence[Any]) -> bool:
    """Whether no start or end has a ``__torch_function__`` and no transform is active, which torch would call first."""
    for one in starts:
        if type(one) not in _PLAIN:
            return False
    for one in ends:  # loops: a generator costs more than everything else here
        if type(one) not in _PLAIN:
            return False
    return _run_engine is not None and not _transforms_active()


def release_frames(error: BaseException) -> None:
    """Clear the finished frames of an exception and its causes, so that it keeps no tensor alive.

    File names and line numbers stay readable. Running frames (the caller's) are left alone.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        traceback.clear_frames(cause.__traceback__)
        pending += [cause.__cause__, cause.__context__]


def failed(what: str, error: Exception, outputs: Any, grads: Any, inputs: Any) -> RuntimeError:
    """The error that torch's contract requires ("Failed to run stage backward"), to be raised from the original.

    Raise it where it is made: a frame with its own error in a local closes a cycle through the error's traceback, and
    an error that carries a tensor keeps that tensor in the cycle.
    """
    release_frames(error)
    return RuntimeError(
        f"Failed to run {what}: {error}\n"
        f"    stage output: {_describe(outputs)}\n"
        f"    output gradients: {_describe(grads)}\n"
        f"    inputs: {_describe(inputs)}"
    )


def _describe(values: Any) -> str:
    parts = [_describe_one(item.value) for item in flatten(values, None)]
    return ", ".join(parts) if parts else "none (the list was handed over)"


def _describe_one(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{type(value).__name__}{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, GradientEdge):
        return f"GradientEdge({value.node.name()}, {value.output_nr})"
    return type(value).__name__


def stage_backward(
    stage_output: Any,
    output_grads: Any,
    input_values: Any,
    outputs_with_grads_idxs: list[int] | None = None,
    *,
    boxed: bool = False,
) -> tuple[Tensor | None, ...]:
    """Run backward through a stage: gradients of the inputs are returned, those of the parameters accumulated.

    A drop-in for ``torch.distributed.pipelining._backward.stage_backward`` (contract of torch 2.10 to 2.14).

    >>> import torch
    >>> from leakscope.backward import stage_backward
    >>> stage, x = torch.nn.Linear(4, 8), torch.randn(2, 4, requires_grad=True)
    >>> outputs, output_grads = [stage(x)], [torch.ones(2, 8)]
    >>> (grad,) = stage_backward(outputs, output_grads, [x], boxed=True)
    >>> grad.shape, stage.weight.grad.shape, outputs, x.grad
    (torch.Size([2, 4]), torch.Size([8, 4]), [], None)

    Args:
        stage_output: tensor, gradient edge (see `output_edges`), or a nested tuple, list or mapping of them.
            Parts that need no gradient are skipped, other values ignored.
        output_grads: gradients in the same nesting, of any floating dtype; None for a scalar. None altogether means
            "none given".
        input_values: the stage's inputs in order; other values than tensors are allowed.
        outputs_with_grads_idxs: keep only these positions of both lists (what torch's traced graphs pass).
        boxed: take ownership of the lists and dicts handed in and empty them before the engine runs. An output then
            dies as soon as the graph no longer needs it, an output gradient as soon as its node has run (one of 4 KiB
            or less when all have: to hand it over by itself takes more). Without it the caller's containers keep all of
            them until the call returns: the memory of the outputs and of their gradients is part of the peak of
            backward.

    Returns:
        One gradient or None per input value. An input listed twice gets its gradient at the first place. What stood in
        an input's ``.grad`` before is added to the returned gradient, and ``.grad`` is None afterwards.

    Raises:
        RuntimeError: "Failed to run stage backward: ..." from the original error; then every input's ``.grad`` is as
            found. Roots and gradients are checked before anything runs.
        TypeError: `boxed` with tensors in a tuple, which nobody can empty.

    """
    try:
        return _run(stage_output, output_grads, input_values, outputs_with_grads_idxs, boxed)
    except Exception as error:
        raise failed("stage backward", error, stage_output, output_grads, input_values) from error
    except BaseException as error:
        release_frames(error)
        raise
    finally:
        del stage_output, output_grads, input_values


def _run(
    stage_output: Any, output_grads: Any, input_values: Any, chosen: list[int] | None, boxed: bool
) -> tuple[Tensor | None, ...]:
    if chosen is not None:
        if boxed:
            require_lists("stage_output", stage_output)
            require_lists("output_grads", output_grads)
        stage_output = [stage_output[i] for i in chosen]
        output_grads = [output_grads[i] for i in chosen]
    roots = gather_roots(stage_output, output_grads, boxed=boxed)
    values = list(input_values)
    found: dict[int, Tensor] = {}
    arrived: dict[int, Tensor] = {}
    handles: list[Any] = []
    try:
        _set_aside(values, found, arrived, handles)
        starts, grads = roots.starts, roots.grads
        if boxed:
            grads, hooks = deliver_late(roots)
            handles += hooks
            roots.grads.clear()
            for handed_over in (stage_output, output_grads, input_values):
                empty(handed_over)
        del roots, stage_output, output_grads, input_values
        if starts:
            accumulate(starts, grads)
        return _collect(values, found, arrived)
    except BaseException:
        for value in values:
            if isinstance(value, Tensor) and (value.is_leaf or value.retains_grad):
                value.grad = found.get(id(value))
        raise
    finally:
        for handle in handles:
            handle.remove()


def _set_aside(values: list[Any], found: dict[int, Tensor], arrived: dict[int, Tensor], handles: list[Any]) -> None:
    """Remove the inputs' ``.grad``, and catch what arrives at inputs that keep none."""
    for value in values:
        if isinstance(value, Tensor) and value.requires_grad:
            if not (value.is_leaf or value.retains_grad):
                handles.append(value.register_hook(_arrival(arrived, id(value))))  # type: ignore[no-untyped-call]
            elif value.grad is not None:
                found[id(value)] = value.grad
                value.grad = None


def _arrival(arrived: dict[int, Tensor], key: int) -> Any:
    def keep(grad: Tensor) -> None:
        arrived[key] = grad

    return keep


def _collect(values: list[Any], found: dict[int, Tensor], arrived: dict[int, Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients by position; no input keeps one."""
    collected: list[Tensor | None] = []
    for value in values:
        grad = None
        if isinstance(value, Tensor):
            grad = arrived.pop(id(value), None) if arrived else None
            if grad is None and (value.is_leaf or value.retains_grad):
                grad = value.grad
                value.grad = None
            before = found.pop(id(value), None) if found else None
            if before is not None:
                grad = before if grad is None else before + grad
        collected.append(grad)
    return tuple(collected)
