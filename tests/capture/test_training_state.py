"""Two runs have equal checksums of the training exactly if they train alike to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from leakscope.options import Options
from leakscope.process.patches import Patches
from leakscope.recorder.recorder import Recorder
from leakscope.recorder.steps.detector import StepDetector, StepEnd, StepEvents
from leakscope.recorder.training_state import TrainingStateRecorder
from leakscope.run.damage import Damage
from leakscope.run.model import Ended
from leakscope.run.reader import read_rows
from leakscope.run.rows import EndKind, TrainingState
from leakscope.run.writer import RankFolder

Rows = tuple[TrainingState, ...]
Record = Callable[..., Rows]
STEPS = 4


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Runs a training and returns its rows."""
    runs = 0

    def recorded(training: Callable[..., object], *args: Any, notes: bool = False) -> Rows:
        nonlocal runs
        runs += 1
        folder, patches = RankFolder(tmp_path / str(runs), 0), Patches()
        state, clock = TrainingStateRecorder(folder), StepDetector(guard=patches.guard)
        steps = 0

        def step_ended(_: StepEnd) -> None:
            nonlocal steps
            steps += 1
            state.step_ended(steps, clock.called_module)

        state.install(patches)
        StepEvents(clock, step_ended).install(patches)
        try:
            torch.manual_seed(0)
            training(*args)
        finally:
            patches.take_out()
            folder.close()
        assert not patches.guard.lost, patches.guard.why
        assert (folder.path / "notes.jsonl").exists() == notes
        rows: Rows = read_rows(folder.path, Damage())["training"]
        return rows

    return recorded


def changed(one: Rows, other: Rows) -> list[tuple[bool, bool]]:
    """For each step, whether the parameters and the gradients differ."""
    assert len(one) == len(other)
    return [(a.parameters != b.parameters, a.gradients != b.gradients) for a, b in zip(one, other, strict=True)]


def train(change: Callable[[int, nn.Module], object] = lambda *_: None, scale: float = 1.0) -> None:
    net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(1, STEPS + 1):
        loss = net(torch.randn(3, 5)).square().mean() * scale
        loss.backward()
        change(step, net)
        optimizer.step()
        optimizer.zero_grad()


def test_equal_trainings_have_equal_rows(record: Record) -> None:
    first, again = record(train), record(train)
    assert first == again
    assert [(row.step, row.tensors, row.skipped, len(row.losses)) for row in first] == [
        (step, 8, 0, 1) for step in range(1, STEPS + 1)
    ]
    assert len({row.parameters for row in first}) == len({row.gradients for row in first}) == STEPS


def test_a_difference_in_one_bit_changes_its_step_and_all_later_ones(record: Record) -> None:
    def weight(step: int, net: Any) -> None:
        if step == 2:
            with torch.no_grad():
                value = net[0].weight[3, 2]
                value.copy_(torch.nextafter(value, torch.tensor(math.inf)))

    def gradient(step: int, net: Any) -> None:
        if step == 2:
            value = net[2].bias.grad[0]
            value.copy_(torch.nextafter(value, torch.tensor(math.inf)))

    plain = record(train)
    by_weight, by_gradient = (changed(plain, record(train, change)) for change in (weight, gradient))
    assert by_weight[:2] == [(False, False), (True, False)] and all(parameters for parameters, _ in by_weight[1:])
    assert by_gradient[0] == (False, False) and by_gradient[1][1]
    seeded = record(lambda: (torch.manual_seed(1), train()))
    assert changed(plain, seeded) == [(True, True)] * STEPS


def test_recording_changes_no_bit_and_observes_no_mode(record: Record) -> None:
    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.operations: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.operations.append(str(func))
            return func(*args, **(kwargs or {}))

    def observed(results: list[Any]) -> None:
        net = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with Seen() as seen, torch.autocast("cpu"):
            for _ in range(STEPS):
                loss = net(torch.randn(2, 4)).square().sum()
                loss.backward()
                gradient = net.weight.grad
                assert gradient is not None
                versions = [net.weight._version, gradient._version]
                optimizer.step()
                results.append((loss.item(), versions, net.weight._version, gradient._version))
                optimizer.zero_grad()
        results += [seen.operations, torch.rand(1).item(), net.weight.tolist(), torch.is_grad_enabled()]

    alone: list[Any] = []
    torch.manual_seed(0)
    observed(alone)
    recorded: list[Any] = []
    rows = record(observed, recorded)
    assert recorded == alone
    assert [row.losses for row in rows] == [(each[0],) for each in alone[:STEPS]]


