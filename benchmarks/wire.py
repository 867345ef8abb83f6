"""What does watching the wire cost? Microseconds an operation, and the share of a step of the sample pipeline.

    python benchmarks/wire.py

One process, gloo, an operation and its wait(); the best of several rounds, watched and unwatched in turn, in the
steady state (the first steps, of which every operation is written, are over). The step is that of
`sample_runs/p2p_pipeline`: 32 operations, and the time it takes is measured here too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from leakscope.capture.p2p import Watch, watch
from leakscope.capture.wire_file import FULL_STEPS
from leakscope.record import RankFolder

OPERATIONS_A_STEP = 32
STEPS = 60
ROUNDS = 9
LIMIT_MICROSECONDS = 20.0


def same_buffer() -> Callable[[], None]:
    group, buffer = dist.group.WORLD, torch.ones(64)
    assert group is not None
    return lambda: group.allreduce([buffer]).wait()


def new_buffer() -> Callable[[], None]:
    group = dist.group.WORLD
    assert group is not None
    return lambda: group.allreduce([torch.empty(64)]).wait()


def seconds_an_operation(once: Callable[[], None], wire: Watch | None, first: int) -> float:
    """Mean over STEPS steps; `first` is the number of the first of them."""
    began = time.perf_counter()
    for step in range(first, first + STEPS):
        for _ in range(OPERATIONS_A_STEP):
            once()
        if wire is not None:
            wire.step_ended(step)
    return (time.perf_counter() - began) / (STEPS * OPERATIONS_A_STEP)


def compare(make: Callable[[], Callable[[], None]], folder: Path) -> tuple[float, float]:
    """(unwatched, watched) seconds an operation: the best of ROUNDS each, taken in turn."""
    once = make()
    plain, watched = [], []
    for turn in range(ROUNDS):
        plain.append(seconds_an_operation(once, None, 1))
        wire = watch(RankFolder(folder / f"{make.__name__}_{turn}", 0))
        for step in range(1, FULL_STEPS + 2):
            once()
            wire.step_ended(step)
        watched.append(seconds_an_operation(once, wire, FULL_STEPS + 2))
        wire.remove()
    return min(plain), min(watched)


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
                f"{make.__name__}: {plain * 1e6:.1f} us plain, {watched * 1e6:.1f} us watched: {cost:.1f} us an operation "
                f"({verdict} {LIMIT_MICROSECONDS:g} us), {step:.2f} ms for the {OPERATIONS_A_STEP} operations of a sample step"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
