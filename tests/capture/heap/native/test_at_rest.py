"""What C++ frees meanwhile is not read: nodes of a backward that runs, and saved tensors whose node is gone."""

from __future__ import annotations

import _thread
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

from leakscope.heap import autograd
from leakscope.heap import snapshot as heap
from leakscope.heap.autograd import Types, node_holds, own_memory, saved_holds
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


def test_a_backward_that_is_soon_over_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "_PATIENCE_S", 60.0)
    node = node_that_saves()
    running = another_thread_runs_a_backward()
    running.__enter__()
    _thread.start_new_thread(lambda: running.__exit__(None, None, None), ())
    held, types = read(node)
    assert not types.at_rest.disturbed and any(each.name == "saved result" for each in held)


@pytest.mark.look
def test_a_look_beside_a_backward_says_what_it_has_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "_PATIENCE_S", 0.0)
    kept = node_that_saves()
    with another_thread_runs_a_backward():
        beside = heap.look(1, "step")
    after = heap.look(2, "step")
    assert beside.hides and autograd.UNREAD in beside.unjudged
    assert not after.hides and autograd.UNREAD not in after.unjudged and kept is not None


def test_only_a_saved_tensor_that_python_owns_holds_something() -> None:
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
    from leakscope.heap.snapshot import look

    x = torch.ones(300, requires_grad=True)
    kept = [x.exp().grad_fn._raw_saved_result for _ in range(200)]
    filled = [bytes(700 + k) for k in range(2000)]
    assert len(look(1, "step").heap)
"""


@pytest.mark.process
def test_a_look_lives_through_saved_tensors_whose_node_is_gone() -> None:
    env = {**os.environ, "MALLOC_PERTURB_": "165"}  # what is freed is overwritten at once
    command = [sys.executable, "-c", textwrap.dedent(DANGLING)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
