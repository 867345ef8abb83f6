"""The backward of a stage whose outputs and gradients come in lists that belong to it alone."""

from __future__ import annotations

from typing import Any

from ..full import stage_backward
from ..split import stage_backward_input


class Boxed(list[Any]):
    """A list that is not read after the backward that receives it, which may therefore empty it."""


def boxed_backward(stage_output: Any, output_grads: Any, input_values: Any, *args: Any, **kwargs: Any) -> Any:
    """`stage_backward`, boxed if outputs and gradients are."""
    boxed = isinstance(stage_output, Boxed) and isinstance(output_grads, Boxed)
    return stage_backward(stage_output, output_grads, input_values, *args, boxed=boxed, **kwargs)


def boxed_backward_input(stage_output: Any, output_grads: Any, input_values: Any, weights: Any) -> Any:
    """`stage_backward_input`, boxed if outputs and gradients are; no input keeps its gradient."""
    boxed = isinstance(stage_output, Boxed) and isinstance(output_grads, Boxed)
    return stage_backward_input(stage_output, output_grads, input_values, weights, park_grad=False, boxed=boxed)
