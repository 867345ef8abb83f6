"""The cost of `@pytest.mark.limit_tensor_peak` beside other ways to measure a peak."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median

import torch

from leakscope.profiler.block import TensorPeak

ROUNDS = 7
SIZES = {"small operations, width 32": (32, 32, 60), "large operations, width 1024": (1024, 256, 6)}
"""(width, batch, steps)."""


def training(width: int, batch: int, steps: int) -> Callable[[], None]:
    """So many steps of Adam on a net of three layers."""
    net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(3)))
    optimizer, inputs = torch.optim.Adam(net.parameters()), torch.randn(batch, width)

    def train() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            net(inputs).square().sum().backward()
            optimizer.step()

    return train


def memrays() -> AbstractContextManager[object]:
    """The tracker of memray, into a file that is dropped."""
    import memray

    return memray.Tracker(Path(tempfile.mkdtemp()) / "memray.bin")


def profilers() -> AbstractContextManager[object]:
    """The profiler of torch."""
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)


def main() -> None:
    """The table."""
    torch.set_num_threads(1)
    ways: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "plain": nullcontext,
        "limit_tensor_peak": lambda: TensorPeak("1 GiB"),
        "torch.profiler, profile_memory": profilers,
    }
    if importlib.util.find_spec("memray"):
        ways["memray.Tracker"] = memrays
    for title, sizes in SIZES.items():
        train = training(*sizes)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                began = time.process_time()
                with way():
                    train()
                taken[name].append(time.process_time() - began)
        plain = median(taken["plain"])
        print(f"{title:34} {'ms':>8} {'times plain':>12}")
        for name, seconds in taken.items():
            print(f"{name:34} {1e3 * median(seconds):8.1f} {median(seconds) / plain:12.2f}")
        print()
    entered = []
    for _ in range(ROUNDS):
        began = time.process_time()
        with TensorPeak("1 GiB"):
            pass
        entered.append(time.process_time() - began)
    print(f"{'an empty block':34} {1e3 * median(entered):8.1f} ms")


if __name__ == "__main__":
    main()
