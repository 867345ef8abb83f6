"""Which optimizer's call ends a step?"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from leakscope.capture.heap.raw_types import instance_dict
from leakscope.capture.process.guard import Guard
from leakscope.capture.torch_private import STEP_OF_OPTIMIZER

MAX_CALLS_IN_A_STEP = 8
"""Calls of one optimizer without one of the clock's, after which it is the clock.

A GAN's critic may step several times in a step.
"""


class OptimizerClock:
    """A step goes from one call to the next of one optimizer: the first that steps, until it is gone, silent or old.

    It is old once an optimizer steps that was made since its last call, for a gradient worked out since then: a search
    makes a new one for each trial, and may keep the old ones. Made together, as a GAN's, they are of one step.
    """

    def __init__(self, guard: Guard | None = None) -> None:
        self._died = (guard or Guard()).callback("death of an optimizer", self._forget)
        self._clock: _Met | None = None
        self._met: dict[int, _Met] = {}
        """By address: an optimizer may have an `__eq__` of its own."""
        self._steps = 0
        self.backwards = self._backwards_before = 0
        """Outermost backwards that have begun, and those of them before the clock's last call."""

    @property
    def ticks(self) -> bool:
        """Whether any optimizer has ended a step."""
        return self._steps > 0

    def each(self) -> Iterator[Any]:
        """The optimizers that are alive."""
        for met in list(self._met.values()):
            optimizer = met()
            if optimizer is not None:
                yield optimizer

    def made(self, optimizer: object) -> None:
        """An optimizer has been made, copied or loaded; one that is known already stays as old as it is."""
        met = self._met.get(id(optimizer))
        if met is None or met() is not optimizer:
            self._meet(optimizer, self._steps)

    def _meet(self, optimizer: object, made: int) -> _Met:
        met = self._met[id(optimizer)] = _Met(optimizer, self._died)
        met.address, met.step, met.count, met.made, met.stepped = id(optimizer), -1, 0, made, False
        return met

    def backward_began(self) -> None:
        """An outermost backward begins."""
        self.backwards += 1

    def ends_with(self, optimizer: object) -> bool:
        """Does this optimizer's call, which is just ending, end a step?"""
        met = self._met.get(id(optimizer))
        if met is None or met() is not optimizer:
            met = self._meet(optimizer, -1)
        new, met.stepped = not met.stepped, True
        met.count = met.count + 1 if met.step == self._steps else 1
        met.step = self._steps
        if not self._tells(met, optimizer, new) or _in_another_step():
            return False
        self._clock = met
        self._steps += 1
        self._backwards_before = self.backwards
        return True

    def _tells(self, met: _Met, optimizer: object, new: bool) -> bool:
        clock = None if self._clock is None else self._clock()
        if clock is None or clock is optimizer or met.count > MAX_CALLS_IN_A_STEP:
            return True
        # One for each parameter, made when its first gradient is there, is of the running step: it is the same
        # backward's. Where gradients come from elsewhere there is no backward to go by.
        if met.made == self._steps and new and (not self.backwards or self.backwards > self._backwards_before):
            return True
        # One after the warm-up's, made together with it. Those of the other parameters, one each, belong to the running
        # step; and so does one that was here before: two that train the same parameters may both step at every step.
        return new and _trains(optimizer, _first(clock))

    def _forget(self, met: _Met) -> None:
        if self._met.get(met.address) is met:
            del self._met[met.address]


class _Met(weakref.ref[Any]):
    """An optimizer that was made or has stepped."""

    __slots__ = ("address", "count", "made", "step", "stepped")
    address: int
    count: int
    """Its calls since the clock's last."""
    made: int
    """Steps that had ended when it was made; -1 where that was not seen."""
    step: int
    stepped: bool


def _in_another_step() -> bool:
    """Whether the optimizer was called by another's step, or by that of its own subclass: both run torch's hooks."""
    return _steps_running() > 1


def in_optimizer_step() -> bool:
    """Whether an optimizer's step is running: the backwards and calls of its closure end none."""
    return _steps_running() > 0


def _steps_running() -> int:
    """How many calls of an optimizer's step are on this thread's stack."""
    frame: FrameType | None = sys._getframe(1)
    calls = 0
    while frame is not None:
        calls += frame.f_code.co_qualname == STEP_OF_OPTIMIZER
        frame = frame.f_back
    return calls


def parameters(optimizer: Any) -> Iterator[Any]:
    """What an optimizer trains, as far as it can be read without running its code."""
    groups = dict.get(instance_dict(optimizer, type(optimizer)) or {}, "param_groups")
    for group in groups if type(groups) is list else ():
        held = dict.get(group, "params") if type(group) is dict else None
        yield from held if type(held) is list else ()


def _first(optimizer: Any) -> Any:
    return next(parameters(optimizer), None)


def _trains(optimizer: Any, parameter: Any) -> bool:
    return parameter is not None and any(trained is parameter for trained in parameters(optimizer))
