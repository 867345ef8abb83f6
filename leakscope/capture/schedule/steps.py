"""When is a step over?"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from leakscope.capture.heap.raw_types import instance_dict

MAX_CALLS_IN_A_STEP = 8
"""Calls of one optimizer without one of the clock's, after which it is the clock.

A GAN's critic may step several times in a step.
"""


class StepClock:
    """A step goes from one call to the next of one optimizer: the first that steps, until it is gone or silent."""

    def __init__(self) -> None:
        self._clock: _Met | None = None
        self._met: dict[int, _Met] = {}
        """By address: an optimizer may have an `__eq__` of its own."""
        self._steps = 0

    def ends_with(self, optimizer: object) -> bool:
        """Does this optimizer's call, which is just ending, end a step?"""
        met = self._met.get(id(optimizer))
        new = met is None or met() is not optimizer
        if met is None or new:
            met = self._met[id(optimizer)] = _Met(optimizer, self._forget)
            met.address, met.step = id(optimizer), -1
        met.count = met.count + 1 if met.step == self._steps else 1
        met.step = self._steps
        if not self._tells(met, optimizer, new) or _in_another_step():
            return False
        self._clock = met
        self._steps += 1
        return True

    def _tells(self, met: _Met, optimizer: object, new: bool) -> bool:
        clock = None if self._clock is None else self._clock()
        if clock is None or clock is optimizer or met.count > MAX_CALLS_IN_A_STEP:
            return True
        # One per epoch, or one after the warm-up's. Those of the other parameters, one each, belong to the running
        # step; and so does one that was here before: two that train the same parameters may both step at every step.
        return new and _trains(optimizer, _first_parameter(clock))

    def _forget(self, met: _Met) -> None:
        if self._met.get(met.address) is met:
            del self._met[met.address]


class _Met(weakref.ref[Any]):
    """An optimizer that has stepped."""

    __slots__ = ("address", "count", "step")
    address: int
    count: int
    """Its calls since the clock's last."""
    step: int


def _in_another_step() -> bool:
    """Whether the optimizer was called by another's step, or by that of its own subclass: both run torch's hooks."""
    frame: FrameType | None = sys._getframe(1)
    calls = 0
    while frame is not None:
        calls += frame.f_code.co_qualname == "Optimizer.profile_hook_step.<locals>.wrapper"
        frame = frame.f_back
    return calls > 1


def _parameters(optimizer: Any) -> Iterator[Any]:
    """What an optimizer trains, as far as it can be read without running its code."""
    groups = dict.get(instance_dict(optimizer, type(optimizer)) or {}, "param_groups")
    for group in groups if type(groups) is list else ():
        held = dict.get(group, "params") if type(group) is dict else None
        yield from held if type(held) is list else ()


def _first_parameter(optimizer: Any) -> Any:
    return next(_parameters(optimizer), None)


def _trains(optimizer: Any, parameter: Any) -> bool:
    return parameter is not None and any(trained is parameter for trained in _parameters(optimizer))
