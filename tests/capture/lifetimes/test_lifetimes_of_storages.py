"""A storage lives from the operation that made it to the one that let it go, whatever tensors came and went over it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from support.lived_steps import KIB, Lived, measured_peak, watched
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leakscope.report.wording import advice, title

BIG = 256 * KIB
"""Bytes of the storage each test is about."""
REST = 4096 * KIB
"""Bytes that stand for the rest of the step: its peak."""


def big() -> Tensor:
    return torch.ones(BIG // 4)


def scratch() -> None:
    torch.zeros(REST // 4)


def idle_bytes(lived: Lived) -> list[int]:
    assert lived.peak is not None, lived.unjudged
    return [one.row.bytes for one in lived.peak.idle if one.row.bytes >= BIG]


def test_a_view_uses_its_storage() -> None:
    def step() -> None:
        tensor = big()
        view = tensor[:4]
        scratch()
        view.sum()

    assert idle_bytes(watched(step)) == []


def test_a_view_keeps_the_whole_storage() -> None:
    def step() -> None:
        view = big()[:4]
        view.sum()
        scratch()

    lived = watched(step)
    assert idle_bytes(lived) == [BIG]
    assert "view in" in title(lived.leaks[0])


def test_in_place_operations_are_uses() -> None:
    def step() -> None:
        tensor = big()
        scratch()
        tensor.add_(1)

    assert idle_bytes(watched(step)) == []


def test_out_argument_is_a_use() -> None:
    def step() -> None:
        tensor = big()
        scratch()
        torch.add(tensor.new_ones(BIG // 4), 1, out=tensor)

    assert idle_bytes(watched(step)) == []


def test_set_lets_the_old_storage_go() -> None:
    def step() -> None:
        tensor = big()
        tensor.set_(torch.ones(2).untyped_storage(), 0, (2,))
        scratch()
        tensor.sum()

    assert idle_bytes(watched(step)) == []


def test_data_swap_lets_the_old_storage_go() -> None:
    def step() -> None:
        tensor = big()
        tensor.data = tensor.new_empty(1)
        scratch()

    assert idle_bytes(watched(step)) == []


def test_data_swap_keeps_what_a_view_still_holds() -> None:
    def step() -> None:
        tensor = big()
        view = tensor[1:]
        tensor.data = tensor.new_empty(1)
        scratch()
        del view

    assert idle_bytes(watched(step)) == [BIG]


def test_resized_storage_counts_as_what_it_is_now() -> None:
    def step() -> None:
        tensor = torch.ones(1)
        tensor.resize_(BIG // 4)
        scratch()

    assert idle_bytes(watched(step)) == [BIG]


def test_what_backward_needs_is_in_use() -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def step() -> None:
        hidden = weight * 2
        loss = (hidden * hidden).sum()
        del hidden
        scratch()
        loss.backward()
        weight.grad = None

    assert idle_bytes(watched(step)) == []


def test_what_a_retained_graph_saved_is_the_users() -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def step() -> None:
        hidden = weight * 2
        loss = hidden.sin().sum()
        del hidden
        loss.backward(retain_graph=True)
        weight.grad = None
        scratch()

    lived = watched(step)
    assert lived.avoidable == pytest.approx(BIG, rel=0.05)
    assert "retain_graph=True" in advice(lived.leaks[0])


def test_a_graph_without_backward_is_the_users() -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def step() -> None:
        loss = (weight * 2).sin().sum()
        scratch()
        del loss

    assert watched(step).avoidable == pytest.approx(BIG, rel=0.05)


def test_checkpointed_region_keeps_its_input_only() -> None:
    weight = torch.ones(BIG // 4, requires_grad=True)

    def block(x: Tensor) -> Tensor:
        return (x * weight).sin().sin()

    def step() -> None:
        start = big()
        loss = checkpoint(block, start, use_reentrant=False).sum()
        scratch()
        loss.backward()
        weight.grad = None

    lived = watched(step)
    assert idle_bytes(lived) == [], [one.row for one in lived.peak.idle]  # type: ignore[union-attr]


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


class Named(torch.Tensor):
    """A subclass without a dispatch of its own."""


def test_a_plain_subclass_is_a_tensor_like_any_other() -> None:
    def step() -> None:
        kept = big().as_subclass(Named)
        kept.sum()
        scratch()

    assert idle_bytes(watched(step)) == [BIG]


def test_data_of_a_tensor_inside_a_custom_function_runs() -> None:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.data

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad

    weight = torch.ones(BIG // 4, requires_grad=True)

    def step() -> None:
        Same.apply(weight * 2).sum().backward()  # type: ignore[no-untyped-call]
        weight.grad = None

    assert watched(step).unjudged == ()


def test_tensors_made_in_another_thread_are_met_when_used() -> None:
    def step() -> None:
        made: list[Tensor] = []
        thread = threading.Thread(target=lambda: made.append(big()))
        thread.start()
        thread.join()
        made[0].sum()
        scratch()
        made.clear()

    lived = watched(step)
    assert lived.unjudged == ()
    assert lived.step.peak_bytes - lived.step.start_bytes >= REST


def test_what_lives_through_the_step_is_nobodys_drag() -> None:
    kept = big()
    cache: list[Tensor] = [big()]

    def step() -> None:
        kept.sum()
        scratch()

    assert idle_bytes(watched(step)) == []
    assert cache


def test_gradients_until_zero_grad_have_their_own_line() -> None:
    net = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        loss = net(torch.ones(4, 256)).sum()
        scratch()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    lived = watched(step)
    assert lived.avoidable == 0
    assert [title(f) for f in lived.findings if "zero_grad" in title(f)]
    assert lived.leaks == []


def test_what_only_a_library_holds_is_not_the_users() -> None:
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
    assert lived.leaks == []


class Output(dict[str, Any]):
    """Each value is an item and an attribute too."""


Pair = namedtuple("Pair", ["first", "second"])
Plain: Any = type("Plain", (), {})


def plain(first: Tensor, second: Tensor) -> Any:
    made = Plain()
    made.first, made.second = first, second
    return made


def test_one_object_that_holds_it_twice_is_what_is_let_go_of() -> None:
    def step() -> None:
        out = Output(first=big(), second=torch.ones(4))
        out.first = out["first"]  # type: ignore[attr-defined]
        scratch()
        out["second"].sum()

    (finding,) = watched(step).leaks
    assert finding.cut is not None
    assert (finding.cut.reference, finding.cut.frees_bytes) == ("local out", BIG)


@pytest.mark.parametrize("pair", [Pair, plain])
def test_a_class_that_a_call_in_the_script_makes_is_the_users(pair: Callable[[Tensor, Tensor], Any]) -> None:
    def step() -> None:
        kept = [pair(big(), torch.ones(REST // 4))]
        scratch()
        kept[0].second.sum()

    lived = watched(step)
    assert idle_bytes(lived) == [BIG]
    assert lived.avoidable >= BIG


def test_the_module_path_and_the_phase_are_told() -> None:
    net = nn.Sequential(nn.Linear(256, 256), nn.Sequential(nn.ReLU()))

    def step() -> None:
        hidden = net(torch.ones(256, 256))
        hidden.sum()
        scratch()

    lived = watched(step)
    assert lived.peak is not None
    told = [one.row for one in lived.peak.idle if one.row.module == "Sequential.1.0"]
    assert told and told[0]["phase"] == "forward"
    assert "(aten::relu)" in told[0]["made_at"]


def test_steps_that_differ_are_not_judged() -> None:
    turn = [0]

    def step() -> None:
        turn[0] += 1
        for _ in range(turn[0]):
            torch.ones(4) + 1
        scratch()

    lived = watched(step)
    assert lived.peak is None
    assert "same operations" in lived.unjudged[0].why


def test_an_own_dispatch_mode_is_left_alone() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Own(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Own():
        lived = watched(scratch)
    assert "dispatch mode of its own" in lived.unjudged[0].why
    assert torch._C._len_torch_dispatch_stack() == 0


def test_compiled_regions_are_said_to_be_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(2))
    try:
        assert "torch.compile" in watched(scratch).unjudged[0].why
    finally:
        torch._dynamo.reset()
        sys.modules["torch._dynamo.utils"].counters.clear()


def test_watching_changes_nothing() -> None:
    def train() -> list[str]:
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

    def plainly(step: Callable[[], None]) -> None:
        for _ in range(3):
            step()

    def watching(step: Callable[[], None]) -> None:
        assert watched(step, times=3).unjudged == ()

    run: Callable[[Callable[[], None]], None] = plainly
    plain = train()
    run = watching
    collecting, hooks = gc.isenabled(), len(nn.modules.module._global_forward_hooks)
    assert train() == plain
    assert (gc.isenabled(), len(nn.modules.module._global_forward_hooks)) == (collecting, hooks)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_nothing_is_kept_alive() -> None:
    def step() -> None:
        tensor = big()
        tensor.sum()
        scratch()

    assert watched(step).step.peak_bytes - watched(step).step.start_bytes == measured_peak(step)


def test_what_the_running_backward_has_just_used_is_a_note() -> None:
    source = torch.ones(REST // 4, requires_grad=True)

    def step() -> None:
        hidden = (source * source)[: BIG // 4].clone()
        hidden.sin().sum().backward()
        source.grad = None

    lived = watched(step)
    assert lived.avoidable >= BIG
    assert lived.findings != ()
    assert lived.leaks == []


def test_numpy_uses_what_it_was_handed_for_as_long_as_it_lives() -> None:
    def step() -> None:
        tensor = big()
        array = tensor.numpy()
        scratch()
        array.sum()

    lived = watched(step)
    assert idle_bytes(lived) == []
    assert lived.step.peak_bytes - lived.step.start_bytes == BIG + REST


def test_numpy_after_the_peak_is_a_use() -> None:
    def step() -> None:
        tensor = big()
        scratch()
        np.asarray(tensor).sum()

    assert idle_bytes(watched(step)) == []


def test_tolist_is_a_use_and_no_longer_than_that() -> None:
    def after() -> None:
        tensor = big()
        scratch()
        tensor.tolist()

    def before() -> None:
        tensor = big()
        tensor.tolist()
        scratch()
        del tensor

    assert idle_bytes(watched(after)) == []
    assert idle_bytes(watched(before)) == [BIG]


def test_a_storage_shrunk_to_nothing_is_let_go() -> None:
    def step() -> None:
        tensor = big()
        tensor.sum()
        tensor.untyped_storage().resize_(0)
        scratch()
        del tensor

    lived = watched(step)
    assert idle_bytes(lived) == []
    assert lived.step.peak_bytes - lived.step.start_bytes == REST == measured_peak(step)


def test_a_storage_shrunk_after_the_peak_counts_in_full_there() -> None:
    def step() -> None:
        tensor = big()
        tensor.sum()
        scratch()
        tensor.untyped_storage().resize_(0)

    lived = watched(step)
    assert lived.step.peak_bytes - lived.step.start_bytes == BIG + REST
    assert idle_bytes(lived) == [], "letting go of it is a use: nobody else did anything with it in between"


def test_a_storage_that_grows_by_itself_is_in_the_peak() -> None:
    def step() -> None:
        tensor = torch.ones(1)
        tensor.untyped_storage().resize_(BIG)
        scratch()
        tensor.sum()

    lived = watched(step)
    assert lived.step.peak_bytes - lived.step.start_bytes == BIG + REST
    assert idle_bytes(lived) == []


def test_the_methods_are_as_found() -> None:
    before = {name: vars(torch.Tensor).get(name) for name in ("numpy", "tolist", "__array__", "data_ptr")}
    resize = torch.UntypedStorage.resize_
    watched(scratch)
    assert {name: vars(torch.Tensor).get(name) for name in before} == before
    assert torch.UntypedStorage.resize_ is resize or torch.UntypedStorage.resize_ == resize


def test_a_birth_in_another_thread_is_idle_like_any_other() -> None:
    def step() -> None:
        made: list[Tensor] = []
        thread = threading.Thread(target=lambda: made.append(big()))
        thread.start()
        thread.join()
        made[0].sum()
        scratch()
        made.clear()

    lived = watched(step)
    assert lived.step.peak_bytes - lived.step.start_bytes == BIG + REST
    assert idle_bytes(lived) == [BIG]


@pytest.mark.parametrize("reentrant", [True, False])
def test_backward_of_a_checkpoint_makes_its_tensors_again(reentrant: bool) -> None:
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


class Twofold(torch.Tensor):
    """A wrapper of two inner tensors."""

    first: Tensor
    second: Tensor

    @staticmethod
    def __new__(cls, first: Tensor, second: Tensor) -> Self:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)  # type: ignore[attr-defined]
        made.first, made.second = first, second
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        first = func(*(arg.first if isinstance(arg, Twofold) else arg for arg in args), **(kwargs or {}))
        second = func(*(arg.second if isinstance(arg, Twofold) else arg for arg in args), **(kwargs or {}))
        return cls(first, second) if isinstance(first, torch.Tensor) and first.dim() else first


def test_each_inner_tensor_of_a_subclass_has_a_life_of_its_own() -> None:
    def step() -> None:
        kept = Twofold(big(), torch.ones(BIG // 2))
        kept.sin()
        scratch()
        kept.second.sum()

    assert idle_bytes(watched(step)) == [BIG]


def test_a_higher_order_operator_runs() -> None:
    def step() -> None:
        tensor = big()
        torch.ops.higher_order.cond(tensor.sum() > 0, torch.sin, torch.cos, (tensor,))
        scratch()

    lived = watched(step)
    assert lived.unjudged == ()
    assert idle_bytes(lived) == [BIG]


COMPILING = """
    import sys
    import torch

    torch.set_num_threads(1)
    backend, first = sys.argv[1], int(sys.argv[2])
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    regions = []
    for step in range(8):
        x = torch.ones(8, 64)
        if step == first:
            regions.append(torch.compile(lambda x: x * 2 + 1, backend=backend))
        for region in regions:
            x = region(x)
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch._dynamo.utils.counters["frames"]["ok"])
"""


@pytest.mark.parametrize(("backend", "first"), [("eager", 0), ("aot_eager", 1), ("aot_eager", 3), ("eager", 4)])
def test_compiled_regions_stay_compiled_and_are_counted_as_unseen(
    backend: str, first: int, script: Callable[[str], Path], leakscope: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = leakscope("run", "-q", "-o", "run", script(COMPILING), backend, first)
    assert done.stdout.splitlines()[0] == "1", "what was compiled without leakscope is compiled with it"
    assert "Dynamo does not know" not in done.stderr
    said = " ".join(done.stdout.split())
    assert (
        "late-release on rank 0: lifetimes were not watched: the script uses torch.compile: "
        "1 compiled region cannot be seen into" in said
    )
