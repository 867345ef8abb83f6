"""What has to be wrapped for the outputs of a stage to be released in the schedule, and whether this torch has it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import received, sent
from .boxing import boxed_backward, boxed_backward_input

Wrapper = Callable[[Any], Any]


def computing_forward(forward: Any) -> Any:
    """Wrapper of `forward_one_chunk`: does not keep what is not read any more."""

    def run(stage: Any, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        sent.finish_sends(stage, "FORWARD", fwd_chunk_id)
        output = forward(stage, fwd_chunk_id, *args, **kwargs)
        if not stage.has_backward:
            stage.fwd_cache[fwd_chunk_id] = (stage.fwd_cache[fwd_chunk_id][0], [])
        return None if sent.read_by_nobody(stage) else output

    return run


def computing_backward(backward: Any) -> Any:
    """Wrapper of `backward_one_chunk`."""

    def run(stage: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        sent.finish_sends(stage, "BACKWARD", bwd_chunk_id)
        return backward(stage, bwd_chunk_id, *args, **kwargs)

    return run


_STAGE: dict[str, Wrapper] = {
    "forward_one_chunk": computing_forward,
    "backward_one_chunk": computing_backward,
    "get_fwd_send_ops": sent.sending,
    "get_bwd_send_ops": sent.sending,
    "get_fwd_recv_ops": received.receiving,
    "get_bwd_recv_ops": received.receiving,
    "set_local_fwd_input": sent.handing_over,
    "set_local_bwd_input": received.handing_grads_back,
    "_retrieve_recv_activations": received.taking_activations,
    "_retrieve_recv_grads": received.taking_grads,
    "_prepare_forward_infra": received.prepared,
    "_prepare_backward_infra": received.prepared,
}
"""Method of a stage, mapped to its wrapper."""


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and new value of everything that is replaced; empty if torch's stages release outputs themselves.

    Raises RuntimeError if this torch lacks what is to be replaced.
    """
    from torch.distributed.pipelining import schedules, stage

    base = stage._PipelineStageBase
    if hasattr(base, "release_fwd_send_outputs"):
        return
    of_one = functools.partial(sent.stepping, begin=sent.step_of_one)
    of_several = functools.partial(sent.stepping, begin=sent.step_of_several)
    wrapped: list[tuple[Any, str, Wrapper]] = [
        (schedules, "_batch_p2p", sent.starting),
        (schedules, "_wait_batch_p2p", sent.waiting),
        (schedules.ScheduleGPipe, "_step_microbatches", of_one),
        (schedules.Schedule1F1B, "_step_microbatches", of_one),
        (schedules._PipelineScheduleRuntime, "_step_microbatches", of_several),
    ]
    kinds: list[Any] = [base, stage._PipelineStage, stage.PipelineStage]
    for name, around in _STAGE.items():
        owners = [kind for kind in kinds if name in vars(kind)]
        wrapped += [(owner, name, around) for owner in owners or [base]]
    missing = [name for owner, name, _ in wrapped if not hasattr(owner, name)]
    if missing:
        raise RuntimeError(
            f"the schedules of torch {torch.__version__} lack {missing[0]}, so no outputs can be released in them: "
            "call install() without release_outputs"
        )
    for owner, name, around in wrapped:
        found = getattr(owner, name)
        yield owner, name, functools.wraps(found)(around(found))
    yield stage, "stage_backward", boxed_backward
    yield stage, "stage_backward_input", boxed_backward_input
