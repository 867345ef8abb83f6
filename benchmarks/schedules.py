"""The peak tensor memory of torch's pipeline schedules: plain, installed, with released outputs."""

from __future__ import annotations

import datetime
import gc
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from leakscope.backward import install
from leakscope.profiler.block import TensorPeak

RANKS, MICROBATCHES, STEPS = 4, 8, 2
ROUNDS = int(os.environ.get("LEAKSCOPE_BENCHMARK_ROUNDS", "3"))
LIMIT = datetime.timedelta(seconds=300)
WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "torch": nullcontext,
    "install()": install,
    "release_outputs=True": partial(install, release_outputs=True),
}


def linears(width: int) -> nn.Module:
    """Two layers, small beside what goes in and out."""
    return nn.Sequential(*(layer for _ in range(2) for layer in (nn.Linear(width, width), nn.GELU())))


def encoder(width: int) -> nn.Module:
    """A layer of a transformer, large beside what goes in and out."""
    return nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)


MODELS: dict[str, tuple[Callable[[int], nn.Module], int, tuple[int, ...]]] = {
    "2 x Linear+GELU a stage": (linears, 256, (128,)),
    "an encoder layer a stage": (encoder, 64, (2, 32)),
}
"""Module of a stage, width, and the shape of a microbatch before its width."""


def one_a_rank(rank: int, _ranks: int) -> list[int]:
    return [rank]


def looped(rank: int, ranks: int) -> list[int]:
    return [rank, rank + ranks]


def vee(rank: int, ranks: int) -> list[int]:
    return [rank, 2 * ranks - 1 - rank]


SCHEDULES: dict[str, tuple[str, Callable[[int, int], list[int]]]] = {
    "1F1B": ("Schedule1F1B", one_a_rank),
    "interleaved 1F1B": ("ScheduleInterleaved1F1B", looped),
    "DualPipeV": ("ScheduleDualPipeV", vee),
    "ZBV": ("ScheduleZBVZeroBubble", vee),
}


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def peak(model: str, schedule: str, way: str, rank: int, ranks: int) -> tuple[int, list[Tensor]]:
    """Bytes at the peak of a few steps, and the gradients."""
    make, width, shape = MODELS[model]
    kind, place = SCHEDULES[schedule]
    placed = place(rank, ranks)
    count = ranks * len(placed)
    torch.manual_seed(0)
    modules = [make(width) for _ in range(count)]
    weights = [weight for index in placed for weight in modules[index].parameters()]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    x = torch.randn(MICROBATCHES * shape[0], *shape[1:], width)
    inputs = [x] if 0 in placed else []
    target = {"target": torch.zeros_like(x)} if count - 1 in placed else {}
    with WAYS[way](), TensorPeak("1 TiB") as watched:
        stages = [PipelineStage(modules[index], index, count, torch.device("cpu")) for index in placed]
        runs = getattr(schedules, kind)(stages[0] if len(placed) == 1 else stages, MICROBATCHES, loss_fn=loss_of)
        for _ in range(STEPS):
            for weight in weights:
                if weight.grad is not None:
                    weight.grad.zero_()
            runs.step(*inputs, **target, return_outputs=False)
    if watched.rise is None:
        raise SystemExit(watched.why)
    return watched.rise.bytes, [weight.grad.clone() for weight in weights if weight.grad is not None]


def run_rank(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    meet = Path(folder, "meet").as_uri()
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks, timeout=LIMIT)
    gc.disable()
    for model in MODELS:
        for schedule in SCHEDULES:
            seen: dict[str, list[int]] = {way: [] for way in WAYS}
            for _ in range(ROUNDS):
                first: list[Tensor] | None = None
                for way in WAYS:
                    height, grads = peak(model, schedule, way, rank, ranks)
                    gc.collect()
                    seen[way].append(height)
                    first = first or grads
                    assert all(map(torch.equal, first, grads)), f"{schedule}, {way}: other gradients than torch's"
            tell(model, schedule, {way: statistics.median(heights) for way, heights in seen.items()}, rank, ranks)
    dist.barrier()
    dist.destroy_process_group()


def tell(model: str, schedule: str, mine: dict[str, float], rank: int, ranks: int) -> None:
    """A row of the table, on rank 0: each way's highest rank beside torch's highest, and then rank by rank."""
    all_ranks: list[Any] = [None] * ranks
    dist.all_gather_object(all_ranks, mine)
    if rank:
        return
    if schedule == next(iter(SCHEDULES)):
        print(f"\n{model}: peak of the highest rank (in brackets, each rank) beside torch's\n")
    highest = {way: max(seen[way] for seen in all_ranks) for way in WAYS}
    cells = [f"{schedule:17}", f"torch {highest['torch'] / 2**20:6.2f} MiB"]
    for way in list(WAYS)[1:]:
        each = " ".join(f"{seen[way] / seen['torch']:.2f}" for seen in all_ranks)
        cells.append(f"{way} {highest[way] / highest['torch']:.2f} ({each})")
    print("  ".join(cells), flush=True)


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else RANKS
    print(f"torch {torch.__version__}, {ranks} ranks, {MICROBATCHES} microbatches, {ROUNDS} rounds")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (ranks, folder), nprocs=ranks)


if __name__ == "__main__":
    main()
