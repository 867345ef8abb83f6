"""A storage lives from the operation that made it to its release; what nothing uses at the peak is avoidable."""

from __future__ import annotations

import _thread
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest
import torch
from support.lived_steps import BIG, KIB, REST, big, idle_bytes, measured_peak, scratch, watched
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from leakscope.process.patches import Patches
from leakscope.recorder.lifetimes.dispatch_mode import AllocationSites
from leakscope.recorder.lifetimes.tracker import LifetimeTracker
from leakscope.report.finding_text import advice


def of(kib: int) -> Tensor:
    """A tensor of its own size: so many KiB above that of `big`."""
    return torch.ones((BIG + 1024 * kib) // 4)


def in_thread(make: Callable[[], Tensor]) -> Tensor:
    made: list[Tensor] = []
    thread = threading.Thread(target=lambda: made.append(make()))
    thread.start()
    thread.join()
    return made[0]


def test_what_is_idle_at_the_peak_is_what_nothing_uses_afterwards() -> None:
    kept = big()

    def step() -> None:
        whole = of(1)
        view = whole[:4]
        resized = torch.ones(1).resize_((BIG + 2048) // 4)
        array = of(3).numpy()
        listed_after, listed_before = of(4), of(5)
        listed_before.tolist()
        shrunk = of(6)
        shrunk.untyped_storage().resize_(0)
        elsewhere = in_thread(lambda: of(7))
        elsewhere.sum()
        kept.sum()
        scratch()
        view.sum(), array.sum(), listed_after.tolist()
        del resized, listed_before, shrunk

    lived = watched(step)
    assert sorted(idle_bytes(lived)) == [BIG + 1024 * kib for kib in (2, 5, 7)]
    alive = sum(BIG + 1024 * kib for kib in (1, 2, 3, 4, 5, 7))
    assert lived.step.peak_bytes - lived.step.start_bytes == alive + REST


def test_what_backward_needs_is_in_use() -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def step(retain: bool = False) -> None:
        hidden = weight * 2
        loss = hidden.sin().sum()
        del hidden
        if retain:
            loss.backward(retain_graph=True)
            weight.grad = None
        scratch()
        if not retain:
            loss.backward()
        weight.grad = None

    assert idle_bytes(watched(step)) == []
    kept = watched(lambda: step(retain=True))
    assert kept.avoidable == pytest.approx(BIG, rel=0.05)
    assert "retain_graph=True" in advice(kept.reported[0])


class Wrapped(torch.Tensor):
    """A wrapper subclass: no storage of its own, an inner tensor that has one."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Self:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        bare = [arg.inner if isinstance(arg, Wrapped) else arg for arg in args]
        out = func(*bare, **(kwargs or {}))
        return cls(out) if isinstance(out, torch.Tensor) else out


def test_inner_tensors_of_a_subclass_are_seen() -> None:
    def step() -> None:
        kept = Wrapped(big())
        used = kept + kept
        scratch()
        used + used

    assert idle_bytes(watched(step)) == [BIG]


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_tensors_of_a_checkpoint_are_in_use(reentrant: bool) -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def block(x: Tensor) -> Tensor:
        hidden = x * weight
        scratch()
        return hidden.sin()

    def step() -> None:
        loss = checkpoint(block, torch.ones(BIG // 4, requires_grad=True), use_reentrant=reentrant).sum()
        loss.backward()
        weight.grad = None

    lived = watched(step)
    assert lived.unjudged == ()
    assert idle_bytes(lived) == []
    # the random state that checkpoint keeps is made in C++, past the dispatcher: two of 5056 bytes
    assert measured_peak(step) - 2 * 5056 <= lived.step.peak_bytes - lived.step.start_bytes <= measured_peak(step)


def test_what_a_library_holds_is_not_the_users() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            half = x[:4].clone()
            del x
            scratch()
            return half

    net = Twice()

    def step() -> None:
        net(big())

    lived = watched(step)
    assert lived.avoidable < KIB
    assert [one.by for one in lived.peak.idle if one.row.bytes >= BIG] == ["library"]  # type: ignore[union-attr]
    assert lived.reported == []


def test_module_path_and_phase_are_recorded() -> None:
    net = nn.Sequential(nn.Linear(256, 256), nn.Sequential(nn.ReLU()))

    def step() -> None:
        hidden = net(torch.ones(256, 256))
        hidden.sum()
        scratch()

    lived = watched(step)
    assert lived.peak is not None
    rows = [one.row for one in lived.peak.idle if one.row.module == "Sequential.1.0"]
    assert rows and rows[0].phase == "forward"
    assert "(aten::relu)" in rows[0].made_at


def test_a_dispatch_mode_of_the_user_is_left_alone() -> None:
    class Own(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Own():
        lived = watched(scratch)
    assert "dispatch mode" in lived.unjudged[0].why
    assert torch._C._len_torch_dispatch_stack() == 0


def test_losses_gc_and_hooks_are_as_without_recording() -> None:
    def train(run: Callable[[Callable[[], None]], object]) -> list[str]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(net.parameters())
        losses: list[str] = []

        def step() -> None:
            optimizer.zero_grad()
            loss = net(torch.randn(8, 32)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())

        run(step)
        return losses

    plain = train(lambda step: [step() for _ in range(3)])
    collecting, hooks = gc.isenabled(), len(nn.modules.module._global_forward_hooks)
    assert train(lambda step: watched(step, times=3)) == plain
    assert (gc.isenabled(), len(nn.modules.module._global_forward_hooks)) == (collecting, hooks)
    assert torch._C._len_torch_dispatch_stack() == 0


layer = nn.Linear(16, 1024)
given = torch.ones(1024, 16)
kept: list[torch.Tensor] = []


def keeps(grad: torch.Tensor) -> None:
    kept[:] = [grad]


def through_views(x: torch.Tensor) -> torch.Tensor:
    return (x.view(512, 2048) * 2).sum() + (x.t() * 3).sum() + x[:10].sum()


def kept_by_a_hook(x: torch.Tensor) -> torch.Tensor:
    first, second = x * 2, x * 3
    first.register_hook(keeps)
    return first.exp().sum() + second.exp().sum() + (first * second).sum()


def part_kept_by_a_hook(x: torch.Tensor) -> torch.Tensor:
    first, second = x * 3, x * 4
    for part in (first, second):
        assert part.grad_fn is not None
        part.grad_fn.register_hook(lambda given, _: kept.append(given[0]))
    return first.sum() + second.sum()


@pytest.mark.parametrize("loss", [part_kept_by_a_hook, through_views, kept_by_a_hook])
def test_the_peak_equals_that_of_a_plain_step_where_gradients_are_summed(loss: Callable[[Tensor], Tensor]) -> None:
    def step() -> None:
        loss(layer(given)).backward()
        kept.clear()
        layer.zero_grad()

    lived = watched(step)
    assert lived.peak is not None, lived.unjudged
    assert abs(lived.peak.rise - measured_peak(step)) < 1 << 12


def in_bare_thread(mode: Any, operator: Any, arguments: tuple[Any, ...], done: Callable[[], bool]) -> bool:
    """Hands the mode an operation as C++ does: its own frame is the thread's lowest. Waits for the thread's end."""
    threads = _thread._count()
    _thread.start_new_thread(mode.__torch_dispatch__, (operator, (), arguments))
    until = time.monotonic() + 60.0
    while not (done() and _thread._count() <= threads) and time.monotonic() < until:
        time.sleep(0)  # lets the other thread have its turn
    return done()


def test_views_make_no_memory() -> None:
    there, makers = torch.ones(8), AllocationSites(Patches())
    assert makers.enter(False) == ""
    try:
        views = [there.detach(), there[2:], there.view(2, 4).t(), there.add_(1)]
        made = [torch.tensor([1.0]), there + 1, torch.empty(2).resize_(9), there.view(2, 4).t().contiguous()]
    finally:
        assert makers.leave()
    assert all(one.untyped_storage()._cdata not in makers.made_at for one in views)
    assert [makers.made_at[one.untyped_storage()._cdata].split("(")[1] for one in made] == [
        "aten::lift_fresh)", "aten::add)", "aten::empty)", "aten::clone)",
    ]  # fmt: skip


def test_operations_of_threads_without_python_frames_count() -> None:
    @contextmanager
    def no_peak(step: int, occasion: str) -> Iterator[Any]:
        yield None

    watch, tensor = LifetimeTracker(0, no_peak), torch.ones(3)
    watch._enter(1)
    try:
        before = len(watch._table.operations)
        assert in_bare_thread(
            watch._mode, torch.ops.aten.add_.Tensor, (tensor, 1), lambda: len(watch._table.operations) > before
        )
    finally:
        assert watch.leave()
    assert tensor.tolist() == [2.0] * 3
    watch.forget()