def test_each_optimizer_that_steps_counts(record: Record) -> None:
    def gan(critic_steps: int = 2, order: int = 1) -> None:
        made, judged = nn.Linear(2, 2), nn.Linear(2, 1)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (made, judged)]
        for _ in range(STEPS):
            for _ in range(critic_steps):
                optimizers[1].zero_grad()
                judged(made(torch.randn(3, 2)).detach()).mean().backward()
                optimizers[1].step()
            optimizers[0].zero_grad()
            (judged(made(torch.randn(3, 2))).mean() * order).backward()
            optimizers[0].step()

    rows = record(gan)
    assert rows == record(gan)
    # the first step ends with the critic's first call, every other with one of its calls
    assert {row.tensors for row in rows[2:]} == {4, 8}
    assert any(parameters for parameters, _ in changed(rows, record(gan, 2, -1)))


def test_a_training_without_optimizer_is_read_from_the_leaves_of_its_backwards(record: Record) -> None:
    def by_hand(shift: float = 0.0) -> None:
        weight, bias = torch.randn(3, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
        for _ in range(STEPS):
            (torch.randn(2, 3) @ weight + bias).square().sum().backward()
            with torch.no_grad():
                for parameter in (weight, bias):
                    assert parameter.grad is not None
                    parameter.sub_((0.1 + shift) * parameter.grad)
                    parameter.grad = None

    rows = record(by_hand)
    assert rows == record(by_hand) and [row.tensors for row in rows] == [4] * STEPS
    assert changed(rows, record(by_hand, 1e-6))[:2] == [(False, False), (True, True)]


def test_a_module_that_is_only_called_is_read(record: Record) -> None:
    def evaluate() -> None:
        net = nn.Linear(3, 3)
        with torch.inference_mode():
            for step in range(STEPS):
                net(torch.ones(1, 3))
                if step == 1:
                    net.weight.add_(1)

    rows = record(evaluate)
    assert [row.tensors for row in rows] == [2] * STEPS
    assert len({row.parameters for row in rows}) == 2


def one_step(parameter: Any, gradient: Any) -> None:
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    parameter.grad = gradient
    optimizer.step()


def of_one(record: Record, parameter: Any, gradient: Any = None) -> tuple[int, int, int, int]:
    """Checksums and counts of one tensor."""
    (row,) = record(one_step, parameter, gradient)
    return row.parameters, row.gradients, row.tensors, row.skipped


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 3, 1001])
def test_every_bit_of_every_type_and_layout_counts(record: Record, dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(1)
    values = torch.randn(count, 3).to(dtype)
    other = values.clone()
    other.view(torch.uint8).view(-1)[-1] ^= 0x80 if dtype.is_complex else 1  # the sign of the last part, or one ulp
    plain = of_one(record, values.clone())
    assert plain[2:] == (1, 0)
    assert of_one(record, other)[0] != plain[0]
    assert of_one(record, values.repeat(1, 2)[:, :3])[0] == plain[0]  # strided
    shifted = torch.zeros(values.numel() + 1, dtype=dtype)[1:].view_as(values)  # not aligned to words
    shifted.copy_(values)
    assert of_one(record, shifted)[0] == plain[0]
    assert of_one(record, values.flip(0))[0] != plain[0] or count == 1


def test_zero_has_a_sign_and_nan_is_equal_to_itself(record: Record) -> None:
    assert of_one(record, torch.zeros(2))[0] != of_one(record, -torch.zeros(2))[0]
    assert of_one(record, torch.full((2,), math.nan))[0] == of_one(record, torch.full((2,), math.nan))[0]


def test_gradients_of_all_kinds(record: Record) -> None:
    def sparse(value: float) -> torch.Tensor:
        return torch.sparse_coo_tensor([[0, 2]], [[1.0, 2.0], [value, 4.0]], (4, 2), check_invariants=False)

    weight = torch.ones(4, 2)
    none, dense = of_one(record, weight), of_one(record, weight, torch.zeros(4, 2))
    one, other = of_one(record, weight, sparse(3.0)), of_one(record, weight, sparse(5.0))
    assert len({none[1], dense[1], one[1], other[1]}) == 4
    assert [kind[2:] for kind in (none, dense, one)] == [(1, 0), (2, 0), (2, 0)]
    assert of_one(record, torch.ones(0, 2), torch.ones(0, 2))[2:] == (2, 0)
    assert of_one(record, torch.ones(2, device="meta"))[2:] == (0, 0)


class Wrapper(torch.Tensor):
    """As DTensor: a tensor without memory that has another one in a slot."""

    __slots__ = ("_local_tensor",)

    @staticmethod
    def __new__(cls, inner: torch.Tensor | None) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, (2,))  # type: ignore[attr-defined]
        if inner is not None:
            made._local_tensor = inner  # type: ignore[misc]
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("the script's code must not run")


