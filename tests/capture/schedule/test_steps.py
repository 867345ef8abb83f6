"""One of several optimizers is chosen to end the steps."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from leakscope.process.patches import Patches
from leakscope.recorder.steps.detector import MAX_CALLS_IN_A_STEP, OptimizerClock

STEPS = 12


class Ends:
    """Which of the optimizers' calls have ended a step."""

    def __init__(self) -> None:
        self.clock = OptimizerClock()
        self.told: list[bool] = []

    def after(self, optimizer: object, *_: Any) -> None:
        self.told.append(self.clock.ends_with(optimizer))


@pytest.fixture
def ends() -> Iterator[Ends]:
    listening, patches = Ends(), Patches()
    patches.add("optimizer step hook", register_optimizer_step_post_hook(listening.after).remove)
    for name in ("__init__", "__setstate__"):
        patches.call_before(Optimizer, name, lambda optimizer, *_: listening.clock.made(optimizer))
    yield listening
    patches.take_out()


def _parameters(count: int = 1) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]
    for parameter in made:
        parameter.grad = torch.ones(2)
    return made


def _sgd(count: int = 1) -> SGD:
    return SGD(_parameters(count), 0.1)


@pytest.mark.parametrize("often", [1, 5, MAX_CALLS_IN_A_STEP])
def test_a_gan_whose_critic_steps_last_steps_with_its_generator(ends: Ends, often: int) -> None:
    generator, critic = _sgd(), _sgd()
    for _ in range(STEPS):
        generator.step()
        for _ in range(often):
            critic.step()
    assert ends.told == [True, *[False] * often] * STEPS


@pytest.mark.parametrize("each", [1, 3])
def test_a_new_optimizer_each_epoch_goes_on_where_the_kept_ones_ended(ends: Ends, each: int) -> None:
    parameters, kept = _parameters(3), []
    for _ in range(STEPS):
        kept.append(Adam(parameters))
        for _ in range(each):
            kept[-1].step()
    assert ends.told == [True] * STEPS * each


def test_a_silent_optimizer_of_other_parameters_hands_over_in_time(ends: Ends) -> None:
    silent, once, goes_on = _sgd(), _sgd(), _sgd()
    silent.step()
    once.step()
    for _ in range(MAX_CALLS_IN_A_STEP + STEPS):
        goes_on.step()
    assert ends.told == [True, False, *[False] * MAX_CALLS_IN_A_STEP, *[True] * STEPS]


class Around(Optimizer):
    """Steps another optimizer within its own step, as SAM and Lookahead do."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


class Own(SGD):
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


def _around() -> Optimizer:
    return Around(_sgd(3))


def _own() -> Optimizer:
    _sgd()  # torch puts its hooks into the step of a class with the class's first instance
    return Own(_parameters(), 0.1)


@pytest.mark.parametrize("make", [_around, _own])
def test_a_step_within_a_step_ends_none(ends: Ends, make: Callable[[], Optimizer]) -> None:
    optimizer = make()
    for _ in range(STEPS):
        optimizer.step()
    assert ends.told == [False, True] * STEPS


class Hostile(SGD):
    def _asked(self, *_: object) -> Any:
        raise AssertionError("the optimizer's own code was run")

    __eq__ = __hash__ = __bool__ = __len__ = _asked


def test_optimizers_are_held_weakly_and_their_code_does_not_run(ends: Ends) -> None:
    for _ in range(2):
        kept = [Hostile(_parameters(), 0.1) for _ in range(2)]
        for optimizer in kept:
            optimizer.step()
        del kept, optimizer
        gc.collect()
        assert not ends.clock._met
    assert ends.told == list(chain.from_iterable([[True, False]] * 2))
