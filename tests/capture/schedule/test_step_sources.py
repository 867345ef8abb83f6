"""Steps are ended by real optimizers, backwards and module calls of torch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.step_sources import STEPS, WIDTH, Heard, a_net, run_backward
from torch import nn
from torch.autograd import Variable
from torch.optim import SGD, Adam, Optimizer

from leakscope.process.patches import Patches
from leakscope.recorder.steps.detector import (
    BACKWARDS_BY_HAND,
    CALLS_WITHOUT_BACKWARD,
    MAX_CALLS_IN_A_STEP,
    StepDetector,
)
from leakscope.recorder.steps.inputs import StepInputs
from leakscope.recorder.steps.rank_exit import missing_step_hints
from leakscope.run.rows import StepSourceKind

ONES = torch.ones(2, WIDTH)


@pytest.fixture
def heard() -> Iterator[Heard]:
    listening, patches = Heard(), Patches()
    listening.events.install(patches)
    yield listening
    patches.take_out()
    assert not patches.guard.lost


def parameters() -> list[nn.Parameter]:
    made = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    for parameter in made:
        parameter.grad = torch.ones(2)
    return made


# optimizers


def test_the_backwards_of_a_closure_end_no_step(heard: Heard) -> None:
    """LBFGS runs up to twenty of them in each of its steps, with gradients that the closure zeroes."""
    net = a_net()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(ONES).square().sum()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    assert heard.step_ends == [(StepSourceKind.OPTIMIZER, "LBFGS")] * STEPS


def test_optimizers_of_single_parameters_that_step_inside_the_backward_make_one_step(heard: Heard) -> None:
    net = nn.Sequential(*(a_net() for _ in range(30)))
    optimizers: dict[nn.Parameter, Optimizer] = {}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        optimizers[parameter] = Adam([parameter])
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        run_backward(net)
    assert heard.by(StepSourceKind.OPTIMIZER) == STEPS and heard.by(StepSourceKind.BACKWARD) == 0


@pytest.mark.parametrize("often", [1, MAX_CALLS_IN_A_STEP])
def test_a_gan_whose_critic_steps_last_steps_with_its_generator(heard: Heard, often: int) -> None:
    generator, critic = SGD(parameters(), 0.1), Adam(parameters())
    for _ in range(STEPS):
        generator.step()
        for _ in range(often):
            critic.step()
    assert heard.step_ends == [(StepSourceKind.OPTIMIZER, "SGD")] * STEPS


def test_a_silent_optimizer_hands_over(heard: Heard) -> None:
    silent, goes_on = SGD(parameters(), 0.1), Adam(parameters())
    silent.step()
    for _ in range(MAX_CALLS_IN_A_STEP + STEPS):
        goes_on.step()
    assert heard.step_ends == [(StepSourceKind.OPTIMIZER, name) for name in ["SGD", *["Adam"] * STEPS]]


class Around(Optimizer):
    """Steps another optimizer within its own step, as SAM and Lookahead do."""

    def __init__(self) -> None:
        self.inner = SGD(parameters(), 0.1)
        super().__init__(self.inner.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_a_step_within_a_step_ends_none(heard: Heard) -> None:
    optimizer = Around()
    for _ in range(STEPS):
        optimizer.step()
    assert heard.by(StepSourceKind.OPTIMIZER) == STEPS


class Hostile(SGD):
    def _called(self, *_: object) -> Any:
        raise AssertionError("the optimizer's own code was run")

    __eq__ = __hash__ = __bool__ = __len__ = _called


def test_optimizers_are_not_kept_alive_and_their_code_does_not_run(heard: Heard) -> None:
    for _ in range(2):
        optimizer = Hostile(parameters(), 0.1)
        optimizer.step()
        gone = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert gone() is None
    assert heard.by(StepSourceKind.OPTIMIZER) == 2


# backward


def by_engine(loss: torch.Tensor) -> None:
    Variable._execution_engine.run_backward(  # type: ignore[attr-defined]
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


BACKWARDS: dict[str, Callable[[nn.Linear], object]] = {
    "Tensor.backward": run_backward,
    "torch.autograd.grad": lambda net: torch.autograd.grad(net(torch.ones(WIDTH)).sum(), net.weight),
    "torch.func.grad": lambda net: torch.func.grad(lambda x: net(x).sum())(torch.ones(WIDTH)),
    "the engine itself": lambda net: by_engine(net(torch.ones(WIDTH)).sum()),
}


@pytest.mark.parametrize("how", BACKWARDS)
def test_without_an_optimizer_each_backward_ends_a_step(heard: Heard, how: str) -> None:
    net = a_net()
    for _ in range(STEPS):
        BACKWARDS[how](net)
    with pytest.raises(RuntimeError):
        torch.ones(WIDTH).sum().backward()  # fails, and ends none
    assert heard.step_ends == [(StepSourceKind.BACKWARD, "")] * STEPS


def test_an_optimizer_that_never_steps_gives_way_to_updates_by_hand(heard: Heard) -> None:
    net = a_net()
    optimizer = SGD(net.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        run_backward(net)
        with torch.no_grad():
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
    assert heard.step_ends == [(StepSourceKind.BACKWARD, "")] * (STEPS - BACKWARDS_BY_HAND)


def test_an_optimizer_takes_over_from_the_backwards(heard: Heard) -> None:
    net = a_net()
    for _ in range(3):
        run_backward(net)
    optimizer = SGD(net.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        run_backward(net)
        optimizer.step()
        run_backward(net)
    del optimizer
    run_backward(net)
    assert heard.step_ends == [(StepSourceKind.BACKWARD, "")] * 3 + [(StepSourceKind.OPTIMIZER, "SGD")] * STEPS


# module calls


class Named(nn.Sequential):
    """A module with others inside."""


def test_without_a_backward_the_outermost_call_of_a_module_with_parameters_ends_a_step(heard: Heard) -> None:
    net, other, loss = Named(a_net(), nn.ReLU(), a_net()), a_net(), nn.MSELoss()
    with torch.no_grad():
        for _ in range(STEPS):
            loss(ONES, ONES)
            loss(other(net(ONES)), ONES)
    assert heard.step_ends == [(StepSourceKind.CALL, "Named")] * STEPS


def test_calls_that_build_a_graph_wait_for_a_backward_first(heard: Heard) -> None:
    net = a_net()
    for _ in range(CALLS_WITHOUT_BACKWARD - 1):
        net(ONES)
    assert heard.step_ends == []
    for _ in range(STEPS):
        net(ONES)
    assert heard.step_ends == [(StepSourceKind.CALL, "Linear")] * STEPS


@pytest.mark.parametrize("what", ["optimizer", "backward", "torch.compile"])
def test_hooks_on_modules_are_removed_once_something_better_ends_steps(heard: Heard, what: str) -> None:
    hooks, net = nn.modules.module._global_forward_hooks, a_net()
    assert hooks
    if what == "optimizer":
        SGD(net.parameters(), 0.1)
    elif what == "backward":
        run_backward(net)
    else:
        torch.compile(net)
    assert not hooks
    with torch.no_grad():
        net(ONES)
    assert heard.by(StepSourceKind.CALL) == 0


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
            inner(ONES)
            net(ONES)
    assert heard.step_ends == [(StepSourceKind.CALL, kind.__name__)] * STEPS
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
def test_calls_that_one_call_of_a_library_makes_end_one_step(heard: Heard, name: str, steps: int) -> None:
    library: dict[str, Any] = {}
    exec(compile(LIBRARY, "/lib/site-packages/solver.py", "exec"), library)
    net = a_net()
    with torch.no_grad():
        for _ in range(STEPS):
            library[name](net, ONES if name == "solve" else [ONES] * 3)
    assert heard.by(StepSourceKind.CALL) == steps


# what to give to --step-function where nothing ends a step


def task(net: torch.nn.Linear) -> None:
    """One step of a script whose optimizer never steps."""
    for _ in range(2):
        torch.autograd.grad(net(ONES).sum(), net.weight)


def test_the_function_that_the_outermost_loop_calls_is_named(heard: Heard) -> None:
    net = a_net()
    optimizer = SGD(net.parameters(), 0.1)
    for _ in range(3):
        task(net)
    assert heard.detector.calls.step_functions() == (f"{__name__}.task",) and heard.step_ends == []
    del optimizer


def test_calls_that_no_global_hook_hears_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakscope.recorder.steps.rank_exit._MAX_NAMED", 100)  # other tests have such modules too
    detector = StepDetector()
    (calls,) = missing_step_hints(detector)
    assert "--step-function" in calls and f"{__name__}.OwnCall.__call__" in calls
    detector.optimizer_created(SGD([torch.ones(2, requires_grad=True)], 0.1))
    for _ in range(3):
        detector.backward_began()
        detector.backward_ended()
    assert len(missing_step_hints(detector)) == 2 and missing_step_hints(None) == ()


# sizes of inputs


class Net(nn.Module):
    """Takes tensors in several ways, and calls another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any, batch: Any = None, *, mask: Any = None) -> torch.Tensor:
        result: torch.Tensor = self.inner(x if isinstance(x, torch.Tensor) else batch["x"])
        return result


def test_input_sizes_of_the_outermost_calls_are_added_up_and_later_sampled() -> None:
    inputs, patches, net = StepInputs(), Patches(), Net()
    inputs.install(patches)
    net(ONES)
    net(torch.ones(3, 4), mask=torch.ones(5))
    assert inputs.taken() == (2 * 4 + 3 * 4 + 5, 2)
    net(ONES)
    net(None, {"x": ONES, "ids": [torch.ones(3)]})
    assert inputs.taken() == (2 * 4 + 2 * 4 + 3, 1)
    assert inputs.taken() == (None, 0)
    noted = []
    for step in range(4, 42):
        net(ONES)
        if inputs.taken()[0] is not None:
            noted.append(step)
    assert noted == [*range(4, 18), 25, 33, 41], "every eighth of the later steps"
    patches.take_out()
    assert not patches.guard.lost
