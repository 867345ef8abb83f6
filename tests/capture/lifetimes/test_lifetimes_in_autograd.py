"""What a backward needs lives until it has run; what a graph, a checkpoint or a subclass keeps is told as theirs."""

from __future__ import annotations

from typing import Any, Self

import pytest
import torch
from support.lived_steps import BIG, REST, big, idle_bytes, measured_peak, scratch, watched
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leakscope.report.finding_text import advice, title


def test_what_backward_needs_is_in_use() -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def step() -> None:
        hidden = weight * 2
        loss = (hidden * hidden).sum()
        del hidden
        scratch()
        loss.backward()
        weight.grad = None

    assert idle_bytes(watched(step)) == []


def test_what_a_retained_graph_saved_is_the_users() -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def step() -> None:
        hidden = weight * 2
        loss = hidden.sin().sum()
        del hidden
        loss.backward(retain_graph=True)
        weight.grad = None
        scratch()

    lived = watched(step)
    assert lived.avoidable == pytest.approx(BIG, rel=0.05)
    assert "retain_graph=True" in advice(lived.told[0])


class Wrapped(torch.Tensor):
    """A wrapper subclass: no storage of its own, an inner tensor that has one."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Self:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        bare = [arg.inner if isinstance(arg, Wrapped) else arg for arg in args]
        out = func(*bare, **(kwargs or {}))
        return cls(out) if isinstance(out, torch.Tensor) else out


def test_inner_tensors_of_a_subclass_are_seen() -> None:
    def step() -> None:
        kept = Wrapped(big())
        used = kept + kept
        scratch()
        used + used

    assert idle_bytes(watched(step)) == [BIG]


def test_gradients_until_zero_grad_have_their_own_line() -> None:
    net = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        loss = net(torch.ones(4, 256)).sum()
        scratch()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    lived = watched(step)
    assert lived.avoidable == 0
    assert [title(f) for f in lived.findings if "zero_grad" in title(f)]
    assert lived.told == []


def test_what_the_running_backward_has_just_used_could_be_let_go_before_it() -> None:
    source = torch.ones(REST // 4, requires_grad=True)

    def step() -> None:
        hidden = (source * source)[: BIG // 4].clone()
        hidden.sin().sum().backward()
        source.grad = None

    lived = watched(step)
    assert lived.avoidable >= BIG
    (finding,) = lived.told
    assert "`del hidden`" in title(finding)


@pytest.mark.parametrize("reentrant", [True, False])
def test_backward_of_a_checkpoint_makes_its_tensors_again(reentrant: bool) -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def block(x: Tensor) -> Tensor:
        hidden = x * weight
        scratch()
        return hidden.sin()

    def step() -> None:
        loss = checkpoint(block, torch.ones(BIG // 4, requires_grad=True), use_reentrant=reentrant).sum()
        loss.backward()
        weight.grad = None

    lived = watched(step)
    assert lived.unjudged == ()
    assert idle_bytes(lived) == []
    # the random state that checkpoint keeps is made in C++, past the dispatcher: two of 5056 bytes
    assert measured_peak(step) - 2 * 5056 <= lived.step.peak_bytes - lived.step.start_bytes <= measured_peak(step)
