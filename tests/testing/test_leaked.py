"""In place of torch's `check_leaked_tensors`: the same answers where torch's sees, more where it does not."""

from __future__ import annotations

import ast
import gc
import importlib.util
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward

from leakscope.testing import check_leaked_tensors


@pytest.fixture(scope="module")
def of_torch() -> Callable[..., Any]:
    """Torch's own, from its source: the module it is in needs packages of torch's test suite."""
    found = importlib.util.find_spec("torch.testing._internal.common_utils")
    assert found is not None and found.origin is not None
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    own = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check_leaked_tensors"]
    names: dict[str, Any] = {"contextmanager": contextmanager, "gc": gc, "torch": torch, "warnings": warnings}
    exec(compile(ast.Module(own, type_ignores=[]), found.origin, "exec"), names)
    check: Callable[..., Any] = names["check_leaked_tensors"]
    return check


@pytest.fixture(autouse=True)
def gc_garbage() -> Iterator[None]:
    """What torch's own fills and never empties."""
    yield
    gc.garbage.clear()


class Cell:
    """Something of a user's that dies with a word."""

    def __init__(self, value: torch.Tensor, said: list[str]) -> None:
        self.value, self.said, self.own = value, said, self

    def __del__(self) -> None:
        self.said.append("finalized")


class Odd:
    """Claims another class, with code of its own."""

    asked = 0

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        Odd.asked += 1
        return type(self)


def leave_a_cycle() -> None:
    outputs: list[Any] = [torch.ones(1000)]
    outputs.append(outputs)


def leave_what_gc_never_sees() -> None:
    hidden = torch.ones(10, requires_grad=True) * 2
    hidden.register_hook(lambda grad, own=hidden: grad + own)


def leave_a_closure_as_pipelining_did() -> None:
    """A recursive closure over the outputs of a stage (pytorch#136507)."""
    outputs: list[torch.Tensor] = []

    def extract(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            outputs.append(value)
        else:
            for inner in value:
                extract(inner)

    extract((torch.ones(4, requires_grad=True) * 2, [torch.ones(5, requires_grad=True) * 3]))
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def run_a_stage_of_torchs() -> None:
    leaf = torch.ones(8, requires_grad=True)
    stage_backward((leaf * 2).sum(), None, (leaf,))


def run(check: Callable[..., Any], leak: Callable[[], object], *given: Any) -> tuple[list[Any], list[str]]:
    """(what the check yields, what it warns of)."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with check(*given) as leaked:
            leak()
    return leaked, [str(warning.message) for warning in told]


@pytest.mark.parametrize(
    ("leak", "count"),
    [(leave_a_cycle, 1), (leave_a_closure_as_pipelining_did, 2), (run_a_stage_of_torchs, 0), (lambda: None, 0)],
    ids=["cycle", "closure", "stage", "nothing"],
)
def test_both_say_the_same_of_what_gc_sees(of_torch: Callable[..., Any], leak: Callable[[], None], count: int) -> None:
    theirs, _ = run(of_torch, leak, 0)
    ours, told = run(check_leaked_tensors, leak, 0)
    # torch's lists the tensors' gradients as well where Python has seen them
    assert bool(theirs) == bool(ours) and len(ours) >= count and (not count) == (not ours)
    assert all(type(tensor) is torch.Tensor for tensor in ours)
    assert told == ([f"{len(ours)} tensors were found in the garbage."] if count else [])


def test_the_holder_is_named_and_only_as_many_are_told_as_asked_for() -> None:
    def two() -> None:
        leave_a_cycle()
        leave_a_closure_as_pipelining_did()

    _, (one,) = run(check_leaked_tensors, two)
    _, (both,) = run(check_leaked_tensors, two, 2)
    assert "Leaks (1)" in one and "Leaks (2)" in both
    assert "closure extract" in both and "cut here" in both


def test_a_cycle_through_cpp_is_found_that_torchs_cannot_see_and_is_not_blamed_again(
    of_torch: Callable[..., Any],
) -> None:
    theirs, silent = run(of_torch, leave_what_gc_never_sees)
    ours, told = run(check_leaked_tensors, leave_what_gc_never_sees)
    assert (theirs, silent) == ([], [])
    assert [tuple(tensor.shape) for tensor in ours].count((10,)) == 2 and "gc cannot free the cycle" in told[0]
    del ours
    assert run(check_leaked_tensors, lambda: None) == ([], [])
    again, _ = run(check_leaked_tensors, leave_what_gc_never_sees)
    assert [tuple(tensor.shape) for tensor in again].count((10,)) == 2


def test_gc_and_the_garbage_stay_as_they_were(of_torch: Callable[..., Any]) -> None:
    said: list[str] = []
    flags, thresholds = gc.DEBUG_UNCOLLECTABLE, gc.get_threshold()
    gc.set_debug(flags)
    gc.set_threshold(0)  # a collection that comes by chance, inside the block, would run the finalizer
    try:
        ours, _ = run(check_leaked_tensors, lambda: Cell(torch.ones(7), said))
        assert (gc.get_debug(), gc.garbage, gc.isenabled(), said) == (flags, [], True, [])
    finally:
        gc.set_debug(0)
        gc.set_threshold(*thresholds)
    gone = weakref.ref(ours[0])
    del ours
    gc.collect()
    assert gone() is None and said == ["finalized"]
    # torch's runs the finalizer and keeps the object all the same
    run(of_torch, lambda: Cell(torch.ones(7), said), 0)
    assert said == ["finalized"] * 2 and any(type(obj) is Cell for obj in gc.garbage)


def test_no_object_is_asked_for_its_class(of_torch: Callable[..., Any]) -> None:
    def leak() -> None:
        odd: Any = Odd()
        odd.tensor, odd.own = torch.ones(3), odd

    Odd.asked = 0
    assert len(run(check_leaked_tensors, leak)[0]) == 1 and Odd.asked == 0
    run(of_torch, leak, 0)
    assert Odd.asked > 0


def test_other_types_are_matched_and_memory_without_a_tensor_counts() -> None:
    def both() -> None:
        kept: list[Any] = [torch.nn.Parameter(torch.ones(4)), torch.ones(5)]
        kept.append(kept)

    def storage_alone() -> None:
        kept: list[Any] = [torch.ones(6).untyped_storage()]
        kept.append(kept)

    parameters, _ = run(check_leaked_tensors, both, 1, torch.nn.Parameter)
    assert [type(found) for found in parameters] == [torch.nn.Parameter]
    assert len(run(check_leaked_tensors, both, 1, (torch.Tensor, list))[0]) == 3
    assert [found.nbytes() for found in run(check_leaked_tensors, storage_alone)[0]] == [24]
    assert run(check_leaked_tensors, storage_alone, 1, torch.nn.Parameter)[0] == []


def test_the_blocks_own_error_goes_first() -> None:
    with pytest.raises(ZeroDivisionError), check_leaked_tensors() as leaked:
        leave_a_cycle()
        print(1 / 0)
    assert leaked == []


def test_it_decorates_as_torchs_does(of_torch: Callable[..., Any]) -> None:
    for check in (of_torch, check_leaked_tensors):
        with pytest.warns(UserWarning, match="1 tensors were found in the garbage"):
            check(0)(leave_a_cycle)()
