"""Referent readers name everything that CPython's traversal reports."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import functools
import gc
import itertools
import operator
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from leakscope.heap.referents import dict_items, key_text, reader_of, slots
from leakscope.process.raw_types import instance_dict


class Thing:
    """Something that can be held, and told apart."""


class Slotted:
    __slots__ = ("first", "never", "second")

    def __init__(self) -> None:
        self.first, self.second = Thing(), [Thing()]


@dataclass(slots=True)
class SlottedData:
    tensor: Any = field(default_factory=lambda: torch.ones(1))
    note: Any = field(default_factory=Thing)


@dataclass
class Data:
    tensor: Any = field(default_factory=lambda: torch.ones(1))


class Point(NamedTuple):
    x: Any
    y: Any


class ListOf(list):  # type: ignore[type-arg]
    """A subclass with a dict of its own."""


class DictOf(dict):  # type: ignore[type-arg]
    pass


def closure() -> Any:
    held, other = Thing(), [Thing()]

    def inner(a: Any = held, *, b: Any = other) -> Any:
        return held, other, a, b

    inner.note = Thing()  # type: ignore[attr-defined]
    return inner


def suspended() -> Iterator[Any]:
    held, other = Thing(), [Thing()]
    yield held
    yield other


def started() -> Any:
    one = suspended()
    next(one)
    return one


def delegating() -> Any:
    def outer() -> Iterator[Any]:
        yield from suspended()

    one = outer()
    next(one)
    return one


class Pause:
    def __await__(self) -> Any:
        yield


async def waiting() -> Any:
    held = Thing()
    await Pause()
    return held


def coroutine() -> Any:
    one = waiting()
    one.send(None)
    return one


async def streaming() -> Any:
    held = Thing()
    yield held


def async_generator() -> Any:
    one = streaming()
    with contextlib.suppress(StopIteration):
        one.__anext__().send(None)
    return one


def _raising(held: Any) -> None:
    raise ValueError(held)


def exception() -> BaseException:
    try:
        try:
            _raising(Thing())
        except ValueError as error:
            raise KeyError(Thing()) from error
    except KeyError as outer:
        outer.add_note("a note")
        outer.held = Thing()  # type: ignore[attr-defined]
        return outer
    raise AssertionError


def group() -> BaseException:
    return ExceptionGroup("several", [ValueError(Thing()), TypeError(Thing())])


def traceback() -> Any:
    return exception().__traceback__


def ended_frame() -> Any:
    def inside() -> Any:
        held, other = Thing(), [Thing()]
        frame = sys._getframe()
        assert held is not other
        return frame

    return inside()


def ended_frame_with_cells() -> Any:
    def inside(argument: Any) -> Any:
        held = Thing()

        def again() -> Any:
            return held, argument

        assert again is not None
        return sys._getframe()

    return inside([Thing()])


def context() -> Any:
    found = contextvars.copy_context()
    found.run(contextvars.ContextVar("held").set, [Thing()])
    return found


def cached() -> Any:
    @functools.lru_cache
    def made(key: int) -> Any:
        return [Thing(), key]

    made(1)
    made(2)
    return made


class _Calls:
    def method(self) -> None:
        return None

    @property
    def value(self) -> int:
        return 1

    @staticmethod
    def static() -> None:
        return None

    @classmethod
    def of_class(cls) -> None:
        return None

    @functools.cached_property
    def kept(self) -> Any:
        return [Thing()]


def with_callback() -> Any:
    target = Thing()
    ref = weakref.ref(target, closure())
    ref_holder = [ref, target]
    _KEPT.append(ref_holder)
    return ref


_KEPT: list[Any] = []


def done_future() -> Any:
    loop = asyncio.new_event_loop()
    found: Any = loop.create_future()
    found.set_result([Thing()])
    loop.close()
    return found


def filled_queue() -> Any:
    found: Any = queue.Queue()
    found.put([Thing()])
    return found


def unstarted_thread() -> Any:
    return threading.Thread(target=closure(), args=([Thing()],), kwargs={"key": [Thing()]})


def used_module() -> Any:
    module = nn.Linear(2, 2)
    module.register_forward_hook(closure())
    module.register_buffer("seen", torch.ones(2))
    return module


def used_optimizer() -> Any:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    return optimizer


def hooked_tensor() -> Any:
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(closure())
    leaf.note = Thing()  # type: ignore[attr-defined]
    return leaf


def accumulating_tensor() -> Any:
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_post_accumulate_grad_hook(closure())
    return leaf


def local_class() -> Any:
    class Local(Thing):
        table = (Thing(),)
        other = torch.ones(1)

    return Local


EVERY_KIND: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"a": Thing(), ("b", 1): [Thing()], Thing(): 1},
    "dict subclass": lambda: DictOf(a=Thing()),
    "OrderedDict": lambda: collections.OrderedDict(a=Thing(), b=[Thing()]),
    "defaultdict": lambda: collections.defaultdict(closure(), a=Thing()),
    "Counter": lambda: collections.Counter({Thing(): 2}),
    "ChainMap": lambda: collections.ChainMap({"a": Thing()}),
    "mappingproxy": lambda: types.MappingProxyType({"a": Thing()}),
    "list": lambda: [Thing(), [Thing()], Thing()],
    "list subclass": lambda: ListOf([Thing()]),
    "the same twice": lambda: [[Thing()]] * 2,
    "tuple": lambda: (Thing(), [Thing()]),
    "namedtuple": lambda: Point(Thing(), [Thing()]),
    "structseq": lambda: torch.max(torch.ones(2, 2), 0),
    "set": lambda: {Thing(), Thing()},
    "frozenset": lambda: frozenset({Thing(), Thing()}),
    "deque": lambda: collections.deque([Thing(), [Thing()]], maxlen=5),
    "slots": Slotted,
    "slots of a dataclass": SlottedData,
    "dataclass": Data,
    "instance": lambda: types.SimpleNamespace(a=Thing()),
    "function": closure,
    "cell": lambda: closure().__closure__[0],
    "bound method": lambda: _Calls().method,
    "builtin method": lambda: [Thing()].append,
    "partial": lambda: functools.partial(closure(), Thing(), key=[Thing()]),
    "partialmethod": lambda: functools.partialmethod(closure(), Thing()),
    "property": lambda: property(closure(), closure()),
    "staticmethod": lambda: staticmethod(closure()),
    "classmethod": lambda: classmethod(closure()),
    "cached_property": lambda: _Calls.__dict__["kept"],
    "ended frame": ended_frame,
    "ended frame with cells": ended_frame_with_cells,
    "generator": started,
    "delegating generator": delegating,
    "unstarted generator": suspended,
    "coroutine": coroutine,
    "async generator": async_generator,
    "traceback": traceback,
    "exception": exception,
    "exception group": group,
    "OSError": lambda: OSError(2, "no", Thing()),
    "StopIteration": lambda: StopIteration([Thing()]),
    "weak reference": with_callback,
    "lru_cache": cached,
    "context": context,
    "slice": lambda: slice([Thing()], Thing(), None),
    "future": done_future,
    "queue": filled_queue,
    "thread": unstarted_thread,
    "nn.Module": used_module,
    "optimizer": used_optimizer,
    "tensor with a hook": hooked_tensor,
    "tensor with a post-accumulate hook": accumulating_tensor,
    "parameter": lambda: nn.Parameter(torch.ones(1)),
    "list iterator": lambda: iter([Thing()]),
    "tuple iterator": lambda: iter((Thing(),)),
    "set iterator": lambda: iter({Thing()}),
    "dict iterator": lambda: iter({Thing(): 1}),
    "enumerate": lambda: enumerate([Thing()]),
    "zip": lambda: zip([Thing()], [Thing()], strict=False),
    "map": lambda: map(closure(), [Thing()]),
    "filter": lambda: filter(closure(), [Thing()]),
    "reversed": lambda: reversed([Thing()]),
    "chain": lambda: itertools.chain([Thing()], [Thing()]),
    "islice": lambda: itertools.islice([Thing()], 3),
    "itemgetter": lambda: operator.itemgetter([Thing()], 1),
    "super": functools.partial(super, _Calls, _Calls()),
    "dict view": lambda: dict(a=Thing()).values(),
}
"""One example of each type that holds things in practice."""

NOT_NAMED = {"itemgetter", "super"}
"""Types without a reader: what they hold stays in the graph, unnamed and counted."""


def _named(obj: Any) -> set[int]:
    kind = type(obj)
    found: list[Any] = []
    reader = reader_of(kind)
    if reader is not None:
        found += [held for _, _, held in reader(obj)]
    if torch._C.TensorBase in kind.__mro__:
        found += [obj._backward_hooks, obj._post_accumulate_grad_hooks]
    found += [held for _, _, held in slots(obj, kind)]
    own = instance_dict(obj, kind)
    found += [own, *(own or {}).values()]
    return set(map(id, found))


def _left_out(obj: Any) -> list[Any]:
    """What CPython reports and nobody names, types and atoms apart."""
    names = _named(obj)
    missing = []
    for held in gc.get_referents(obj):
        if id(held) in names or held is type(obj) or held is None or not gc.is_tracked(held):
            continue
        if isinstance(held, (types.CodeType, type)) and not isinstance(obj, type):
            continue
        missing.append(held)
    return missing


@pytest.mark.parametrize("name", [name for name in EVERY_KIND if name not in NOT_NAMED])
def test_a_reader_names_all_that_cpython_reports(name: str) -> None:
    obj = EVERY_KIND[name]()
    assert _left_out(obj) == []


@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_reader_invents_nothing(name: str) -> None:
    """What a reader names is held: directly, by the object's own frame or dict, or by a cell."""
    obj = EVERY_KIND[name]()
    reader = reader_of(type(obj))
    if reader is None:
        pytest.skip("no reader")
    near = {id(held) for held in gc.get_referents(obj)}
    for held in list(gc.get_referents(obj)):
        near.update(map(id, gc.get_referents(held)))
    named = [held for _, _, held in reader(obj) if gc.is_tracked(held)]
    far = [held for held in named if id(held) not in near and type(held) is not types.FrameType]
    assert far == []


