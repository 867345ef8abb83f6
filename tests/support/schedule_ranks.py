"""Ranks of a pipeline under every schedule; each compares its stages' gradients with a single-process reference.

A script, `schedule_ranks.py WORLD MEETING_POINT`: starts the ranks as forks of itself.
"""

from __future__ import annotations

import datetime
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.parallel import DistributedDataParallel

from leakscope.backward import install, stage_backward_input, stage_backward_weight

WIDTH, ROWS, MICROBATCHES = 8, 3, 8
LIMIT = datetime.timedelta(seconds=60)
PipelineStage._get_init_p2p_neighbors_ops = lambda _: []  # type: ignore[method-assign]  # it only opens channels of NCCL


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(torch.nn.functional.gelu(self.one(self.norm(x))))


def build(stages: int) -> list[nn.Module]:
    torch.manual_seed(7)
    return [Block().double() for _ in range(stages)]


def loss_of(out: Tensor, target: Tensor) -> Tensor:
    return (out - target).square().mean()


def reference(stages: int, x: Tensor, target: Tensor) -> list[nn.Module]:
    blocks = build(stages)
    losses = [
        loss_of(nn.Sequential(*blocks)(part), wanted)
        for part, wanted in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True)
    ]
    (sum(losses) / MICROBATCHES).backward()
    return blocks


def looped(rank: int, world: int) -> list[int]:
    return [rank, rank + world]


def vee(rank: int, world: int) -> list[int]:
    return [rank, 2 * world - 1 - rank]


SCHEDULES: dict[str, Callable[[int, int], list[int]]] = {
    "ScheduleGPipe": lambda rank, world: [rank],
    "Schedule1F1B": lambda rank, world: [rank],
    "ScheduleInterleaved1F1B": looped,
    "ScheduleLoopedBFS": looped,
    "ScheduleInterleavedZeroBubble": looped,
    "ScheduleZBVZeroBubble": vee,
}


def run_schedule(name: str, rank: int, world: int) -> None:
    placed = SCHEDULES[name](rank, world)
    count = world * len(placed)
    generator = torch.Generator().manual_seed(3)
    x, target = (torch.randn(ROWS * MICROBATCHES, WIDTH, generator=generator, dtype=torch.double) for _ in range(2))
    expected = reference(count, x, target)
    mine = build(count)
    stages = [PipelineStage(mine[index], index, count, torch.device("cpu")) for index in placed]
    schedule: Any = getattr(schedules, name)
    schedule = schedule(stages[0] if len(placed) == 1 else stages, MICROBATCHES, loss_fn=loss_of)
    for stage in stages:
        check_between_the_passes(stage)
    for _ in range(2):
        for index in placed:
            mine[index].zero_grad()
        schedule.step(*([x] if 0 in placed else []), **({"target": target} if count - 1 in placed else {}))
        for stage in stages:
            assert not stage.backward_state, "the weight pass took everything"
        for index in placed:
            for weight, other in zip(mine[index].parameters(), expected[index].parameters(), strict=True):
                torch.testing.assert_close(weight.grad, other.grad, rtol=1e-12, atol=1e-12)
    if "Zero" in name:
        parked = [
            info.buffer
            for stage in stages
            for infos in stage.args_recv_info.values()
            for info in infos
            if isinstance(getattr(info, "buffer", None), Tensor) and info.buffer.grad is not None
        ]
        assert not parked, "no received input keeps its gradient after the step"


def check_between_the_passes(stage: PipelineStage) -> None:
    """Nothing of a microbatch but its parameter groups waits on the stage for the weight pass."""
    run_weight_pass = stage.backward_weight_one_chunk

    def checked(chunk: int, *args: Any, **kwargs: Any) -> None:
        inputs, _, outputs, grads = stage.backward_state[chunk]
        assert stage.is_first or (inputs, outputs, grads) == ((), (), None)
        run_weight_pass(chunk, *args, **kwargs)

    stage.backward_weight_one_chunk = checked  # type: ignore[method-assign]


def run_data_parallel(rank: int, world: int) -> None:
    """The reducer of DistributedDataParallel sees the weights in the weight pass, and only there."""
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).double()
    inputs = [torch.randn(ROWS, WIDTH, dtype=torch.double) for _ in range(world)]
    losses = [model(x).square().sum() for x in inputs]
    expected = torch.autograd.grad(sum(losses) / world, list(model.parameters()))
    parallel = DistributedDataParallel(model)
    for _ in range(2):
        model.zero_grad()
        x = inputs[rank].clone().requires_grad_()
        loss = parallel(x).square().sum()
        _, groups = stage_backward_input([loss], None, [x], parallel.parameters())
        assert all(weight.grad is None for weight in model.parameters())
        stage_backward_weight(parallel.parameters(), groups)
        for weight, other in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(weight.grad, other, rtol=1e-12, atol=1e-12)


def run_rank(rank: int, world: int, meeting_point: str) -> None:
    from support.schedules import released

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=world, timeout=LIMIT)
    gc.disable()
    try:
        with install():
            for name in SCHEDULES:
                run_schedule(name, rank, world)
        if world == 2:
            run_data_parallel(rank, world)
        released.check_all(rank, world)
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    _world = int(sys.argv[1])
    mp.start_processes(run_rank, (_world, sys.argv[2]), nprocs=_world, start_method="fork")
