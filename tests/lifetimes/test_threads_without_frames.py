"""Autograd's own threads run operations with no Python frame below the mode's: is that borne?"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from leakscope.capture.lifetimes import Watch
from leakscope.capture.makers import Makers


def _in_bare_thread(mode: Any, tensor: torch.Tensor, done: Callable[[], bool]) -> bool:
    """Hands the mode an operation as C++ does: its own frame is the thread's lowest."""
    _thread.start_new_thread(mode.__torch_dispatch__, (torch.ops.aten.add_.Tensor, (), (tensor, 1)))
    until = time.monotonic() + 5.0
    while not done() and time.monotonic() < until:
        time.sleep(0)  # lets the other thread have its turn
    return done()


def test_makers_know_the_operator_where_no_line_made_it() -> None:
    makers, tensor = Makers(), torch.ones(3)
    assert makers.enter(False) == ""
    try:
        assert _in_bare_thread(makers._mode, tensor, lambda: bool(makers.made_at))
    finally:
        assert makers.leave()
    assert makers.made_at[tensor.untyped_storage()._cdata] == "aten::add_"
    assert tensor.tolist() == [2.0] * 3


def test_lifetimes_count_the_operation_without_a_line() -> None:
    @contextmanager
    def no_peak(step: int, occasion: str) -> Iterator[Any]:
        yield None

    watch, tensor = Watch(0, no_peak), torch.ones(3)
    watch._enter(1)
    try:
        before = len(watch._table.operations)
        assert _in_bare_thread(watch._mode, tensor, lambda: len(watch._table.operations) > before)
    finally:
        assert watch.leave()
    assert tensor.tolist() == [2.0] * 3
    watch.forget()
