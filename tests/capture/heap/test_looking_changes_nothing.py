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
from leakscope.heap.growth import Gains
from leakscope.heap.snapshot import SnapshotContext


@pytest.fixture(autouse=True)
def no_automatic_gc() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    yield
    if collecting:
        gc.enable()


def called(what: str) -> Any:
    def method(*_: Any, **__: Any) -> Any:
        _CALLED.append(what)
        raise AssertionError(f"{what} was called")

    return method


_CALLED: list[str] = []


class HostileMeta(type):
    __instancecheck__ = __subclasscheck__ = __getattribute__ = __repr__ = __hash__ = __eq__ = called("metaclass")


def _hostile_class() -> Any:
    names = (
        "repr", "str", "eq", "getattr", "getattribute", "len", "bool", "iter", "getitem", "call", "torch_function",
        "reduce_ex", "sizeof",
    )  # fmt: skip
    body: dict[str, Any] = {f"__{name}__": called(name) for name in names}
    body |= {"__hash__": object.__hash__, "__slots__": ("tensor", "__dict__", "__weakref__")}
    return body | {"__class__": property(called("__class__")), "value": property(called("property"))}


class HostileList(list):  # type: ignore[type-arg]
    __iter__ = __len__ = __getitem__ = __sizeof__ = called("list")


class HostileDict(dict):  # type: ignore[type-arg]
    __iter__ = __len__ = __sizeof__ = items = keys = values = __missing__ = called("dict")


class HostileTensor(torch.Tensor):
    grad_fn = property(called("grad_fn"))
    __tensor_flatten__ = called("__tensor_flatten__")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _WATCHING:
            called("__torch_function__")()
        return super().__torch_function__(func, types, args, kwargs or {})

    @property
    def shape(self) -> Any:
        return called("shape property")() if _WATCHING else super().shape


_WATCHING: list[bool] = []


class Proxy:
    """Claims another class, as those of wrapt and lazy modules do."""

    __class__ = property(called("proxy __class__"))  # type: ignore[assignment]
    __getattr__ = called("proxy __getattr__")

    def __init__(self, wrapped: Any) -> None:
        object.__setattr__(self, "wrapped", wrapped)


class HostileKey:
    __hash__ = object.__hash__
    __eq__ = __repr__ = called("key")


class Deleted:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __del__(self) -> None:
        _CALLED.append("__del__")


def test_no_code_of_the_user_is_called() -> None:
    """Neither of what holds tensors, nor of garbage, nor of containers that grow."""
    hostile = HostileMeta("Hostile", (), _hostile_class())
    one = object.__new__(hostile)
    slot = type.__getattribute__(hostile, "__dict__")["tensor"]
    slot.__set__(one, torch.ones(3))
    rows, table = HostileList(), HostileDict()
    odd = torch.ones(3).as_subclass(HostileTensor)
    holders = [one, rows, table, odd, Proxy(torch.ones(3)), Deleted(torch.ones(3))]
    held: Any = Proxy(torch.ones(3))
    object.__setattr__(held, "itself", held)
    del held
    gains = Gains()
    _CALLED.clear()
    _WATCHING.append(True)
    try:
        for step in range(3):
            list.append(rows, Proxy("x" * 9_000 + str(step)))
            dict.__setitem__(table, HostileKey(), torch.ones(3))
            seen = heap.take_heap_snapshot(step, "step", SnapshotContext(gains=gains, hidden=(gains,)))
    finally:
        _WATCHING.clear()
    assert _CALLED == []
    assert len(seen.heap.storages) >= 8 and len(holders) == 6
    assert {row.item for row in seen.containers} >= {"Proxy"}
    _CALLED.clear()


def test_nothing_is_kept_alive() -> None:
    class Owner:
        pass

    def step() -> tuple[Any, ...]:
        owner: Any = Owner()
        owner.tensor = torch.ones(300)
        owner.made = torch.ones(300, requires_grad=True).exp()
        first = StorageWeakRef(owner.tensor.untyped_storage())
        second = StorageWeakRef(owner.made.untyped_storage())
        seen = heap.take_heap_snapshot(1, "step")
        return weakref.ref(owner), weakref.ref(owner.tensor), first, second, seen

    owner, tensor, first, second, seen = step()
    assert owner() is tensor() is None
    assert first.expired() and second.expired() and seen.heap is not None


def test_a_snapshot_leaves_no_garbage() -> None:
    heap.take_heap_snapshot(1, "step")
    gc.collect()
    seen = heap.take_heap_snapshot(2, "step")
    assert gc.collect() == 0 and seen.heap is not None


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
        heap.take_heap_snapshot(1, "step")
        assert state() == before
    gc.disable()


def test_a_failing_snapshot_restores_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.enable()
    interval = sys.getswitchinterval()

    def fails(*_: Any) -> None:
        raise MemoryError("no room to look")

    monkeypatch.setattr(heap, "find_liveness", fails)
    with pytest.raises(MemoryError):
        heap.take_heap_snapshot(1, "step")
    assert gc.isenabled()
    assert sys.getswitchinterval() == interval


def test_no_unpack_hook_runs_and_nothing_is_recomputed() -> None:
    unpacked: list[int] = []

    def unpack(packed: Any) -> Any:
        unpacked.append(1)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.detach(), unpack):
        made = torch.ones(3, requires_grad=True).exp()
    heap.take_heap_snapshot(1, "step")
    assert unpacked == []
    made.sum().backward()
    assert unpacked == [1]


LONG_CHAIN = """
import torch
from leakscope.heap import snapshot as heap
state = torch.ones(1, requires_grad=True)
for _ in range(60_000):
    state = state * 1.0
seen = heap.take_heap_snapshot(1, "step")
assert len(seen.heap.of_kind("grad node")) >= 60_000
del state, seen
"""
FIRST = """
import sys
import torch
from leakscope.recorder.accelerator import Counter
from leakscope.heap.snapshot import SnapshotContext, take_heap_snapshot
from leakscope.heap.growth import Gains
counter, gains, loaded = Counter(), Gains(), set(sys.modules)
before = counter.read().bytes
take_heap_snapshot(1, "step", SnapshotContext(gains=gains))
assert not set(sys.modules) - loaded
assert counter.read().bytes - before < 425 * 1024  # see leakscope/recorder/accelerator.py
"""


@pytest.mark.process
@pytest.mark.parametrize("text", [LONG_CHAIN, FIRST], ids=["60,000 nodes need no deep stack", "no import, little left"])
def test_a_snapshot_in_a_new_process(text: str) -> None:
    """torch itself needs a deep stack to free more than some 30,000 nodes in a row that Python has seen."""
    command = [sys.executable, "-c", text]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=_with_a_large_stack
    )
    assert done.returncode == 0, done.stderr[-2000:]


def _with_a_large_stack() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (most, most))
