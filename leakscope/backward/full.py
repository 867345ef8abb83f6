"""How does a stage run its whole backward without leaving anything behind?"""

from __future__ import annotations

from typing import Any

import torch

from .boxed import Delivery, empty, require_lists, take_roots
from .check import gather_roots
from .failure import failed, release_frames


def stage_backward(
    stage_output: Any,
    output_grads: Any,
    input_values: Any,
    outputs_with_grads_idxs: list[int] | None = None,
    *,
    boxed: bool = False,
) -> tuple[torch.Tensor | None, ...]:
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
            dies as soon as the graph no longer needs it, an output gradient as soon as its node has run. Without it
            the caller's containers keep all of them until the call returns: the memory of the outputs and of their
            gradients is part of the peak of backward.

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
) -> tuple[torch.Tensor | None, ...]:
    if boxed:
        require_lists("stage_output", stage_output)
        require_lists("output_grads", output_grads)
    if chosen is not None:
        stage_output = [stage_output[i] for i in chosen]
        output_grads = [output_grads[i] for i in chosen]
    roots = gather_roots(stage_output, output_grads)
    inputs = _Inputs(input_values)
    delivery = None
    try:
        starts, grads = roots.starts, roots.grads
        if boxed:
            delivery = Delivery(take_roots(roots), late=True)
            starts, grads = delivery.starts, delivery.grads
            for handed_over in (stage_output, output_grads, input_values):
                empty(handed_over)
        del roots, stage_output, output_grads, input_values
        if starts:
            torch.autograd.backward(starts, grads)
        return inputs.collect()
    except BaseException:
        inputs.restore()
        raise
    finally:
        inputs.close()
        if delivery is not None:
            delivery.close()


class _Inputs:
    """The stage's inputs while backward runs: what stood in ``.grad`` is set aside, what arrives is collected."""

    def __init__(self, values: Any) -> None:
        self._values = list(values)
        self._found: dict[int, torch.Tensor] = {}
        self._arrived: dict[int, torch.Tensor] = {}
        self._handles: list[Any] = []
        for value in self._values:
            if not isinstance(value, torch.Tensor) or not value.requires_grad:
                continue
            if not (value.is_leaf or value.retains_grad):
                self._handles.append(value.register_hook(self._arrival(id(value))))  # type: ignore[no-untyped-call]
            elif value.grad is not None:
                self._found[id(value)] = value.grad
                value.grad = None

    def _arrival(self, key: int) -> Any:
        arrived = self._arrived

        def keep(grad: torch.Tensor) -> None:
            arrived[key] = grad

        return keep

    def collect(self) -> tuple[torch.Tensor | None, ...]:
        """The gradients by position; no input keeps one."""
        collected: list[torch.Tensor | None] = []
        for value in self._values:
            grad = None
            if isinstance(value, torch.Tensor):
                grad = self._arrived.pop(id(value), None)
                if grad is None and (value.is_leaf or value.retains_grad):
                    grad = value.grad
                    value.grad = None
                before = self._found.pop(id(value), None)
                if before is not None:
                    grad = before if grad is None else before + grad
            collected.append(grad)
        return tuple(collected)

    def restore(self) -> None:
        """Put every ``.grad`` back as it was found."""
        for value in self._values:
            if isinstance(value, torch.Tensor) and (value.is_leaf or value.retains_grad):
                value.grad = self._found.get(id(value))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._values.clear()
        self._found.clear()
        self._arrived.clear()
