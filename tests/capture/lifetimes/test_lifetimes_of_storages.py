"""A storage lives from the operation that made it to the one that released it, whatever tensors came and went."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from support.lived_steps import BIG, REST, big, idle_bytes, measured_peak, scratch, watched
from torch import Tensor


def of(kib: int) -> Tensor:
    """A tensor of its own size: so many KiB above that of `big`."""
    return torch.ones((BIG + 1024 * kib) // 4)


def in_thread(make: Callable[[], Tensor]) -> Tensor:
    made: list[Tensor] = []
    thread = threading.Thread(target=lambda: made.append(make()))
    thread.start()
    thread.join()
    return made[0]


def test_what_is_idle_at_the_peak_is_what_nothing_uses_afterwards() -> None:
    kept = big()

    def step() -> None:
        whole = of(1)
        view = whole[:4]
        resized = torch.ones(1).resize_((BIG + 2048) // 4)
        array = of(3).numpy()
        listed_after, listed_before = of(4), of(5)
        listed_before.tolist()
        shrunk = of(6)
        shrunk.untyped_storage().resize_(0)
        elsewhere = in_thread(lambda: of(7))
        elsewhere.sum()
        kept.sum()
        scratch()
        view.sum(), array.sum(), listed_after.tolist()
        del resized, listed_before, shrunk

    lived = watched(step)
    assert sorted(idle_bytes(lived)) == [BIG + 1024 * kib for kib in (2, 5, 7)]
    alive = sum(BIG + 1024 * kib for kib in (1, 2, 3, 4, 5, 7))
    assert lived.step.peak_bytes - lived.step.start_bytes == alive + REST


def test_the_peak_is_the_one_that_torch_measures() -> None:
    def step() -> None:
        tensor = big()
        tensor.data = tensor.new_empty(1)
        tensor.untyped_storage().resize_(0)
        scratch()

    lived = watched(step)
    assert idle_bytes(lived) == []
    assert lived.step.peak_bytes - lived.step.start_bytes == REST == measured_peak(step)