def test_names_are_written_as_in_code() -> None:
    function = closure()
    names = {name for _, name, _ in reader_of(type(function))(function)}  # type: ignore[misc]
    assert {"closure held", "closure other", ".__defaults__", ".__kwdefaults__"} <= names
    generator = started()
    assert {"local held", "local other"} <= {n for _, n, _ in reader_of(type(generator))(generator)}  # type: ignore[misc]
    assert [n for _, n, _ in dict_items({"a": 1, 2: 3, ("x", 1): 4})][:3] == ["['a']", "[2]", "[('x', 1)]"]
    assert [n for _, n, _ in slots(Slotted(), Slotted)] == [".first", ".second"]


def test_a_key_is_shown_without_asking_it() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise AssertionError("asked")

    assert key_text(Shy()) == "<Shy>"
    assert key_text(("a", Shy())) == "('a', <Shy>)"
    assert key_text("x" * 100) == repr("x" * 37 + "...")
    assert key_text(tuple(range(9))) == "(...)"


def test_a_cache_tells_the_arguments_of_a_call_from_its_result() -> None:
    @functools.lru_cache(maxsize=8)
    def kept(first: object, second: object) -> tuple[object, object]:
        return second, first

    held, results = (Thing(), Thing()), [kept(Thing, 1), kept(2, None)]
    results.append(kept(*held))
    named = [(name, one) for _, name, one in reader_of(type(kept))(kept)]  # type: ignore[misc]
    assert [one for name, one in named if name == "cached arguments"] == [(Thing, 1), (2, None), held]
    assert [one for name, one in named if name == "cached result" and type(one) is tuple] == results
