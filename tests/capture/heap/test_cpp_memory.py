"""Values read from C++ memory are correct; what C++ may free meanwhile and invalid addresses are not read."""

from __future__ import annotations

import _thread
import collections
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from leakscope.graph.model import HeapGraph
from leakscope.heap import autograd
from leakscope.heap import snapshot as heap
from leakscope.heap.autograd import Types, contents_of, node_holds, own_memory, pack_hook_at, saved_holds
from leakscope.process.guard import _between, _enter, _leave

SIZE = 4321
"""Elements of tensors that are told apart by their size."""


def node_that_saves() -> Any:
    return torch.ones(SIZE, requires_grad=True).exp().grad_fn


def begin(engine: Any) -> None:
    """As torch/autograd/graph.py: while C++ runs, this is the innermost frame of its thread."""
    engine.run_backward()


@contextmanager
def another_thread_runs_a_backward(around: Any = lambda function: function) -> Iterator[None]:
    running, over = _thread.allocate_lock(), _thread.allocate_lock()
    running.acquire()
    thread = _thread.start_new_thread
    ended = _thread.allocate_lock()
    ended.acquire()

    def run() -> None:
        begin(SimpleNamespace(run_backward=around(running.acquire)))
        ended.release()

    with over:
        number = thread(run, ())
        while number not in sys._current_frames() or sys._current_frames()[number].f_code is run.__code__:
            pass
        try:
            yield
        finally:
            running.release()
            ended.acquire()


def read(node: Any) -> tuple[list[Any], Types]:
    types = Types()
    with own_memory() as words:
        return list(node_holds(node, types, words)), types


@pytest.mark.parametrize("pure", [False, True])
def test_a_node_is_not_read_while_another_thread_runs_a_backward(monkeypatch: pytest.MonkeyPatch, pure: bool) -> None:
    monkeypatch.setattr(autograd, "_PATIENCE_S", 0.01)
    node = node_that_saves()
    around = (lambda function: _between(function, _enter, _leave, True)) if pure else (lambda function: function)
    with another_thread_runs_a_backward(around):
        held, types = read(node)
        assert types.at_rest.disturbed and types.gaps
        assert [each.target for each in held if each.name.startswith("saved")] == [None]
    held, types = read(node)
    assert not types.at_rest.disturbed and not types.gaps
    assert any(each.target is not None and each.name == "saved result" for each in held)


def test_a_snapshot_beside_a_backward_reports_what_it_has_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "_PATIENCE_S", 0.0)
    kept = node_that_saves()
    with another_thread_runs_a_backward():
        beside = heap.take_heap_snapshot(1, "step")
    after = heap.take_heap_snapshot(2, "step")
    assert beside.hides and autograd.UNREAD in beside.unjudged
    assert not after.hides and autograd.UNREAD not in after.unjudged and kept is not None


def test_only_a_saved_tensor_owned_by_python_is_followed() -> None:
    tensor = torch.ones(SIZE, requires_grad=True)
    node = tensor.exp().grad_fn
    make = getattr(torch._C._autograd, "_make_saved_tensor", None)
    with own_memory() as words:
        assert not list(saved_holds(node._raw_saved_result, "saved", Types(), words))  # type: ignore[union-attr]
        if make is not None:
            (held,) = saved_holds(make(tensor, False), "saved", Types(), words)
            assert held.target is tensor


DANGLING = """
    import torch
    from leakscope.heap.snapshot import take_heap_snapshot

    x = torch.ones(300, requires_grad=True)
    kept = [x.exp().grad_fn._raw_saved_result for _ in range(200)]
    filled = [bytes(700 + k) for k in range(2000)]
    assert len(take_heap_snapshot(1, "step").heap)
"""


@pytest.mark.process
def test_saved_tensors_whose_node_is_gone_are_not_read() -> None:
    env = {**os.environ, "MALLOC_PERTURB_": "165"}  # what is freed is overwritten at once
    command = [sys.executable, "-c", textwrap.dedent(DANGLING)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]


def pack(tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    return "kept", tensor.detach()


def unpack(packed: tuple[str, torch.Tensor]) -> torch.Tensor:
    return packed[1]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(given)
        return given * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def test_a_pack_hook_is_found_and_no_other() -> None:
    with saved_tensors_hooks(pack, unpack):
        built_in = leaf().exp().grad_fn
        doubled = Doubled.apply(leaf())  # in torch 2.10 its node goes with it
    custom = doubled.grad_fn
    plain: Any = leaf().exp().grad_fn
    assert built_in is not None
    with own_memory() as words:
        for saved in (built_in._raw_saved_result, custom._raw_saved_tensors[0]):
            found = contents_of(saved, words, {})
            assert found is not None and found.payload[0] == "kept"
            assert (found.unpack_hook, found.pack_hook_at) == (unpack, id(pack))
            assert pack_hook_at(saved, found.payload, pack, words) == 0
        assert pack_hook_at(plain._raw_saved_result, None, None, words) == 0


def test_invalid_addresses_read_as_nothing() -> None:
    before = os.listdir("/proc/self/fd")
    with own_memory() as words:
        assert (
            words(0, 1) == words(8, 4) == words(id(pack) + 1, 1) == words(1 << 60, 2) == words((1 << 64) - 8, 2) == ()
        )
        assert words(id(pack), 2)[1] == id(type(pack))
    assert os.listdir("/proc/self/fd") == before


def _unexplained(graph: HeapGraph, name: str) -> list[int]:
    objects = [graph.object(k) for k in range(len(graph))]
    return [o.unexplained for o in objects if name in o.name]


def test_every_reference_to_a_pack_hook_is_counted() -> None:
    heavy = torch.ones(50)

    def packs_with_heavy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach() * heavy.sum()

    with saved_tensors_hooks(packs_with_heavy, unpack):
        losses = [leaf().exp().tanh().sum() for _ in range(3)]
    assert _unexplained(heap.take_heap_snapshot(1, "step").heap, "packs_with_heavy") == [0]
    assert losses


def test_a_snapshot_leaves_no_node_behind() -> None:
    made = leaf() * 2
    later = made.exp()
    made.register_hook(lambda grad: grad * later)
    del made
    heap.take_heap_snapshot(1, "step")
    alive = []
    for step in (2, 3):
        types = collections.Counter(type(one).__name__ for one in gc.get_objects())
        alive.append([types[name] for name in ("OrderedDict", "RemovableHandle", "DelayedError")])
        heap.take_heap_snapshot(step, "step")
    assert alive[0] == alive[1] and alive[0][0] > 0
