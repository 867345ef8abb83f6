"""The backward of a stage in two passes: gradients of inputs first, of weights later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .full import failed, release_frames
from .input_pass import InputGrads, ParamGroup, input_pass
from .weight_pass import weight_pass


def stage_backward_input(
    stage_outputs_or_loss: Any,
    output_grads: Any,
    input_values: Any,
    weights: Iterable[torch.Tensor],
    *,
    park_grad: bool = True,
    boxed: bool = False,
) -> tuple[InputGrads, list[ParamGroup]]:
    """The first pass: gradients of the inputs, and what the weight pass needs.

    A drop-in for ``torch.distributed.pipelining._backward.stage_backward_input``. Activations that only the inputs'
    gradients needed can be freed in between when the forward ran under `droppable_saves`.

    >>> import torch
    >>> from leakscope.backward import droppable_saves, stage_backward_input, stage_backward_weight
    >>> stage, x = torch.nn.Linear(4, 8), torch.randn(2, 4, requires_grad=True)
    >>> with droppable_saves():
    ...     outputs = [stage(x).tanh()]
    >>> weights = list(stage.parameters())
    >>> (grad,), groups = stage_backward_input(outputs, [torch.ones(2, 8)], [x], weights, park_grad=False, boxed=True)
    >>> grad.shape, stage.weight.grad
    (torch.Size([2, 4]), None)
    >>> before = stage_backward_weight(weights, groups, boxed=True)
    >>> before, stage.weight.grad.shape, groups
    ((None, None), torch.Size([8, 4]), [])

    Args:
        stage_outputs_or_loss: tensors or gradient edges, nested as in `stage_backward`.
        output_grads: their gradients in the same nesting; None altogether: ones for every output, as torch has it.
        input_values: the stage's inputs in order; other values than tensors are allowed.
        weights: the parameters whose gradients `stage_backward_weight` will compute.
        park_grad: also accumulate each gradient into the input's ``.grad``, as torch does. The returned tensor is
            then the one in ``.grad``; a later call adds out of place and leaves it alone. False keeps ``.grad`` as
            found, so that nothing outlives the caller's use of the returned gradient.
        boxed: take ownership of the lists handed in and empty them before the engine runs.

    Returns:
        One gradient or None per input value, and the parameter groups, last layer first: dicts with the keys "params"
        (AccumulateGrad nodes), "intermediates" (grad nodes) and "grads" (one tuple per intermediate).

    Raises:
        RuntimeError: "Failed to run stage backward input: ..." from the original error; ``.grad`` is as found, and no
            hook is left. Roots and gradients are checked before anything runs.

    Outputs that are no views are detached in place, as in torch, so that the graph above the intermediates is freed.
    A stage with a reentrant checkpoint cannot be split (its weights are no part of the graph): its whole backward runs
    here, and the weight pass finds nothing left to do.

    """
    try:
        return input_pass(stage_outputs_or_loss, output_grads, input_values, weights, park_grad, boxed)
    except Exception as error:
        raise failed("stage backward input", error, stage_outputs_or_loss, output_grads, input_values) from error
    except BaseException as error:
        release_frames(error)
        raise
    finally:
        del stage_outputs_or_loss, output_grads, input_values, weights


def stage_backward_weight(
    weights: Iterable[torch.Tensor],
    param_groups: list[ParamGroup],
    retain_graph: bool = False,
    *,
    boxed: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """The second pass: accumulate the weights' gradients, group by group from the output side.

    A drop-in for ``torch.distributed.pipelining._backward.stage_backward_weight``. Each group's "intermediates" and
    "grads" are taken out of its dict before its engine call, so what it alone kept alive is free when the call
    returns. Gradients go through the parameters' AccumulateGrad nodes: hooks of parameters, post-accumulate hooks and
    DistributedDataParallel's reducer see them here.

    >>> import torch
    >>> from leakscope.backward import stage_backward_input, stage_backward_weight
    >>> stage, x = torch.nn.Linear(4, 1), torch.randn(2, 4, requires_grad=True)
    >>> weights = list(stage.parameters())
    >>> grads, groups = stage_backward_input([stage(x).sum()], None, [x], weights)
    >>> before = stage_backward_weight(weights, groups)
    >>> before, stage.weight.grad.shape
    ((None, None), torch.Size([1, 4]))

    Args:
        weights: the parameters to fill; a parameter of a group that is not among them is left alone.
        param_groups: what `stage_backward_input` returned.
        retain_graph: keep the graph, as in ``torch.autograd.backward``.
        boxed: also empty the list `param_groups`.

    Returns:
        Each weight's ``.grad`` as it was before the call.

    Raises:
        KeyError: "grads", for a group that was used up by an earlier call.

    """
    try:
        return weight_pass(list(weights), param_groups, retain_graph, boxed)
    except BaseException as error:
        release_frames(error)
        raise
    finally:
        del weights, param_groups
