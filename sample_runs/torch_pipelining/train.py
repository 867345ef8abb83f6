"""torch's own pipelining, trained under each of its schedules: what does the library keep longer than it is needed?

Nothing in this script leaks. What stays alive too long is held by `torch.distributed.pipelining` itself. Run it with

    torchrun --nproc-per-node 2 train.py --schedule 1f1b
    leakscope run --ranks 2 train.py --schedule 1f1b

Two or four ranks; `interleaved`, `zero-bubble` and `zbv` put two stages on each rank, the others one. A stage is a
small network whose boundary tensor is 128 KiB for a microbatch, and every step has eight microbatches.

* `--hook`: the stages register a hook on the activation they are given, at each forward, as one does on a fresh tensor.
  torch hands out the same receive buffers every step, so the hooks pile up on them; each keeps a 16 KiB scale.
* `--input-grad`: the pipeline's own input requires grad.
* `--drop-outputs`: `schedule.step(..., return_outputs=False)`.
* `--count`: print, after every step, how many tensors the stages have in which attribute, how often the hooks ran, and how
  many of the outputs that were sent were alive when the last forward ended; it is read without leakscope.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.multiprocessing.reductions import StorageWeakRef

MICROBATCHES = 8
ROWS, WIDTH, INNER = 128, 256, 512
"""A boundary tensor is 128 x 256 float32: 128 KiB."""

SCHEDULES: dict[str, Callable[..., Any]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


class Block(nn.Module):
    """One stage: its output is not saved for its backward, so nothing needs it once it has been sent."""

    def __init__(self, hook: bool) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)
        self.hook = hook
        self.hook_calls = 0
        self.outputs: list[StorageWeakRef] = []
        self.most_alive = 0

    def forward(self, hidden: Tensor) -> Tensor:
        if self.hook and hidden.requires_grad:
            scale = torch.full((64, 64), 1.0)

            def scaled(grad: Tensor) -> Tensor:
                self.hook_calls += 1
                return grad * scale.mean()

            hidden.register_hook(scaled)
        return self.down(torch.nn.functional.gelu(self.up(hidden)))

    def count(self, output: Tensor) -> None:
        self.outputs.append(StorageWeakRef(output.untyped_storage()))
        self.most_alive = max(self.most_alive, sum(not reference.expired() for reference in self.outputs))


def placed(schedule: str, rank: int, world: int) -> list[int]:
    """The stages of one rank: one; two in a loop; or two in a V, the last beside the first."""
    if schedule in ("gpipe", "1f1b"):
        return [rank]
    return [rank, 2 * world - 1 - rank] if schedule == "zbv" else [rank, rank + world]


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def build(schedule: str, hook: bool, count: bool) -> tuple[Any, list[PipelineStage]]:
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = placed(schedule, rank, world)
    torch.manual_seed(7)
    blocks = [Block(hook) for _ in range(world * len(mine))]
    if count:
        for index in mine:
            blocks[index].register_forward_hook(lambda block, _, output: block.count(output))
    stages = [PipelineStage(blocks[index], index, len(blocks), torch.device("cpu")) for index in mine]
    return SCHEDULES[schedule](stages[0] if len(stages) == 1 else stages, MICROBATCHES, loss_fn=loss_of), stages


def train(options: argparse.Namespace) -> Iterator[str]:
    schedule, stages = build(options.schedule, options.hook, options.count)
    optimizer = torch.optim.AdamW([weight for stage in stages for weight in stage.submod.parameters()], lr=1e-3)
    for step in range(1, options.steps + 1):
        losses = run_step(schedule, stages, step, options)
        optimizer.step()
        if losses:
            yield f"step {step}: loss {torch.stack(losses).mean().item():.6f}"
        if options.count:
            yield f"step {step}: {', '.join(counted(stages)) or 'nothing held'}"
        optimizer.zero_grad()


def run_step(schedule: Any, stages: list[PipelineStage], step: int, options: argparse.Namespace) -> list[Tensor]:
    """One step of the schedule; only the first stage is given input and only the last one a target."""
    generator = torch.Generator().manual_seed(step)
    shape = (MICROBATCHES * ROWS, WIDTH)
    given: list[Tensor] = []
    if any(stage.is_first for stage in stages):
        given.append(torch.randn(shape, generator=generator).requires_grad_(options.input_grad))
    losses: list[Tensor] = []
    more: dict[str, Any] = {"return_outputs": False} if options.drop_outputs else {}
    if any(stage.is_last for stage in stages):
        more |= {"target": torch.randn(shape, generator=generator), "losses": losses}
    schedule.step(*given, **more)
    return losses


def counted(stages: list[PipelineStage]) -> Iterator[str]:
    """What the stages keep after a step, by attribute: tensors and KiB; and what their blocks counted in it."""
    for stage in stages:
        infos = {"args_recv_info": stage.args_recv_info, "grad_recv_info": stage.grad_recv_info}
        parts: dict[str, list[Tensor]] = {
            f"{name}.buffer": [info.buffer for row in rows.values() for info in row if info.buffer is not None]
            for name, rows in infos.items()
        }
        parts["args_recv_info.buffer.grad"] = [b.grad for b in parts["args_recv_info.buffer"] if b.grad is not None]
        parts["fwd_cache"] = [t for outputs, values in microbatches(stage) for t in (*outputs, *values) if t is not None]
        parts["bwd_cache"] = [t for grads in stage.bwd_cache.values() for t in grads if t is not None]
        parts["output_chunks"] = list(stage.output_chunks)
        for name, tensors in parts.items():
            if tensors:
                size = sum(t.untyped_storage().nbytes() for t in tensors)
                yield f"stage {stage.stage_index} {name} {len(tensors)} ({size // 1024} KiB)"
        block = stage.submod
        if block.hook_calls:
            yield f"stage {stage.stage_index} hooks ran {block.hook_calls} times"
        yield f"stage {stage.stage_index} most outputs alive {block.most_alive}"
        block.hook_calls, block.most_alive = 0, 0
        block.outputs.clear()


def microbatches(stage: Any) -> list[tuple[Any, Any]]:
    """(outputs, inputs) that a stage keeps of each microbatch until its backward; torch 2.15 calls them otherwise."""
    if hasattr(stage, "fwd_cache"):
        return list(stage.fwd_cache.values())
    return [(state.live_outputs, state.input_values) for state in stage._forward_chunk_states.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description="torch's own pipelining under its schedules.")
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b", help="which schedule (1f1b)")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps (12)")
    parser.add_argument("--hook", action="store_true", help="register a hook on each activation that is received")
    parser.add_argument("--input-grad", action="store_true", help="the pipeline's input requires grad")
    parser.add_argument("--drop-outputs", action="store_true", help="do not ask the schedule for its outputs")
    parser.add_argument("--count", action="store_true", help="print what the stages hold after each step")
    arguments = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        parser.error("start it on two ranks or more: torchrun --nproc-per-node 2 train.py")
    torch.set_num_threads(1)
    gc.disable()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for line in train(arguments):
        sys.stdout.write(f"rank {rank}: {line}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