class Named(nn.Parameter):
    """A subclass without operations of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("the script's code must not run")


def test_what_cannot_be_read_is_counted_and_no_code_of_a_subclass_runs(tmp_path: Path) -> None:
    folder, patches = RankFolder(tmp_path, 0), Patches()
    state = TrainingStateRecorder(folder)
    state.install(patches)
    inner, freed = torch.tensor([1.0, 2.0]), torch.ones(4)
    freed.untyped_storage().resize_(0)
    optimizer: Any = type("Optimizer", (), {})()
    optimizer.param_groups = [{"params": [Wrapper(inner), Wrapper(None), Named(inner), inner, inner, freed]}]
    state._after_optimizer(optimizer)
    state.step_ended(1, None)
    patches.take_out()
    (row,) = read_rows(folder.path, Damage())["training"]
    assert (row.tensors, row.skipped) == (3, 2)
    assert not (folder.path / "notes.jsonl").exists()


def test_losses_that_are_no_numbers(record: Record) -> None:
    def diverging() -> None:
        weight = nn.Parameter(torch.tensor([1.0]))
        for factor in (math.inf, math.nan, 1e30, 2.0):
            (weight * factor).sum().backward()
            weight.grad = None
        torch.autograd.backward([weight * 3, torch.stack([weight, weight])], [None, torch.ones(2, 1)])

    rows = record(diverging)
    assert rows == record(diverging)
    first, second, *others = [row.losses for row in rows]
    assert first == (math.inf,) and math.isnan(second[0]) and others == [(float(torch.tensor(1e30)),), (2.0,), (3.0,)]


def test_an_error_ends_the_checksums_and_nothing_else(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def failing(tensors: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise RuntimeError("no such thing")
        return [b""] * len(tensors)

    monkeypatch.setattr("leakscope.recorder.training_state._sums", failing)
    assert [row.step for row in record(train, notes=True)] == [1, 2]


@pytest.mark.parametrize("checksums", [False, True])
def test_without_the_option_nothing_is_installed_or_written(tmp_path: Path, checksums: bool) -> None:
    recorder = Recorder(Options(folder=tmp_path, by_hand=True, lifetimes=False, budget=0.0, checksums=checksums))
    recorder.attach()
    try:
        installed = {"training state", "run_backward"} & set(recorder.patches.names)
        train(lambda step, _: step > 1 and recorder.boundary())
        recorder.boundary()
    finally:
        recorder.finish(lambda steps: Ended(EndKind.FINISHED, 0, steps), with_snapshot=False)
    assert bool(installed) is checksums
    rows = read_rows(tmp_path / "rank_0000", Damage())["training"]
    assert [row.step for row in rows] == ([1, 2, 3, 4] if checksums else [])
    assert sum(len(row.losses) for row in rows) == (STEPS if checksums else 0)
