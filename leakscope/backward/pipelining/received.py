"""What was received: buffers are made when something is to come, and let go of when it is used.

torch keeps a buffer for each microbatch, made once, for as long as the stage is there (up to torch 2.14).
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from .boxing import Boxed


class _Emptied(NamedTuple):
    stand_in: torch.Tensor
    """On the meta device, with the size and strides of the buffer."""
    device: torch.device


_emptied: WeakKeyDictionary[Any, _Emptied] = WeakKeyDictionary()
"""Torch's descriptors whose buffer was released."""


def _is_empty(info: Any) -> bool:
    return info in _emptied and info.buffer is _emptied[info].stand_in


def _empty(info: Any) -> None:
    buffer = getattr(info, "buffer", None)
    if type(buffer) is not torch.Tensor or _is_empty(info):
        return
    info.buffer = torch.empty_strided(
        buffer.size(), buffer.stride(), dtype=buffer.dtype, device="meta", requires_grad=buffer.requires_grad
    )
    _emptied[info] = _Emptied(info.buffer, buffer.device)


def _fill(info: Any) -> None:
    if getattr(info, "buffer", None) is None or not _is_empty(info):
        return
    stand_in, device = _emptied.pop(info)
    info.buffer = torch.empty_strided(
        stand_in.size(), stand_in.stride(), dtype=stand_in.dtype, device=device, requires_grad=stand_in.requires_grad
    )


def put_back() -> None:
    """Give every descriptor a buffer again, as torch expects."""
    for info in list(_emptied):
        _fill(info)
    _emptied.clear()


def prepared(prepare: Any) -> Any:
    """Wrapper of `_prepare_forward_infra` and `_prepare_backward_infra`: releases the buffers they make."""

    def run(stage: Any, *args: Any, **kwargs: Any) -> Any:
        result = prepare(stage, *args, **kwargs)
        for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values()):
            for info in infos:
                _empty(info)
        return result

    return run


def receiving(get_ops: Any) -> Any:
    """Wrapper of `get_fwd_recv_ops` and `get_bwd_recv_ops`: creates the buffers to receive into."""
    received = "args_recv_info" if "fwd" in get_ops.__name__ else "grad_recv_info"

    def run(stage: Any, *args: Any, **kwargs: Any) -> Any:
        (microbatch,) = *args, *kwargs.values()
        for info in getattr(stage, received).get(microbatch, ()):
            _fill(info)
        return get_ops(stage, microbatch)

    return run


def taking_activations(retrieve: Any) -> Any:
    """Wrapper of `_retrieve_recv_activations`: from here on only the microbatch holds its inputs."""

    def run(stage: Any, microbatch: int) -> Any:
        activations = retrieve(stage, microbatch)
        for info in stage.args_recv_info[microbatch]:
            _empty(info)
        return activations

    return run


def taking_grads(retrieve: Any) -> Any:
    """Wrapper of `_retrieve_recv_grads`: from here on only the list holds the gradients, and backward empties it."""

    def run(stage: Any, microbatch: int) -> Any:
        grads = Boxed(retrieve(stage, microbatch))
        for info in stage.grad_recv_info[microbatch]:
            _empty(info)
        return grads

    return run


def handing_grads_back(set_local: Any) -> Any:
    """Wrapper of `set_local_bwd_input`: if no gradient is passed, torch fills the buffer with zeros."""

    def run(stage: Any, next_stage_bwd_outputs: Any, mb_index: int) -> Any:
        for info, grad in zip(stage.grad_recv_info[mb_index], next_stage_bwd_outputs, strict=False):
            if grad is None:
                _fill(info)
        return set_local(stage, next_stage_bwd_outputs, mb_index)

    return run
