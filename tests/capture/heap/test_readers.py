"""Both heap readers agree on objects of any type and read a stable heap beside other threads."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import gc
import itertools
import re
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.heap_readers import differences

from leakscope import native
from leakscope.heap import _sweep_fallback, sweep
from leakscope.heap._sweep_fallback import LARGE
from leakscope.process.gc_control import no_automatic_gc

pytestmark = pytest.mark.skipif(native.gc_heap() is None, reason="no native heap reader")


class Box:
    """Holds anything as attributes."""


def _hostile() -> list[Any]:
    """Instances, and classes, that raise on every access."""

    def fails(*_: object) -> Any:
        raise RuntimeError

    class _Meta(type):
        __getattribute__ = __instancecheck__ = __eq__ = __hash__ = fails  # type: ignore[assignment]

    class Hostile(metaclass=_Meta):
        __getattribute__ = __eq__ = __hash__ = __len__ = __sizeof__ = fails  # type: ignore[assignment]

    class HostileDict(dict):  # type: ignore[type-arg]
        __len__ = __iter__ = fails

    class HostileBytes(bytes):
        __len__ = fails

    return [Hostile(), Hostile, HostileDict(a=[1]), HostileBytes(LARGE), _Meta]


def _suspended() -> Iterator[int]:
    kept = [np.ones(2)]
    yield len(kept)


async def _waiting() -> None:
    kept = [np.ones(2)]
    await asyncio.sleep(len(kept))


def _of_many_types() -> list[Any]:
    generator = _suspended()
    next(generator)
    waiting = _waiting()
    waiting.close()
    cached = functools.lru_cache(lambda x: [x])
    cached(1), cached(2)
    variable: Any = contextvars.ContextVar("variable")
    context = contextvars.copy_context()
    context.run(variable.set, [np.ones(2)])
    itself: list[Any] = []
    itself.append(itself)
    tensor = torch.ones(3, requires_grad=True)
    try:
        raise KeyError([tensor])
    except KeyError as error:
        caught = error
    return [
        *_hostile(), generator, waiting, cached, variable, context, itself, tensor, tensor * 2, (tensor * 2).grad_fn,
        tensor.untyped_storage(), caught, caught.__traceback__, collections.OrderedDict(a=[1]),
        collections.defaultdict(list, a=[1]), collections.Counter("abc"), types.SimpleNamespace(a=1),
        types.MappingProxyType({"a": [1]}), weakref.ref(Box), weakref.WeakKeyDictionary(), functools.partial(max, [1]),
        itertools.cycle([[1]]), zip([1], [2], strict=True), iter([1]), iter({"a": 1}.items()), torch.nn.Linear(2, 2),
        torch.Generator(), torch.device("cpu"), np.dtype([("a", "O")]), slice([1], 2), property(len),
        super(Box, Box()), memoryview(np.ones(2)), threading.Lock(), re.compile("a"), object(), frozenset([(1,)]),
    ]  # fmt: skip


def test_both_readers_agree_on_objects_of_any_type() -> None:
    _sweep_fallback.read(gc.get_objects(), True).untracked.clear()  # numpy imports something of its own
    many = _of_many_types()
    gc.collect()
    objects = [obj for obj in gc.get_objects() if obj is not many and type(obj) is not types.FrameType]
    assert differences(objects, counts=False) == []
    objects.clear()


def test_the_heap_does_not_change_while_it_is_read() -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            _of_many = [[k, {"k": (k,)}, Box()] for k in range(500)]
            del _of_many

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            with no_automatic_gc():
                objects = gc.get_objects()
                read = sweep.read_natively(objects, True)
                assert list(map(id, objects)) == read.addresses[: len(objects)].tolist()
            every = len(objects) + len(read.untracked)
            assert read.holder.min() >= 0 and read.holder.max() < every
            assert read.held.min() >= 0 and read.held.max() < every
            between = int(read.starts[-1])
            holders = np.repeat(np.arange(len(objects)), np.diff(read.starts))
            assert (read.holder[:between] == holders).all()
            assert (read.lengths >= np.diff(read.starts)).all()
            objects.clear()
            read.untracked.clear()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_an_untracked_tuple_is_read_once() -> None:
    """Two to the power of sixty ways lead down through these tuples."""
    leading: Any = (np.ones(2),)
    leading_nowhere: Any = (1.5,)
    gc.collect(0)
    for _ in range(60):
        leading, leading_nowhere = (leading, leading), (leading_nowhere, leading_nowhere)
        gc.collect(0)
    assert not gc.is_tracked(leading)
    objects: list[Any] = [[leading, leading_nowhere], [leading_nowhere]]
    assert differences(objects) == []
    assert len(sweep.read_natively(objects, False).untracked) == 61 + 1
