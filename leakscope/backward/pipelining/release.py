"""Wrappers of torch's schedules that release what was sent, received or handed back as soon as it is not needed.

A microbatch keeps the edges of its outputs instead of the outputs. torch makes one receive buffer per microbatch and
keeps it as long as the stage exists (up to torch 2.14); here a buffer exists from the receive to its use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel

from ..edges import output_edges
from ..full import stage_backward
from ..split import stage_backward_input
from .order import Act, Known, sends_over


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


@dataclass
class _Step:
    """One step of a schedule on this rank."""

    stages: dict[int, Any]
    over: Callable[[Act], list[Act]]
    """The sends that can be waited for when a computation starts."""
    alone: bool
    """Whether the schedule has one stage per rank, and so reads only the last stage's output."""
    works: dict[Act, Any] = field(default_factory=dict)
    """What torch waits for at the end of the step, by send; lists that are emptied when it has finished."""


_steps: WeakKeyDictionary[Any, _Step] = WeakKeyDictionary()
"""By stage, during a step."""
_orders: WeakKeyDictionary[Any, tuple[Any, Known]] = WeakKeyDictionary()
"""By schedule: its order of actions, and what was derived from it."""


def release_outputs(stage: Any, microbatch: int) -> None:
    """Replace the outputs of a microbatch, which were sent or passed on, by their edges.

    Not replaced: outputs of the last stage, which belong to the loss and the user; of DistributedDataParallel, whose
    reducer searches them for unused parameters; of a stage with its own weight pass; and of other types.
    """
    if stage.is_last or microbatch not in stage.fwd_cache:
        return
    outputs, inputs = stage.fwd_cache[microbatch]
    if not stage.has_backward:
        stage.fwd_cache[microbatch] = ((None,) * len(outputs), [])
        return
    needed = stage.dw_builder or isinstance(stage.submod, DistributedDataParallel)
    if not needed and all(type(output) is torch.Tensor for output in outputs):
        stage.fwd_cache[microbatch] = (Boxed(output_edges(list(outputs))), Boxed(inputs))


def sending(get_ops: Any) -> Any:
    """Wrapper of `get_fwd_send_ops` and `get_bwd_send_ops`: records the microbatch of what is sent."""
    kind = "SEND_F" if "fwd" in get_ops.__name__ else "SEND_B"

    def run(stage: Any, *args: Any, **kwargs: Any) -> Any:
        (microbatch,) = *args, *kwargs.values()
        ops = get_ops(stage, microbatch)
        for op in ops:
            op.sent = (stage, Act(kind, stage.stage_index, microbatch))
        return ops

    return run


def handing_over(set_local: Any) -> Any:
    """Wrapper of `set_local_fwd_input`, with which two stages on one rank avoid a send."""

    def run(stage: Any, prev_stage_outputs: Any, mb_index: int) -> Any:
        result = set_local(stage, prev_stage_outputs, mb_index)
        step = _steps.get(stage)
        if step is not None and stage.stage_index - 1 in step.stages:
            release_outputs(step.stages[stage.stage_index - 1], mb_index)
        return result

    return run


def starting(batch: Any) -> Any:
    """Wrapper of `_batch_p2p`: once started, an operation's work holds its tensor as long as it needs it."""

    def run(ops: Any, *args: Any, **kwargs: Any) -> Any:
        works = batch(ops, *args, **kwargs)
        for op in ops:
            op.tensor = torch.empty(0, device="meta")
            if not hasattr(op, "sent"):
                continue
            stage, act = op.sent
            if act.kind == "SEND_F":
                release_outputs(stage, act.microbatch)
            if stage in _steps:
                _steps[stage].works[act] = works
        return works

    return run


def waiting(wait: Any) -> Any:
    """Wrapper of `_wait_batch_p2p`: releases what was waited for."""

    def run(works: Any) -> None:
        wait(works)
        works.clear()

    return run


def finish_sends(stage: Any, kind: str, microbatch: int) -> None:
    """Release the sends that have finished when this computation starts."""
    step = _steps.get(stage)
    if step is None:
        return
    for act in step.over(Act(kind, stage.stage_index, microbatch)):
        works = step.works.pop(act, [])
        for work in works:
            work.wait()
        works.clear()


