"""Heap snapshots leave the process unchanged."""

from __future__ import annotations

import gc
import random
import resource
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from leakscope.heap import snapshot as heap


@pytest.fixture(autouse=True)
def no_automatic_gc() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    yield
    if collecting:
        gc.enable()


def asked(what: str) -> Any:
    def method(*_: Any, **__: Any) -> Any:
        _ASKED.append(what)
        raise AssertionError(f"{what} was called")

    return method


_ASKED: list[str] = []


class HostileMeta(type):
    __instancecheck__ = asked("__instancecheck__")
    __subclasscheck__ = asked("__subclasscheck__")
    __getattribute__ = asked("metaclass __getattribute__")
    __repr__ = asked("metaclass __repr__")
    __hash__ = asked("metaclass __hash__")
    __eq__ = asked("metaclass __eq__")


def _hostile_class() -> Any:
    names = (
        "__repr__",
        "__str__",
        "__eq__",
        "__getattr__",
        "__len__",
        "__bool__",
        "__iter__",
        "__getitem__",
        "__call__",
    )
    body: dict[str, Any] = {name: asked(name) for name in names}
    body["__hash__"] = object.__hash__
    body["__slots__"] = ("tensor", "__dict__", "__weakref__")
    body["__class__"] = property(asked("__class__"))
    body["value"] = property(asked("property"))
    body["__getattribute__"] = asked("__getattribute__")
    body["__torch_function__"] = asked("__torch_function__")
    body["__reduce_ex__"] = asked("__reduce_ex__")
    body["__sizeof__"] = asked("__sizeof__")
    return body


class ListThatAsks(list):  # type: ignore[type-arg]
    __iter__ = asked("list __iter__")
    __len__ = asked("list __len__")
    __getitem__ = asked("list __getitem__")


class DictThatAsks(dict):  # type: ignore[type-arg]
    __iter__ = asked("dict __iter__")
    __len__ = asked("dict __len__")
    items = asked("dict items")
    keys = asked("dict keys")
    values = asked("dict values")
    __missing__ = asked("__missing__")


