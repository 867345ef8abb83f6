"""What was sent: a microbatch keeps the edges of its outputs, and what is under way is let go of when it is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel

from ..edges import output_edges
from .boxing import Boxed
from .order import Act, Known, sends_over


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


def read_by_nobody(stage: Any) -> bool:
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
