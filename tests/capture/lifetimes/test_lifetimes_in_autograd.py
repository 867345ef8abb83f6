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


def test_a_graph_without_backward_is_the_users() -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def step() -> None:
        loss = (weight * 2).sin().sum()
        scratch()
        del loss

    assert watched(step).avoidable == pytest.approx(BIG, rel=0.05)


def test_checkpointed_region_keeps_its_input_only() -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def block(x: Tensor) -> Tensor:
        return (x * weight).sin().sin()

    def step() -> None:
        start = big()
        loss = checkpoint(block, start, use_reentrant=False).sum()
        scratch()
        loss.backward()
        weight.grad = None

    lived = watched(step)
    assert idle_bytes(lived) == [], [one.row for one in lived.peak.idle]  # type: ignore[union-attr]


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


class Named(torch.Tensor):
    """A subclass without a dispatch of its own."""


def test_a_plain_subclass_is_a_tensor_like_any_other() -> None:
    def step() -> None:
        kept = big().as_subclass(Named)
        kept.sum()
        scratch()

    assert idle_bytes(watched(step)) == [BIG]


def test_data_of_a_tensor_inside_a_custom_function_runs() -> None:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.data

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad

    weight = torch.ones(BIG // 4, requires_grad=True)

    def step() -> None:
        Same.apply(weight * 2).sum().backward()  # type: ignore[no-untyped-call]
        weight.grad = None

    assert watched(step).unjudged == ()


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


class Twofold(torch.Tensor):
    """A wrapper of two inner tensors."""

    first: Tensor
    second: Tensor

    @staticmethod
    def __new__(cls, first: Tensor, second: Tensor) -> Self:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)  # type: ignore[attr-defined]
        made.first, made.second = first, second
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        first = func(*(arg.first if isinstance(arg, Twofold) else arg for arg in args), **(kwargs or {}))
        second = func(*(arg.second if isinstance(arg, Twofold) else arg for arg in args), **(kwargs or {}))
        return cls(first, second) if isinstance(first, torch.Tensor) and first.dim() else first


def test_each_inner_tensor_of_a_subclass_has_a_life_of_its_own() -> None:
    def step() -> None:
        kept = Twofold(big(), torch.ones(BIG // 2))
        kept.sin()
        scratch()
        kept.second.sum()

    assert idle_bytes(watched(step)) == [BIG]


def test_a_higher_order_operator_runs() -> None:
    def step() -> None:
        tensor = big()
        torch.ops.higher_order.cond(tensor.sum() > 0, torch.sin, torch.cos, (tensor,))
        scratch()

    lived = watched(step)
    assert lived.unjudged == ()
    assert idle_bytes(lived) == [BIG]
