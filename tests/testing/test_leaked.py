"""`check_leaked_tensors` and `live_tensors` find what torch's helpers and gc find, and what these cannot see."""

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

from leakscope.findings.live_objects import RetentionKind
from leakscope.testing import check_leaked_tensors, live_tensors


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
    """A cycle with a finalizer."""

    def __init__(self, value: torch.Tensor, finalized: list[str]) -> None:
        self.value, self.finalized, self.own = value, finalized, self

    def __del__(self) -> None:
        self.finalized.append("finalized")


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


def run(check: Callable[..., Any], leak: Callable[[], object], *given: Any) -> tuple[list[Any], list[str]]:
    """(what the check yields, what it warns of)."""
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        with check(*given) as leaked:
            leak()
    ours = (warning for warning in reported if not issubclass(warning.category, ResourceWarning))  # of pytest's files
    return leaked, [str(warning.message) for warning in ours]


@pytest.mark.parametrize(
    ("leak", "count"),
    [(leave_a_cycle, 1), (leave_a_closure_as_pipelining_did, 2), (lambda: None, 0)],
    ids=["cycle", "closure", "nothing"],
)
def test_both_find_what_gc_sees(of_torch: Callable[..., Any], leak: Callable[[], None], count: int) -> None:
    theirs, _ = run(of_torch, leak, 0)
    ours, reported = run(check_leaked_tensors, leak, 0)
    # torch's lists the tensors' gradients as well where Python has seen them
    assert bool(theirs) == bool(ours) and len(ours) >= count and (not count) == (not ours)
    assert all(type(tensor) is torch.Tensor for tensor in ours)
    assert reported == ([f"{len(ours)} tensors were found in the garbage."] if count else [])


def test_the_cycle_is_named_and_the_number_of_findings_limited() -> None:
    def two() -> None:
        leave_a_cycle()
        leave_a_closure_as_pipelining_did()

    _, (one,) = run(check_leaked_tensors, two)
    _, (both,) = run(check_leaked_tensors, two, 2)
    assert "Leaks (1)" in one and "Leaks (2)" in both
    assert "closure extract" in both and "cut here" in both


def test_an_uncollectable_cycle_is_found_once(
    of_torch: Callable[..., Any],
) -> None:
    theirs, silent = run(of_torch, leave_what_gc_never_sees)
    ours, reported = run(check_leaked_tensors, leave_what_gc_never_sees)
    assert (theirs, silent) == ([], [])
    assert [tuple(tensor.shape) for tensor in ours].count((10,)) == 2 and "gc cannot free the cycle" in reported[0]
    del ours
    assert run(check_leaked_tensors, lambda: None) == ([], [])


def test_gc_state_and_garbage_are_as_found(of_torch: Callable[..., Any]) -> None:
    finalized: list[str] = []
    flags, thresholds = gc.DEBUG_UNCOLLECTABLE, gc.get_threshold()
    gc.set_debug(flags)
    gc.set_threshold(0)  # a collection that comes by chance, inside the block, would run the finalizer
    try:
        ours, _ = run(check_leaked_tensors, lambda: Cell(torch.ones(7), finalized))
        assert (gc.get_debug(), gc.garbage, gc.isenabled(), finalized) == (flags, [], True, [])
    finally:
        gc.set_debug(0)
        gc.set_threshold(*thresholds)
    gone = weakref.ref(ours[0])
    del ours
    gc.collect()
    assert gone() is None and finalized == ["finalized"]
    # torch's runs the finalizer and keeps the object all the same
    run(of_torch, lambda: Cell(torch.ones(7), finalized), 0)
    assert finalized == ["finalized"] * 2 and any(type(obj) is Cell for obj in gc.garbage)


def test_other_types_and_storages_are_found() -> None:
    def both() -> None:
        kept: list[Any] = [torch.nn.Parameter(torch.ones(4)), torch.ones(5)]
        kept.append(kept)

    def storage_alone() -> None:
        kept: list[Any] = [torch.ones(6).untyped_storage()]
        kept.append(kept)

    parameters, _ = run(check_leaked_tensors, both, 1, torch.nn.Parameter)
    assert [type(found) for found in parameters] == [torch.nn.Parameter]
    assert [found.nbytes() for found in run(check_leaked_tensors, storage_alone)[0]] == [24]


def test_an_error_of_the_block_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), check_leaked_tensors() as leaked:
        leave_a_cycle()
        print(1 / 0)
    assert leaked == []


def by_hand() -> int:
    """What people write (discuss.pytorch.org/t/how-to-debug-causes-of-gpu-memory-leaks/6741)."""
    return sum(torch.is_tensor(obj) for obj in gc.get_objects())


def test_added_memory_is_counted_and_named() -> None:
    losses: list[torch.Tensor] = []
    before, counted = live_tensors(), by_hand()
    losses += [torch.ones(1000), torch.ones(500)]
    losses.append(losses[0][10:])
    after = live_tensors()
    added = after.diff(before)
    assert by_hand() - counted == after.count - before.count == added.more == 3
    assert (added.storages, added.bytes) == (2, 6000) and after.bytes - before.bytes == 6000
    assert after.storages - before.storages == 2
    name = "losses in test_added_memory_is_counted_and_named()"
    assert sum(held.bytes for held in added.lines) == 6000 and added.lines[0].name == name
    assert name in str(added) and added and not after.diff(after)


def test_a_tensor_at_the_address_of_another_is_new() -> None:
    first = torch.ones(1000)
    before = live_tensors()
    address = first.data_ptr()
    del first
    second = torch.ones(1000)  # as a rule in the memory that was just given back
    added = live_tensors().diff(before)
    assert added.bytes == 4000 and added.more == 0, second.data_ptr() == address


def test_memory_held_by_autograd_is_counted() -> None:
    weight = torch.ones(300, requires_grad=True)
    before, counted = live_tensors(), by_hand()
    loss = (weight * 2).exp().sum()
    assert by_hand() - counted == 1
    added = live_tensors().diff(before)
    assert (added.bytes, added.more) == (1200 + 4 + 8, 3), loss  # what exp gave, the sum, and the number 2
    assert added.lines[0].name.startswith("loss in ")


def test_garbage_is_counted_as_awaiting_gc() -> None:
    before = live_tensors()
    kept: list[Any] = [torch.ones(100)]
    kept.append(kept)
    gone = weakref.ref(kept[0])
    del kept
    after = live_tensors()
    [held] = after.diff(before).lines
    assert (held.kept, held.bytes) == (RetentionKind.WAITS_FOR_GC, 400)
    gc.collect()
    assert gone() is None  # a count holds nothing
    assert not live_tensors().diff(before)


class Odd:
    """Claims another class, with code of its own."""

    called = 0

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        Odd.called += 1
        return type(self)


def test_no_code_of_an_object_runs() -> None:
    odd: Any = Odd()
    odd.tensor = torch.ones(10)
    live_tensors()

    def leak() -> None:
        cycle: Any = Odd()
        cycle.tensor, cycle.own = torch.ones(3), cycle

    assert len(run(check_leaked_tensors, leak)[0]) == 1 and Odd.called == 0
    by_hand()
    assert Odd.called > 0
