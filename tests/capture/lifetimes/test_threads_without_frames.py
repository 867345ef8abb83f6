"""Lifetimes are recorded for operations of autograd threads without Python frames."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from leakscope.process.patches import Patches
from leakscope.recorder.lifetimes.dispatch_mode import AllocationSites
from leakscope.recorder.lifetimes.tracker import LifetimeTracker


def _in_bare_thread(mode: Any, operator: Any, arguments: tuple[Any, ...], done: Callable[[], bool]) -> bool:
    """Hands the mode an operation as C++ does: its own frame is the thread's lowest. Waits for the thread's end."""
    threads = _thread._count()
    _thread.start_new_thread(mode.__torch_dispatch__, (operator, (), arguments))
    until = time.monotonic() + 60.0
    while not (done() and _thread._count() <= threads) and time.monotonic() < until:
        time.sleep(0)  # lets the other thread have its turn
    return done()


def test_what_looks_at_memory_has_not_made_it() -> None:
    there, makers = torch.ones(8), AllocationSites(Patches())
    assert makers.enter(False) == ""
    try:
        views = [there.detach(), there[2:], there.view(2, 4).t(), there.add_(1)]
        made = [torch.tensor([1.0]), there + 1, torch.empty(2).resize_(9), there.view(2, 4).t().contiguous()]
    finally:
        assert makers.leave()
    assert all(one.untyped_storage()._cdata not in makers.made_at for one in views)
    assert [makers.made_at[one.untyped_storage()._cdata].split("(")[1] for one in made] == [
        "aten::lift_fresh)", "aten::add)", "aten::empty)", "aten::clone)",
    ]  # fmt: skip


def test_lifetimes_count_the_operation_without_a_line() -> None:
    @contextmanager
    def no_peak(step: int, occasion: str) -> Iterator[Any]:
        yield None

    watch, tensor = LifetimeTracker(0, no_peak), torch.ones(3)
    watch._enter(1)
    try:
        before = len(watch._table.operations)
        assert _in_bare_thread(
            watch._mode, torch.ops.aten.add_.Tensor, (tensor, 1), lambda: len(watch._table.operations) > before
        )
    finally:
        assert watch.leave()
    assert tensor.tolist() == [2.0] * 3
    watch.forget()