def is_unread(stage: Any) -> bool:
    """Whether this stage's forward result is not read."""
    step = _steps.get(stage)
    return step is not None and step.alone and not stage.is_last


def stepping(run_step: Any, begin: Callable[[Any], _Step]) -> Any:
    """Wrapper of a schedule's `_step_microbatches`."""

    def run(schedule: Any, *args: Any, **kwargs: Any) -> Any:
        step = begin(schedule)
        try:
            _steps.update(dict.fromkeys(step.stages.values(), step))
            return run_step(schedule, *args, **kwargs)
        finally:
            for stage in step.stages.values():
                _steps.pop(stage, None)

    return run


def step_of_one(schedule: Any) -> _Step:
    """A step of 1F1B, which waits for its sends itself, or of GPipe, which does so after the last microbatch.

    The last send but one has finished or is about to: 1F1B waits for each after the following forward.
    """

    def over(act: Act) -> list[Act]:
        return [Act("SEND_F" if act.kind == "FORWARD" else "SEND_B", act.stage, act.microbatch - 2)]

    return _Step({schedule._stage.stage_index: schedule._stage}, over, alone=True)


def step_of_several(schedule: Any) -> _Step:
    """A step of a schedule that runs a list of actions, and waits for its sends at its end."""
    order = schedule.pipeline_order_with_comms
    if schedule not in _orders or _orders[schedule][0] is not order:
        rank_of = schedule.stage_index_to_group_rank.__getitem__
        _orders[schedule] = (order, sends_over(order, schedule.rank, rank_of))
    known = _orders[schedule][1]
    return _Step({stage.stage_index: stage for stage in schedule._stages}, lambda act: known.get(act, []), alone=False)


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
    info.buffer = _buffer_like(buffer, torch.device("meta"))
    _emptied[info] = _Emptied(info.buffer, buffer.device)


def _fill(info: Any) -> None:
    if getattr(info, "buffer", None) is None or not _is_empty(info):
        return
    stand_in, device = _emptied.pop(info)
    info.buffer = _buffer_like(stand_in, device)


def _buffer_like(other: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(
        other.size(), other.stride(), dtype=other.dtype, device=device, requires_grad=other.requires_grad
    )


def restore_buffers() -> None:
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


def computing_forward(forward: Any) -> Any:
    """Wrapper of `forward_one_chunk`: does not keep what is not read any more."""

    def run(stage: Any, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        finish_sends(stage, "FORWARD", fwd_chunk_id)
        output = forward(stage, fwd_chunk_id, *args, **kwargs)
        if not stage.has_backward:
            stage.fwd_cache[fwd_chunk_id] = (stage.fwd_cache[fwd_chunk_id][0], [])
        return None if is_unread(stage) else output

    return run


def computing_backward(backward: Any) -> Any:
    """Wrapper of `backward_one_chunk`."""

    def run(stage: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        finish_sends(stage, "BACKWARD", bwd_chunk_id)
        return backward(stage, bwd_chunk_id, *args, **kwargs)

    return run


Wrapper = Callable[[Any], Any]
_STAGE: dict[str, Wrapper] = {
    "forward_one_chunk": computing_forward,
    "backward_one_chunk": computing_backward,
    "get_fwd_send_ops": sending,
    "get_bwd_send_ops": sending,
    "get_fwd_recv_ops": receiving,
    "get_bwd_recv_ops": receiving,
    "set_local_fwd_input": handing_over,
    "set_local_bwd_input": handing_grads_back,
    "_retrieve_recv_activations": taking_activations,
    "_retrieve_recv_grads": taking_grads,
    "_prepare_forward_infra": prepared,
    "_prepare_backward_infra": prepared,
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
    of_one = functools.partial(stepping, begin=step_of_one)
    of_several = functools.partial(stepping, begin=step_of_several)
    wrapped: list[tuple[Any, str, Wrapper]] = [
        (schedules, "_batch_p2p", starting),
        (schedules, "_wait_batch_p2p", waiting),
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
