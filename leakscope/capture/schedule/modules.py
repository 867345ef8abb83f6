"""Which module's call ends a step, where there is neither an optimizer nor a backward?"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from leakscope.capture.heap.raw_types import instance_dict, mro, type_dict, type_name
from leakscope.capture.schedule.callers import LibraryCalls
from leakscope.capture.schedule.optimizers import MAX_CALLS_IN_A_STEP
from leakscope.capture.torch_private import MODULES, PARAMETERS, call_of_module

CALLS_WITHOUT_BACKWARD = 8
"""Calls that build a graph, chosen, after which no backward is waited for any more: a GAN's first step makes three, a
pipeline's one for each microbatch. Where grad mode is off none can come."""
_MOST_MADE = 1 << 12
"""Modules that are remembered until the next step: more than a model of a step is likely to have."""


class ModuleClock:
    """A step goes from one call to the next of one module that has parameters: the first, until it is gone or silent.

    A search makes a new one of the same type for each trial, and may keep the old ones: what was made since the last
    call takes its place.
    A loss or a transform has none, and belongs to the running step.
    """

    def __init__(self) -> None:
        self._clock: weakref.ref[Any] | None = None
        self._waiting = CALLS_WITHOUT_BACKWARD
        self._others = 0
        """Calls of other modules since the clock's last."""
        self._solver = LibraryCalls()
        self._made: list[weakref.ref[Any]] = []
        """Modules that were made since the clock's last call."""

    def made(self, module: Any) -> None:
        """A module has been given a parameter or another module."""
        if len(self._made) < _MOST_MADE and not (self._made and self._made[-1]() is module):
            self._made.append(weakref.ref(module))

    def ends_with(self, module: Any, builds_graph: bool, frame: FrameType | None) -> bool:
        """Does this module's call, an outermost one that is just ending below `frame`, end a step?"""
        clock = None if self._clock is None else self._clock()
        if clock is not module:
            if not has_parameters(module):
                return False
            self._others += 1
            alike = clock is not None and type_name(type(clock)) == type_name(type(module))
            made = alike and any(one() is module for one in self._made)
            if clock is not None and self._others <= MAX_CALLS_IN_A_STEP and not made:
                return False
            self._clock = weakref.ref(module)
        self._others = 0
        self._made.clear()
        if not self._solver.is_first(frame):
            return False
        self._waiting -= builds_graph and self._waiting > 0
        return not builds_graph or self._waiting == 0


def has_parameters(module: Any) -> bool:
    """Whether a module or one below it has parameters; runs none of their code."""
    waiting, seen = [module], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        own = instance_dict(one, type(one)) or {}
        parameters, below = dict.get(own, PARAMETERS), dict.get(own, MODULES)
        if isinstance(parameters, dict) and any(value is not None for value in dict.values(parameters)):
            return True
        if isinstance(below, dict):
            waiting += [each for each in dict.values(below) if each is not None]
    return False


def own_call_of(module: Any) -> type | None:
    """The class that gives a module a `__call__` other than torch's, which runs no global hooks; None for most, and for
    one that is listened to already.
    """
    for kind in mro(type(module)):
        called = type_dict(kind).get("__call__")
        if called is not None:
            name = type_dict(kind).get("__module__")
            of_torch = type(name) is str and name.partition(".")[0] == "torch"
            plain = type(called) is FunctionType and called.__code__ is not _OWN_CALL
            return kind if plain and not of_torch else None
    return None


def calling_then(called: Callable[..., Any], ended: Callable[[Any], object]) -> Callable[..., Any]:
    """A `__call__` that passes its module to `ended` when it returns."""

    def module_call(*args: Any, **kwargs: Any) -> Any:
        result = called(*args, **kwargs)
        module = args[0] if args else None
        del args, kwargs  # a look must not find them here
        ended(module)
        return result

    return module_call


_OWN_CALL: CodeType = calling_then(id, id).__code__


def outermost_call() -> FrameType | None:
    """The frame of the module's call that is just ending, None where another module's call runs around it."""
    codes = (call_of_module.__code__, _OWN_CALL)
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        if frame.f_code in codes:
            if found is not None:
                return None
            found = frame
        frame = frame.f_back
    return found


def is_outermost() -> bool:
    """Whether no other module's call runs around the one whose hook asks."""
    return outermost_call() is not None
