"""Listens to what may end a step: optimizers, the autograd engine, and modules as long as nothing better is seen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from leakscope.capture.private_names import Part, lacks
from leakscope.capture.process.patches import Patches
from leakscope.capture.process.unheard import call_heard, unheard
from leakscope.capture.schedule.modules import calling_then, outermost_call, own_call_of
from leakscope.capture.schedule.steps import StepClock, Tick
from leakscope.capture.torch_private import ENGINE, NO_TASK, graph_task
from leakscope.originals import _thread


class StepEvents:
    """Tells a clock what happens, and whoever made it when a step is over."""

    def __init__(
        self,
        clock: StepClock,
        step_ended: Callable[[Tick], None],
    ) -> None:
        """`step_ended` may raise to end the script, and does so for nothing else."""
        self._clock, self._step_ended = clock, step_ended
        self._home = _thread.get_ident()
        self._calls = Patches()

    def install(self, patches: Patches) -> None:
        """Begin to listen."""
        from torch.nn.modules.module import (
            register_module_forward_hook,
            register_module_module_registration_hook,
            register_module_parameter_registration_hook,
        )
        from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

        patches.hook("optimizer step hook", register_optimizer_step_post_hook, self._after_optimizer, self._step_ended)
        for name in ("__init__", "__setstate__"):
            patches.call_before(Optimizer, name, self._before_optimizer_is_made)
        begins = patches.guard.guarded("beginning of a backward", self._before_backward)
        ended = patches.guard.guarded("end of a backward", self._after_backward, self._step_ended)
        if lacks(Part.BACKWARDS):  # a module's call ends a step only where no backward does
            return
        owner, name = ENGINE
        patches.replace(owner, name, _Engine(getattr(owner, name), begins, ended))
        self._calls = patches.part()
        if not lacks(Part.CALLS):
            self._calls.hook("module call hook", register_module_forward_hook, self._after_call, self._step_ended)
            self._own_call_ended = patches.guard.guarded("call of a module", self._after_call, self._step_ended)
            for register in (register_module_module_registration_hook, register_module_parameter_registration_hook):
                self._calls.hook("module registration hook", register, self._after_registration)
        patches.guard.at_end.append(lambda _: patches.guard.later.append(self._calls.take_out))
        patches.call_before_tracing(self._no_calls_any_more)

    def _no_calls_any_more(self, *_: Any, **__: Any) -> None:
        self._calls.take_out()

    def _before_optimizer_is_made(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self._calls.take_out()
        self._clock.optimizer_made(optimizer)

    def _after_optimizer(self, optimizer: object, *_: object) -> Tick | None:
        return self._clock.optimizer_stepped(optimizer)

    def _after_registration(self, module: Any, *_: object) -> None:
        """Listen to the calls of a class whose `__call__` runs no global hooks, as gpytorch's models have it."""
        self._clock.module_made(module)
        owner = own_call_of(module)
        if owner is not None:
            self._calls.wrap(owner, "__call__", lambda called: calling_then(called, self._own_call_ended))

    def _before_backward(self, accumulates: bool) -> None:
        self._calls.take_out()
        self._clock.backward_began(accumulates)

    def _after_backward(self) -> Tick | None:
        return self._clock.backward_ended(sys._getframe(1))

    def _after_call(self, module: Any, *_: object) -> Tick | None:
        if _thread.get_ident() != self._home:
            return None
        call = outermost_call()
        if call is None:
            return None
        return self._clock.module_called(module, torch.is_grad_enabled(), call.f_back)


class _Engine:
    """Stands before torch's autograd engine and says when an outermost backward begins and has ended.

    Tensor.backward, torch.autograd and torch.func all ask for it at `ENGINE`, and so do pipelines that are
    written by hand (torch/autograd/graph.py).
    """

    def __init__(self, engine: Any, begins: Callable[[bool], None], ended: Callable[[], None]) -> None:
        self._engine, self._begins, self._ended = engine, begins, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @unheard
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """As the engine's own, which calls the script's hooks."""
        if graph_task() != NO_TASK:  # a backward within another, which may run on a thread of the engine's
            return call_heard(self._engine.run_backward, *args, **kwargs)
        self._begins(kwargs.get("accumulate_grad", True) is not False)
        result = call_heard(self._engine.run_backward, *args, **kwargs)
        del args, kwargs
        self._ended()
        return result
