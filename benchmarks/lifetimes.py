"""The cost of a watched step beside a plain one, in one process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from leakscope.heap.snapshot import LiveSnapshot, inspect
from leakscope.process.patches import Patches
from leakscope.recorder.lifetimes.tracker import LifetimeTracker

ROUNDS = 5
GOAL = 1.4
"""Most that a watched step may cost, as a ratio to a plain one of 50 ms."""


class _Empty(TorchDispatchMode):
    """What any dispatch mode costs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def training_step() -> Callable[[], None]:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 2)
    net = nn.Sequential(nn.Embedding(1000, 128), encoder, nn.Linear(128, 1000))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        tokens = torch.randint(0, 1000, (8, 64))
        loss = nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()

    return step


def timed(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    step = training_step()
    for _ in range(5):
        step()
    plain: list[float] = []
    empty: list[float] = []
    first: list[float] = []
    second: list[float] = []
    inventory: list[float] = []
    snapshot_seconds: list[float] = []

    @contextmanager
    def timed_snapshot(number: int, occasion: str) -> Iterator[LiveSnapshot]:
        began = time.process_time()
        with inspect(number, occasion) as live:
            yield live
        snapshot_seconds.append(time.process_time() - began)

    for _ in range(ROUNDS):
        plain += [timed(step) for _ in range(3)]
        watch, patches = LifetimeTracker(0, timed_snapshot), Patches()
        watch.install(patches, comm=False)
        inventory.append(timed(partial(watch.boundary, 1)))
        first.append(timed(step))
        watch.boundary(2)
        whole = timed(step)
        second.append(whole - snapshot_seconds[-1])
        watch.boundary(3)
        patches.take_out()
    for _ in range(3 * ROUNDS):
        with _Empty():  # type: ignore[no-untyped-call]
            empty.append(timed(step))
    base = median(plain)
    sys.stdout.write(
        f"plain step            {base * 1e3:7.1f} ms\n"
        f"under an empty mode   {median(empty) * 1e3:7.1f} ms  x{median(empty) / base:.2f}\n"
        f"first watched step    {median(first) * 1e3:7.1f} ms  x{median(first) / base:.2f}  (goal x{GOAL} of 50 ms)\n"
        f"second, without look  {median(second) * 1e3:7.1f} ms  x{median(second) / base:.2f}  (goal x{GOAL} of 50 ms)\n"
        f"first inventory       {median(inventory) * 1e3:7.1f} ms\n"
        f"look at the peak      {median(snapshot_seconds) * 1e3:7.1f} ms\n"
    )


if __name__ == "__main__":
    main()
