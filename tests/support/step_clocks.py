"""Hears which steps end in this process, and by what."""

from __future__ import annotations

import torch
from torch import nn

from leakscope.recorder.steps.detector import StepClock, StepEvents
from leakscope.run.rows import ClockKind

STEPS = 12
WIDTH = 4


class Heard:
    """The steps that have ended, by what ended them."""

    def __init__(self) -> None:
        self.ticks: list[tuple[ClockKind, str]] = []
        self.step_alone = True
        self.clock = StepClock(lambda: self.step_alone)
        self.events = StepEvents(self.clock, self.ticks.append)

    def by(self, clock: ClockKind) -> int:
        return sum(tick[0] == clock for tick in self.ticks)


def a_net() -> nn.Linear:
    """A module of `WIDTH` to `WIDTH`."""
    return nn.Linear(WIDTH, WIDTH)


def run_backward(net: nn.Module) -> None:
    """One forward and one backward through it."""
    net(torch.ones(2, WIDTH)).sum().backward()
