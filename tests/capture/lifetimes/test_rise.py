"""The rise of tensor memory in a block is counted to the byte, with allocation sites, and nothing is changed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from leakscope.profiler.block import TensorPeak
from leakscope.recorder.lifetimes import tracker as rise_of_capture
from leakscope.report.run_text import rise_text

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_handed_to_compile(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What other tests have compiled is not this one's."""
    monkeypatch.setattr(rise_of_capture, "compiles", lambda: False)
    yield


def mib(count: float) -> torch.Tensor:
    return torch.zeros(int(count * MIB) // 4)


def test_the_peak_is_what_was_alive_at_once_above_the_start() -> None:
    there = [mib(4)]
    with TensorPeak("1 GiB") as peak:
        for _ in range(3):
            mib(2)  # one after another, never together
        kept = [mib(1), mib(3)]
        there.clear()  # was there before: what comes next rises less
        mib(2)
        kept.clear()
    assert peak.why == "" and peak.rise is not None
    assert peak.rise.bytes == 4 * MIB and not peak.is_over and peak.rise.held == ()
    assert [(made.bytes, made.storages) for made in peak.rise.made] == [(4 * MIB, 2)]
    assert "test_rise.py" in peak.rise.made[0].where and "aten::zeros" in peak.rise.made[0].where


def test_a_rise_above_the_limit_has_names() -> None:
    with TensorPeak("3 MiB") as peak:
        batch = [torch.zeros(MIB // 4), torch.zeros(MIB // 4)]
        total = torch.ones(MIB)
        del batch, total
    assert peak.is_over and peak.rise is not None
    text = rise_text(peak.rise)
    assert "6.00 MiB" in text and "batch in test_a_rise" in text and "(aten::ones)" in text


def losses_of(net: torch.nn.Module) -> list[torch.Tensor]:
    optimizer = torch.optim.Adam(net.parameters())
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.dropout(net(torch.randn(16, 8))).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def test_results_are_identical_and_nothing_stays_installed() -> None:
    def trained(limit: str | None) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        if limit is None:
            losses = losses_of(net)
        else:
            with TensorPeak(limit) as peak:
                losses = losses_of(net)
            assert peak.rise is not None and peak.is_over
        return losses, [p.detach() for p in net.parameters()], torch.get_rng_state()

    numpy, compiled, resize = torch.Tensor.numpy, torch.compile, torch.UntypedStorage.resize_
    for plain, watched in zip(trained(None), trained("1 KiB"), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert torch.Tensor.numpy is numpy and torch.compile is compiled and torch.UntypedStorage.resize_ is resize
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None and gc.isenabled()


def test_a_block_that_raises_or_compiles_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = TensorPeak(0)
    with pytest.raises(ZeroDivisionError), peak:
        mib(1)
        print(1 / 0)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    with TensorPeak(0) as peak:
        mib(1)
        torch.compile(lambda tensor: tensor + 1, backend="eager")
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert "torch.compile" in peak.why and peak.rise is None and not peak.is_over
    monkeypatch.undo()
    with TensorPeak(0) as peak:  # compiled before, though it was never called
        mib(1)
    assert "torch.compile" in peak.why and peak.rise is None
    torch._dynamo.reset()
