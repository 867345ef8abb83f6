"""Steps are detected with real optimizers, backwards and modules of torch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.step_clocks import STEPS, WIDTH, Heard, a_net, run_backward
from torch import nn
from torch.autograd import Variable
from torch.optim import SGD, Adam, Optimizer

from leakscope.recorder.steps.detector import BACKWARDS_BY_HAND, MAX_CALLS_IN_A_STEP, UPDATES_BY_HAND
from leakscope.run.rows import ClockKind


def _train(net: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    run_backward(net)
    optimizer.step()


# optimizers


def test_the_backwards_of_a_closure_end_no_step(heard: Heard) -> None:
    """LBFGS runs up to twenty of them in each of its steps, with gradients that the closure zeroes."""
    net = a_net()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(2, WIDTH)).square().sum()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    assert heard.ticks == [(ClockKind.OPTIMIZER, "LBFGS")] * STEPS


def test_a_fresh_model_and_optimizer_for_each_trial_count_though_the_old_ones_are_kept(heard: Heard) -> None:
    kept = []
    for _ in range(STEPS):
        net = a_net()
        kept.append(Adam(net.parameters()))
        for _ in range(3):
            _train(net, kept[-1])
    assert heard.ticks == [(ClockKind.OPTIMIZER, "Adam")] * STEPS * 3


def test_one_for_each_parameter_that_steps_inside_the_backward_makes_one_step_a_backward(heard: Heard) -> None:
    net = nn.Sequential(*(a_net() for _ in range(30)))
    optimizers: dict[nn.Parameter, Optimizer] = {}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        optimizers[parameter] = Adam([parameter])
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        run_backward(net)
    assert heard.by(ClockKind.OPTIMIZER) == STEPS
    assert heard.by(ClockKind.BACKWARD) == 0


def _parameters() -> list[nn.Parameter]:
    made = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    for parameter in made:
        parameter.grad = torch.ones(2)
    return made


@pytest.mark.parametrize("often", [1, MAX_CALLS_IN_A_STEP])
def test_a_gan_whose_critic_steps_last_steps_with_its_generator(heard: Heard, often: int) -> None:
    generator, critic = SGD(_parameters(), 0.1), Adam(_parameters())
    for _ in range(STEPS):
        generator.step()
        for _ in range(often):
            critic.step()
    assert heard.ticks == [(ClockKind.OPTIMIZER, "SGD")] * STEPS


def test_a_silent_optimizer_of_other_parameters_hands_over_in_time(heard: Heard) -> None:
    silent, goes_on = SGD(_parameters(), 0.1), Adam(_parameters())
    silent.step()
    for _ in range(MAX_CALLS_IN_A_STEP + STEPS):
        goes_on.step()
    assert heard.ticks == [(ClockKind.OPTIMIZER, name) for name in ["SGD", *["Adam"] * STEPS]]


class Around(Optimizer):
    """Steps another optimizer within its own step, as SAM and Lookahead do."""

    def __init__(self) -> None:
        self.inner = SGD(_parameters(), 0.1)
        super().__init__(self.inner.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_a_step_within_a_step_ends_none(heard: Heard) -> None:
    optimizer = Around()
    for _ in range(STEPS):
        optimizer.step()
    assert heard.by(ClockKind.OPTIMIZER) == STEPS


class Hostile(SGD):
    def _asked(self, *_: object) -> Any:
        raise AssertionError("the optimizer's own code was run")

    __eq__ = __hash__ = __bool__ = __len__ = _asked


def test_optimizers_are_held_weakly_and_their_code_does_not_run(heard: Heard) -> None:
    for _ in range(2):
        optimizer = Hostile(_parameters(), 0.1)
        optimizer.step()
        gone = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert gone() is None
    assert heard.by(ClockKind.OPTIMIZER) == 2


# backward


def _by_engine(loss: torch.Tensor) -> None:
    Variable._execution_engine.run_backward(  # type: ignore[attr-defined]
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


BACKWARDS: dict[str, Callable[[nn.Linear], object]] = {
    "Tensor.backward": run_backward,
    "torch.autograd.grad": lambda net: torch.autograd.grad(net(torch.ones(WIDTH)).sum(), net.weight),
    "torch.func.grad": lambda net: torch.func.grad(lambda x: net(x).sum())(torch.ones(WIDTH)),
    "the engine itself": lambda net: _by_engine(net(torch.ones(WIDTH)).sum()),
}


@pytest.mark.parametrize("how", BACKWARDS)
def test_without_an_optimizer_each_backward_ends_a_step(heard: Heard, how: str) -> None:
    net = a_net()
    for _ in range(STEPS):
        BACKWARDS[how](net)
    assert heard.ticks == [(ClockKind.BACKWARD, "")] * STEPS


class _Inside(torch.autograd.Function):
    """Runs a backward of its own within its backward, as reentrant checkpointing does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        with torch.enable_grad():
            run_backward(a_net())
        return gradient * 2


def test_a_backward_within_a_backward_and_one_that_fails_end_none(heard: Heard) -> None:
    _Inside.apply(torch.ones(WIDTH, requires_grad=True)).sum().backward()
    assert len(heard.ticks) == 1
    with pytest.raises(RuntimeError):
        torch.ones(WIDTH).sum().backward()
    assert len(heard.ticks) == 1


def test_an_optimizer_that_never_steps_while_its_gradients_are_used_gives_way(heard: Heard) -> None:
    net = a_net()
    optimizer = SGD(net.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        run_backward(net)
        with torch.no_grad():
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
    assert heard.ticks == [(ClockKind.BACKWARD, "")] * (STEPS - BACKWARDS_BY_HAND)


def _gradients(net: nn.Linear) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(net(torch.ones(2, WIDTH)).sum(), list(net.parameters()))


def test_updates_by_hand_from_gradients_that_no_parameter_has_end_steps(heard: Heard) -> None:
    """As meta-learning makes them: three for the task, one for the update."""
    net = a_net()
    optimizer = SGD(net.parameters(), 0.1)
    for _ in range(3 * STEPS):
        for _ in range(3):
            _gradients(net)
        for parameter, gradient in zip(net.parameters(), _gradients(net), strict=True):
            with torch.no_grad():
                parameter.sub_(0.1 * gradient)
    assert heard.ticks == [(ClockKind.BACKWARD, "")] * (3 * STEPS - UPDATES_BY_HAND)
    del optimizer


def test_an_optimizer_takes_over_from_the_backwards_and_keeps_the_clock(heard: Heard) -> None:
    net = a_net()
    for _ in range(3):
        run_backward(net)
    optimizer = SGD(net.parameters(), 0.1)
    for _ in range(STEPS):
        _train(net, optimizer)
        run_backward(net)
    del optimizer
    run_backward(net)
    assert heard.ticks == [(ClockKind.BACKWARD, "")] * 3 + [(ClockKind.OPTIMIZER, "SGD")] * STEPS
