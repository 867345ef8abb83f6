"""Module calls end steps where there is neither an optimizer nor a backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.step_clocks import STEPS, WIDTH, Heard, a_net, run_backward
from torch import nn
from torch.optim import SGD

from leakscope.recorder.steps.detector import CALLS_WITHOUT_BACKWARD
from leakscope.run.rows import ClockKind


class Named(nn.Sequential):
    """A module with others inside."""


def test_without_a_backward_the_outermost_call_of_the_first_module_with_parameters_ends_a_step(heard: Heard) -> None:
    net, other, loss = Named(a_net(), nn.ReLU(), a_net()), a_net(), nn.MSELoss()
    x = torch.ones(2, WIDTH)
    with torch.no_grad():
        for _ in range(STEPS):
            loss(x, x)
            loss(other(net(x)), x)
    assert heard.ticks == [(ClockKind.CALL, "Named")] * STEPS


def test_calls_that_build_a_graph_wait_for_a_backward_first(heard: Heard) -> None:
    net = a_net()
    for _ in range(CALLS_WITHOUT_BACKWARD - 1):
        net(torch.ones(2, WIDTH))
    assert heard.ticks == []
    for _ in range(STEPS):
        net(torch.ones(2, WIDTH))
    assert heard.ticks == [(ClockKind.CALL, "Linear")] * STEPS


@pytest.mark.parametrize("what", ["optimizer", "backward", "torch.compile"])
def test_once_something_better_is_there_no_hook_stands_in_the_way_of_modules(heard: Heard, what: str) -> None:
    hooks = nn.modules.module._global_forward_hooks
    assert hooks
    net = a_net()
    if what == "optimizer":
        SGD(net.parameters(), 0.1)
    elif what == "backward":
        run_backward(net)
    else:
        torch.compile(net)
    assert not hooks
    with torch.no_grad():
        net(torch.ones(2, WIDTH))
    assert heard.by(ClockKind.CALL) == 0


class OwnCall(nn.Linear):
    """Calls that run no global hooks, as those of gpytorch's models."""

    def __call__(self, x: torch.Tensor) -> Any:
        return self.forward(x)


class PassesOn(nn.Linear):
    """Calls that go on to torch's."""

    def __call__(self, x: torch.Tensor) -> Any:
        return super().__call__(x)


@pytest.mark.parametrize("kind", [OwnCall, PassesOn])
def test_a_call_that_a_class_defines_itself_ends_a_step_once(heard: Heard, kind: type[nn.Linear]) -> None:
    own, inner = kind.__call__, kind(WIDTH, WIDTH)
    net = Named(inner)
    with torch.no_grad():
        for _ in range(STEPS):
            inner(torch.ones(2, WIDTH))
            net(torch.ones(2, WIDTH))
    assert heard.ticks == [(ClockKind.CALL, kind.__name__)] * STEPS
    SGD(net.parameters(), 0.1)
    assert kind.__call__ is own


LIBRARY = """
def solve(field, x):
    x = field(x)
    for _ in range(5):
        x = field(x)
    return x

def predict(net, batches):
    return [net(x) for x in batches]
"""


@pytest.mark.parametrize(("name", "steps"), [("solve", STEPS), ("predict", 3 * STEPS)])
def test_of_the_calls_that_one_call_of_a_library_makes_the_first_ends_a_step(
    heard: Heard, name: str, steps: int
) -> None:
    library: dict[str, Any] = {}
    exec(compile(LIBRARY, "/lib/site-packages/solver.py", "exec"), library)
    net, x = a_net(), torch.ones(2, WIDTH)
    with torch.no_grad():
        for _ in range(STEPS):
            library[name](net, x if name == "solve" else [x, x, x])
    assert heard.by(ClockKind.CALL) == steps
