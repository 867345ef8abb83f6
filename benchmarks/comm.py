"""The cost of following communication operations, in microseconds and as a share of a step."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from leakscope.comm.monitor import CommMonitor
from leakscope.comm.operations import FULL_STEPS
from leakscope.process.patches import Patches
from leakscope.run.writer import RankFolder

PIPELINE = Path(__file__).resolve().parent.parent / "sample_runs" / "p2p_pipeline" / "train.py"
OPERATIONS_A_STEP = 16
"""Of each rank of the sample pipeline: eight sends and eight receives."""
STEPS = 60
ROUNDS = 9
LIMIT_MICROSECONDS = 20.0
PIPELINE_STEPS = 200
LIMIT_SHARE = 0.01


def same_buffer() -> Callable[[], None]:
    group, buffer = dist.group.WORLD, torch.ones(64)
    assert group is not None
    return lambda: group.allreduce([buffer]).wait()


def new_buffer() -> Callable[[], None]:
    group = dist.group.WORLD
    assert group is not None
    return lambda: group.allreduce([torch.empty(64)]).wait()


def seconds_an_operation(once: Callable[[], None], monitor: CommMonitor | None, first: int) -> float:
    """Mean over STEPS steps; `first` is the number of the first of them."""
    began = time.thread_time()
    for step in range(first, first + STEPS):
        for _ in range(OPERATIONS_A_STEP):
            once()
        if monitor is not None:
            monitor.step_ended(step)
    return (time.thread_time() - began) / (STEPS * OPERATIONS_A_STEP)


def compare(make: Callable[[], Callable[[], None]], folder: Path) -> tuple[float, float]:
    """(unwatched, watched) seconds an operation: the best of ROUNDS each, taken in turn."""
    once = make()
    plain, watched = [], []
    for turn in range(ROUNDS):
        plain.append(seconds_an_operation(once, None, 1))
        monitor = CommMonitor(RankFolder(folder / f"{make.__name__}_{turn}", 0), Patches())
        for step in range(1, FULL_STEPS + 2):
            once()
            monitor.step_ended(step)
        watched.append(seconds_an_operation(once, monitor, FULL_STEPS + 2))
        monitor.remove()
    return min(plain), min(watched)


class Spent:
    """Seconds spent in wrappers and at step ends, without those of the methods that are wrapped."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def outside(self, called: Callable[..., Any]) -> Callable[..., Any]:
        return self._timed(called, 1)

    def inside(self, called: Callable[..., Any]) -> Callable[..., Any]:
        return self._timed(called, -1)

    def _timed(self, called: Callable[..., Any], sign: int) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return called(*args, **kwargs)
            finally:
                self.seconds += sign * (time.perf_counter() - began)

        return timed

    def time_wrappers(self, empty: bool) -> None:
        """From now on what is wrapped is timed; with `empty` nothing stands between the two clocks."""
        wrap = Patches.wrap

        def timed(patches: Patches, owner: type, name: str, make: Any) -> None:
            def between(called: Callable[..., Any]) -> Callable[..., Any]:
                method = self.inside(called)
                return self.outside(method if empty else make(method))

            wrap(patches, owner, name, between)

        Patches.wrap = timed  # type: ignore[method-assign]


def pipeline(rank: int, store: str, folder: Path, empty: bool) -> dict[str, float]:
    """Median seconds of a step by the clock, and of watching in it; run by each of two ranks."""
    spent = Spent()
    spent.time_wrappers(empty)
    spec = importlib.util.spec_from_file_location("train", PIPELINE)
    assert spec is not None and spec.loader is not None
    train = importlib.util.module_from_spec(spec)
    sys.modules["train"] = train
    spec.loader.exec_module(train)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    stage = train.Stage()
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05, momentum=0.9)
    new_context, backward, train_step = train.choose("none", rank)
    context = new_context(peer=1 - rank, device="cpu")
    monitor = CommMonitor(RankFolder(folder, rank), Patches())
    step_ended = spent.outside(monitor.step_ended)
    steps: list[tuple[float, float]] = []
    for step in range(1, FULL_STEPS + PIPELINE_STEPS):
        dist.barrier()
        began, before = time.perf_counter(), spent.seconds
        train_step(stage, context, backward, train.microbatches(seed=step, device="cpu"))
        optimizer.step()
        optimizer.zero_grad()
        if not empty:
            step_ended(step)
        steps.append((time.perf_counter() - began, spent.seconds - before))
    monitor.remove()
    dist.destroy_process_group()
    clock, own = (median(column) for column in zip(*steps[FULL_STEPS + 1 :], strict=True))
    return {"clock": clock, "own": own}


def of_the_pipeline(folder: Path, empty: bool) -> None:
    """Print each rank's share; `empty` is for wrappers that do nothing."""
    folder.mkdir()
    command = [sys.executable, __file__, "empty" if empty else "whole", str(folder)]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
    for rank, process in enumerate(ranks):
        data = json.loads(process.communicate()[0])
        share = data["own"] / data["clock"]
        verdict = "within" if share <= LIMIT_SHARE else "ABOVE"
        print(
            f"pipeline, rank {rank}: {data['own'] * 1000:.2f} ms of a step of {data['clock'] * 1000:.1f} ms are "
            f"{'the measuring alone' if empty else 'watching'}: {share:.2%} ({verdict} {LIMIT_SHARE:.0%})"
        )


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as name:
        for make in (same_buffer, new_buffer):
            plain, watched = compare(make, Path(name))
            cost = (watched - plain) * 1e6
            verdict = "within" if cost <= LIMIT_MICROSECONDS else "ABOVE"
            step = cost * OPERATIONS_A_STEP / 1000
            print(
                f"{make.__name__}: {plain * 1e6:.1f} us plain, {watched * 1e6:.1f} us watched: {cost:.1f} us "
                f"an operation ({verdict} {LIMIT_MICROSECONDS:g} us), {step:.2f} ms for the "
                f"{OPERATIONS_A_STEP} operations of a sample step"
            )
        for empty in (False, True):
            of_the_pipeline(Path(name) / f"pipeline_{empty}", empty)
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        how, where, rank = sys.argv[1:]
        print(json.dumps(pipeline(int(rank), f"{where}/store", Path(where), how == "empty")))
    else:
        main()
