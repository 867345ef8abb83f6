"""Hears which steps end in this process, and by what."""

from __future__ import annotations

import torch
from torch import nn

from leakscope.recorder.steps.detector import StepDetector, StepEvents
from leakscope.run.rows import StepSourceKind

STEPS = 12
WIDTH = 4


class Heard:
    """The steps that have ended, by what ended them."""

    def __init__(self) -> None:
        self.step_ends: list[tuple[StepSourceKind, str]] = []
        self.step_alone = True
        self.detector = StepDetector(lambda: self.step_alone)
        self.events = StepEvents(self.detector, self.step_ends.append)

    def by(self, source: StepSourceKind) -> int:
        return sum(end[0] == source for end in self.step_ends)


def a_net() -> nn.Linear:
    """A module of `WIDTH` to `WIDTH`."""
    return nn.Linear(WIDTH, WIDTH)


def run_backward(net: nn.Module) -> None:
    """One forward and one backward through it."""
    net(torch.ones(2, WIDTH)).sum().backward()
