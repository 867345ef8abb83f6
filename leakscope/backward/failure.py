"""What does a failed backward leave behind? Nothing: the error keeps its lines and lets go of every frame's locals."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from .edges import flatten


def release_frames(error: BaseException) -> None:
    """Empty the finished frames that an exception and its causes hold, so that it pins no tensor.

    File names and line numbers stay readable. Frames that still run (the caller's) are left alone.
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
    """The error torch's contract asks for ("Failed to run stage backward"), to be raised from the original.

    Raise it where it is made: a frame that keeps its own error in a local closes a cycle through the error's traceback,
    and an error that carries a tensor keeps that tensor in the cycle.
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
