"""When is a step over? The first that applies: an optimizer's step, a backward's end, a module's call."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from leakscope.capture.heap.raw_types import type_name
from leakscope.capture.process.guard import Guard
from leakscope.capture.schedule.callers import LibraryCalls, ScriptCalls
from leakscope.capture.schedule.gradients import Gradients
from leakscope.capture.schedule.modules import ModuleClock
from leakscope.capture.schedule.optimizers import OptimizerClock, in_optimizer_step
from leakscope.record.kinds import ClockKind

BACKWARDS_BY_HAND = 3
"""Backwards in a row, chosen, whose gradients were used without the optimizer: a scaler of mixed precision leaves out a
first step or two, and an optimizer that is made and never steps is met at the fourth."""

UPDATES_BY_HAND = 8
"""Updates of parameters between calls of torch.autograd.grad, while no optimizer steps, after which each is a step. An
inner loop of meta-learning makes one to five ahead of the step of its optimizer; at 3 those end steps, at 30 a `--steps
12` run of forty has none.
"""


class Tick(NamedTuple):
    """A step is over."""

    clock: ClockKind
    name: str
    """What ended it: `Adam`, `Net`, `train_step`; "" for a backward."""


MARK = Tick(ClockKind.MARK, "")
"""Where the program says itself that a step is over."""


class StepClock:
    """Told of all that happens, it says what of it ends a step.

    Without an optimizer that steps the end of each outermost backward counts, whatever it is for: the microbatches of a
    step, and two losses that are stepped on in turn, cannot be told apart. A clock gives way to one that comes before
    it in the list, and never takes over from it again. While an optimizer's step runs, nothing but its end counts:
    LBFGS calls a closure that runs many backwards. Of the many that one call of a library makes, as a solver's, the
    first counts.
    """

    def __init__(self, step_alone: Callable[[], bool] = lambda: True, guard: Guard | None = None) -> None:
        """`step_alone` says whether this rank may step by its own backwards and calls, and is asked for each."""
        self._optimizers = OptimizerClock(guard)
        self._gradients = Gradients(self._optimizers)
        self._modules = ModuleClock()
        self._step_alone = step_alone
        self._by_hand = self._updates = 0
        self._updated = False
        self._solver = LibraryCalls()
        self.calls = ScriptCalls()
        """From where in the script the backwards ran that ended no step."""

    def optimizer_made(self, optimizer: object) -> None:
        """An optimizer was made, copied or loaded."""
        self._optimizers.made(optimizer)

    def optimizer_stepped(self, optimizer: object) -> Tick | None:
        """An optimizer's step is just ending."""
        ends = self._optimizers.ends_with(optimizer)
        return Tick(ClockKind.OPTIMIZER, type_name(type(optimizer))) if ends else None

    def backward_began(self, accumulates: bool = True) -> None:
        """An outermost backward begins; one that accumulates leaves gradients on parameters."""
        self._optimizers.backward_began()
        if self._optimizers.ticks or in_optimizer_step():
            return
        self._by_hand = self._by_hand + 1 if self._gradients.were_used() else 0
        self._updated = not accumulates and self.optimizers_alive and self._gradients.parameters_changed()
        self._updates += self._updated

    def backward_ended(self, frame: FrameType | None = None) -> Tick | None:
        """An outermost backward has ended, which was called below `frame`."""
        if self._optimizers.ticks or in_optimizer_step():
            return None
        if self.optimizers_alive:
            self._gradients.backward_ended()
            by_hand = self._by_hand >= BACKWARDS_BY_HAND
            if not by_hand and not (self._updated and self._updates >= UPDATES_BY_HAND):
                self.calls.note(frame)
                return None
        ends = self._solver.is_first(frame) and self._step_alone()
        return Tick(ClockKind.BACKWARD, "") if ends else None

    def module_made(self, module: Any) -> None:
        """A module has been given a parameter or another module."""
        self._modules.made(module)

    def module_called(self, module: Any, builds_graph: bool, frame: FrameType | None = None) -> Tick | None:
        """A module's outermost call is just ending, in grad mode or not, which was called below `frame`."""
        ends = not in_optimizer_step() and self._modules.ends_with(module, builds_graph, frame) and self._step_alone()
        return Tick(ClockKind.CALL, type_name(type(module))) if ends else None

    @property
    def backwards(self) -> int:
        """Outermost backwards so far."""
        return self._optimizers.backwards

    @property
    def optimizers_alive(self) -> bool:
        """Whether there is an optimizer, even if it never steps."""
        return any(True for _ in self._optimizers.each())
