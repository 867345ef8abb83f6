"""One rank of a pipeline that releases its outputs, beside the same pipeline as torch runs it by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.multiprocessing.reductions import StorageWeakRef

from leakscope.backward import install
from support.schedule_ranks import MICROBATCHES, ROWS, SCHEDULES, WIDTH, Block, build, loss_of, vee

RELEASING = partial(install, release_outputs=True)
HERE = hasattr(schedules, "_wait_batch_p2p")
"""Whether the schedules of this torch can release outputs."""
BY_ITSELF = hasattr(PipelineStage, "release_fwd_send_outputs")
"""Whether the stages of this torch do so by themselves."""
EVERY = SCHEDULES | {"ScheduleDualPipeV": vee}
ODD_ONES = ("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleDualPipeV")


class Odd(nn.Module):
    """A stage whose outputs are a view, a tensor of its inputs and one that needs no gradient."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.block, self.last = Block().double(), last

    def forward(self, x: Tensor, same: Tensor | None = None, sign: Tensor | None = None) -> Any:
        made = self.block(x)
        if same is None or sign is None:
            return made.unsqueeze(0).squeeze(0), made.sin(), (made > 0).double()
        return made * same + sign if self.last else (made.unsqueeze(0).squeeze(0), same, sign)


def odd(stages: int) -> list[nn.Module]:
    torch.manual_seed(7)
    return [Odd(number == stages - 1) for number in range(stages)]


class Pipeline:
    """What one rank has of a pipeline."""

    def __init__(self, name: str, rank: int, world: int, build: Callable[[int], list[nn.Module]] = build) -> None:
        placed = EVERY[name](rank, world)
        count = world * len(placed)
        self.vee = EVERY[name] is vee
        blocks = build(count)
        self.blocks = {index: blocks[index] for index in placed}
        self.stages = [PipelineStage(blocks[index], index, count, torch.device("cpu")) for index in placed]
        self.sent = {index for index in placed if index + 1 < count and index + 1 not in placed}
        """The stages whose outputs go to another rank."""
        generator = torch.Generator().manual_seed(3)
        x, target = (torch.randn(ROWS * MICROBATCHES, WIDTH, generator=generator, dtype=torch.double) for _ in range(2))
        self.inputs = [x] if 0 in placed else []
        self.last = count - 1 in placed
        self.target = {"target": target} if self.last else {}
        self.schedule: Any = getattr(schedules, name)(
            self.stages[0] if len(placed) == 1 else self.stages, MICROBATCHES, loss_fn=loss_of
        )

    def step(self) -> list[Tensor | None]:
        """The gradients of a step, and on the last stage the outputs and the losses."""
        for block in self.blocks.values():
            block.zero_grad()
        losses: list[Tensor] = []
        output = self.schedule.step(*self.inputs, **self.target, losses=losses)
        # Cloned, because an evaluation of torch's divides what stands in `.grad` once more.
        grads = [weight.grad.clone() for block in self.blocks.values() for weight in block.parameters()]
        return [*grads, output, *losses]

    def evaluate(self) -> Tensor | None:
        if self.vee:  # torch cannot evaluate where stages hand over on one rank
            return None
        with torch.no_grad():
            output: Tensor | None = self.schedule.eval(*self.inputs, **self.target)
        return output

    def buffers(self) -> list[Tensor]:
        """What the stages have to receive into."""
        return [
            info.buffer
            for stage in self.stages
            for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
            for info in infos
            if isinstance(getattr(info, "buffer", None), Tensor)
        ]

    @contextmanager
    def watched(self) -> Iterator[dict[tuple[int, int], bool]]:
        """By stage and microbatch of what is sent: whether the output was dead when its own backward began."""
        made: dict[int, list[StorageWeakRef]] = {index: [] for index in self.sent}
        dead: dict[tuple[int, int], bool] = {}

        def note(index: int, _module: Any, _args: Any, output: Tensor) -> None:
            made[index].append(StorageWeakRef(output.untyped_storage()))

        def inspect_stage(stage: Any, run: Any, microbatch: int) -> Any:
            if stage.stage_index in self.sent:
                dead[stage.stage_index, microbatch] = made[stage.stage_index][microbatch].expired()
            return run(microbatch)

        handles = [self.blocks[index].register_forward_hook(partial(note, index)) for index in self.sent]
        for stage in self.stages:
            stage._retrieve_recv_grads = partial(inspect_stage, stage, stage._retrieve_recv_grads)
        try:
            yield dead
        finally:
            for handle in handles:
                handle.remove()
            for stage in self.stages:
                del stage._retrieve_recv_grads


