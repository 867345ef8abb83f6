"""A run without steps prints one warning that names how to mark them."""

from __future__ import annotations

import pytest
import torch
from support.step_clocks import Heard

from leakscope.process.children import OwnProcesses
from leakscope.recorder.steps.detector import StepClock
from leakscope.recorder.steps.rank_exit import MissingStepWarning, missing_step_hints


@pytest.mark.parametrize(
    ("function", "processes", "words"),
    [(None, 0, "optimizer"), ("train_step", 0, "train_step()"), (None, 2, "2 Python processes")],
)
def test_it_is_said_once_with_what_would_make_a_step(function: str | None, processes: int, words: str) -> None:
    said: list[str] = []
    own = OwnProcesses(lambda process: None)
    own.count = processes
    waits = MissingStepWarning(function, own, patience_s=0.0, say=said.append)
    for _ in range(3):
        waits.tick(stepped=False)
    assert len(said) == 1 and words in said[0] and "\n" not in said[0]


class CallsItself(torch.nn.Module):
    """Calls that no global hook hears, as gpytorch's and botorch's models have them."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def task(net: torch.nn.Linear) -> None:
    """One step of a script whose optimizer never steps."""

    def inner() -> None:
        torch.autograd.grad(net(torch.ones(2)).sum(), net.weight)

    for _ in range(2):
        inner()


def test_the_function_that_the_outermost_loop_of_the_script_calls_is_named(heard: Heard) -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        task(net)
    assert heard.clock.calls.step_functions() == (f"{__name__}.task",) and heard.ticks == []
    del optimizer


def test_what_ends_no_step_is_named_with_what_to_give_to_step_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakscope.recorder.steps.rank_exit._MAX_NAMED", 100)  # other tests have such modules too
    clock = StepClock()
    (calls,) = missing_step_hints(clock)
    assert "--step-function" in calls and f"{__name__}.CallsItself.__call__" in calls
    clock.optimizer_created(torch.optim.SGD([torch.ones(2, requires_grad=True)], 0.1))
    for _ in range(3):
        clock.backward_began()
        clock.backward_ended()
    assert len(missing_step_hints(clock)) == 2 and missing_step_hints(None) == ()