class TensorThatAsks(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _WATCHING:
            asked("__torch_function__")()
        return super().__torch_function__(func, types, args, kwargs or {})

    @property
    def grad_fn(self) -> Any:
        return asked("grad_fn property")()

    @property
    def shape(self) -> Any:
        return asked("shape property")() if _WATCHING else super().shape

    __tensor_flatten__ = asked("__tensor_flatten__")


_WATCHING: list[bool] = []


class Proxy:
    """Says it is somebody else, as wrapt and lazy modules do."""

    def __init__(self, tensor: torch.Tensor) -> None:
        object.__setattr__(self, "wrapped", tensor)

    @property
    def __class__(self) -> Any:
        return asked("proxy __class__")()

    def __getattr__(self, name: str) -> Any:
        return asked("proxy __getattr__")()


class KeyThatAsks:
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        asked("key __eq__")()
        return False

    def __repr__(self) -> str:
        return str(asked("key __repr__")())


class Deleted:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __del__(self) -> None:
        _ASKED.append("__del__")


def test_no_code_of_the_user_is_called() -> None:
    """Each object both holds a tensor and, after a cycle of its own, is garbage that holds another."""
    hostile = HostileMeta("Hostile", (), _hostile_class())
    one = object.__new__(hostile)
    slot = type.__getattribute__(hostile, "__dict__")["tensor"]
    slot.__set__(one, torch.ones(3))
    rows = ListThatAsks()
    list.append(rows, torch.ones(3))
    table = DictThatAsks()
    dict.__setitem__(table, KeyThatAsks(), torch.ones(3))
    odd = torch.ones(3).as_subclass(TensorThatAsks)
    holders = [one, rows, table, odd, Proxy(torch.ones(3)), Deleted(torch.ones(3))]
    held: Any = Proxy(torch.ones(3))
    object.__setattr__(held, "itself", held)
    del held
    _ASKED.clear()
    _WATCHING.append(True)
    try:
        seen = heap.look(1, "step")
    finally:
        _WATCHING.clear()
    assert _ASKED == []
    assert len(seen.heap.storages) >= 7
    assert len(holders) == 6
    _ASKED.clear()


def test_nothing_is_kept_alive() -> None:
    class Owner:
        pass

    def step() -> tuple[Any, ...]:
        owner: Any = Owner()
        owner.tensor = torch.ones(300)
        owner.made = torch.ones(300, requires_grad=True).exp()
        first = StorageWeakRef(owner.tensor.untyped_storage())
        second = StorageWeakRef(owner.made.untyped_storage())
        seen = heap.look(1, "step")
        return weakref.ref(owner), weakref.ref(owner.tensor), first, second, seen

    owner, tensor, first, second, seen = step()
    assert owner() is None
    assert tensor() is None
    assert first.expired()
    assert second.expired()
    assert seen.heap is not None


def test_a_look_leaves_no_garbage_of_its_own() -> None:
    heap.look(1, "step")
    gc.collect()
    before = gc.get_count()
    seen = heap.look(2, "step")
    assert gc.collect() == 0
    assert seen.heap is not None
    assert before is not None


def test_the_state_of_the_process_is_as_found() -> None:
    def state() -> Any:
        return (
            gc.isenabled(), gc.get_threshold(), gc.get_debug(), list(gc.callbacks), list(gc.garbage),
            gc.get_freeze_count(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile(), list(warnings.filters),
            random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist(), torch.is_grad_enabled(),
            sys.getrecursionlimit(), torch.get_num_threads(), len(nn.modules.module._global_forward_hooks),
        )  # fmt: skip

    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        before = state()
        heap.look(1, "step")
        assert state() == before
    gc.disable()


def test_a_look_that_fails_puts_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.enable()
    interval = sys.getswitchinterval()

    def fails(*_: Any) -> None:
        raise MemoryError("no room to look")

    monkeypatch.setattr(heap, "explain", fails)
    with pytest.raises(MemoryError):
        heap.look(1, "step")
    assert gc.isenabled()
    assert sys.getswitchinterval() == interval


def test_hooks_and_results_are_what_they_are_without_a_look() -> None:
    def losses(looking: bool) -> list[float]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        calls: list[int] = []
        model[0].weight.register_hook(lambda grad: calls.append(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for step in range(3):
            loss = model(torch.randn(5, 4)).pow(2).mean()
            if looking:
                heap.look(step, "step")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        assert len(calls) == 3
        return found

    assert losses(True) == losses(False)


def test_no_unpack_hook_runs_and_nothing_is_recomputed() -> None:
    unpacked: list[int] = []

    def unpack(packed: Any) -> Any:
        unpacked.append(1)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.detach(), unpack):
        made = torch.ones(3, requires_grad=True).exp()
    heap.look(1, "step")
    assert unpacked == []
    made.sum().backward()
    assert unpacked == [1]


LONG_CHAIN = """
import torch
from leakscope.heap import snapshot as heap
state = torch.ones(1, requires_grad=True)
for _ in range(60_000):
    state = state * 1.0
seen = heap.look(1, "step")
assert len(seen.heap.of_kind("grad node")) >= 60_000
print("looked", flush=True)
del state, seen
print("freed", flush=True)
"""


@pytest.mark.process
def test_a_chain_of_60_000_grad_nodes_overflows_nothing() -> None:
    """The walk needs no deep stack. torch does when it frees more than some 30,000 nodes in a row that Python has seen:
    with the usual 8 MB it dies of it, with or without leakscope, so the process gets a larger stack here."""
    done = subprocess.run(
        [sys.executable, "-c", LONG_CHAIN],
        capture_output=True, text=True, timeout=120, check=False, preexec_fn=_with_a_large_stack,
    )  # fmt: skip
    assert done.stdout.split() == ["looked", "freed"], (done.returncode, done.stderr[-2000:])


def _with_a_large_stack() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (most, most))