def same(mine: list[Tensor | None], other: list[Tensor | None]) -> bool:
    """To the bit, and nothing missing."""
    return len(mine) == len(other) and all(
        one is two or (one is not None and two is not None and torch.equal(one, two))
        for one, two in zip(mine, other, strict=True)
    )


def check_schedule(name: str, rank: int, world: int) -> None:
    """The same gradients, losses and outputs as torch's; a sent output is dead when its backward begins."""
    alone = Pipeline(name, rank, world)
    expected, evaluated = alone.step(), alone.evaluate()
    alone.step()  # torch makes its buffers anew for the step after an evaluation
    with alone.watched() as dead:
        alone.step()
    assert BY_ITSELF or not any(dead.values()), "torch keeps its outputs until their backward"
    mine = Pipeline(name, rank, world)
    with RELEASING():
        assert same(mine.step(), expected), name
        with mine.watched() as dead:
            assert same(mine.step(), expected), name
        assert len(dead) == len(mine.sent) * MICROBATCHES
        alive = [key for key, is_dead in dead.items() if not is_dead]
        assert not alive, f"{name}: (stage, microbatch) of outputs that were sent and live on: {alive}"
        assert BY_ITSELF or all(buffer.is_meta for buffer in mine.buffers()), "nothing received stays"
        assert same([mine.evaluate()], [evaluated])
        assert same(mine.step(), expected), f"{name} after an evaluation"
    assert not any(buffer.is_meta for buffer in mine.buffers()), "torch finds its buffers again"
    assert same(mine.step(), expected), f"{name} with torch's own again"


def check_odd_outputs(name: str, rank: int, world: int) -> None:
    """Views, outputs that are inputs and outputs without a gradient, also handed over on one rank."""
    with install() if EVERY[name] is vee else nullcontext():  # torch cannot split a backward that starts from a view
        expected = Pipeline(name, rank, world, odd).step()
    mine = Pipeline(name, rank, world, odd)
    with RELEASING():
        for _ in range(2):
            assert same(mine.step(), expected), name


def check_failure(rank: int, world: int) -> None:
    """After a step that failed on both ranks, the next one is as ever."""
    mine = Pipeline("Schedule1F1B", rank, world)
    with RELEASING():
        expected = mine.step()
        (block,) = mine.blocks.values()
        calls = iter(range(MICROBATCHES))

        def fail(*_: Any) -> None:
            if next(calls) == 2 - rank:
                raise ValueError("on purpose")

        handle = block.register_forward_pre_hook(fail)
        try:
            mine.step()
        except RuntimeError as error:
            assert isinstance(error.__cause__, ValueError)
        else:
            raise AssertionError("the step was to fail")
        handle.remove()
        del mine.schedule._internal_losses[:]
        assert same(mine.step(), expected)


def check_all(rank: int, world: int) -> None:
    """Everything about released outputs that can be asked of this torch."""
    if not HERE:
        return
    for name in EVERY:
        check_schedule(name, rank, world)
    if world == 2:
        for name in filter(EVERY.__contains__, ODD_ONES):
            check_odd_outputs(name, rank, world)
        check_failure(rank, world)
