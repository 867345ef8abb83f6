"""Referent readers name everything that CPython's traversal reports."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import gc
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from leakscope.heap.referents import dict_items, key_text, reader_of, slots
from leakscope.process.raw_types import instance_dict


class Thing:
    """Something that can be held."""


class Slotted:
    __slots__ = ("first", "never", "second")

    def __init__(self) -> None:
        self.first, self.second = Thing(), [Thing()]


class ListOf(list):  # type: ignore[type-arg]
    def method(self) -> None:
        return None


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


def delegating() -> Iterator[Any]:
    yield from suspended()


def started(make: Callable[[], Iterator[Any]] = suspended) -> Any:
    one = make()
    next(one)
    return one


class Pause:
    def __await__(self) -> Any:
        yield


def coroutine() -> Any:
    async def waiting() -> Any:
        held = Thing()
        await Pause()
        return held

    one = waiting()
    one.send(None)
    return one


def exception() -> BaseException:
    try:
        try:
            raise ValueError(Thing())
        except ValueError as error:
            raise KeyError(Thing()) from error
    except KeyError as outer:
        outer.add_note("a note")
        outer.held = Thing()  # type: ignore[attr-defined]
        return outer


def ended_frame(argument: Any) -> Any:
    held, other = Thing(), [Thing()]

    def again() -> Any:
        return held, argument

    assert again is not other
    return sys._getframe()


def context() -> Any:
    found = contextvars.copy_context()
    found.run(contextvars.ContextVar("held").set, [Thing()])
    return found


def cached() -> Any:
    made = functools.lru_cache(lambda key: [Thing(), key])
    made(1), made(2)
    return made


def with_callback() -> Any:
    target = Thing()
    ref = weakref.ref(target, closure())
    _KEPT.append([ref, target])
    return ref


_KEPT: list[Any] = []


def done_future() -> Any:
    loop = asyncio.new_event_loop()
    found: Any = loop.create_future()
    found.set_result([Thing()])
    loop.close()
    return found


def used_module() -> Any:
    module = nn.Linear(2, 2)
    module.register_forward_hook(closure())
    return module


def used_optimizer() -> Any:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    return optimizer


def hooked_tensor(register: str) -> Any:
    leaf = torch.ones(2, requires_grad=True)
    getattr(leaf, register)(closure())
    leaf.note = Thing()  # type: ignore[attr-defined]
    return leaf


EVERY_KIND: Sequence[Callable[[], Any]] = (
    lambda: {"a": Thing(), ("b", 1): [Thing()], Thing(): 1},
    lambda: collections.OrderedDict(a=Thing(), b=[Thing()]),
    lambda: collections.defaultdict(closure(), a=Thing()),
    lambda: types.MappingProxyType({"a": Thing()}),
    lambda: ListOf([Thing()]),
    lambda: [[Thing()]] * 2,
    lambda: (Thing(), [Thing()]),
    lambda: torch.max(torch.ones(2, 2), 0),
    lambda: {Thing(), Thing()},
    lambda: frozenset({Thing(), Thing()}),
    lambda: collections.deque([Thing(), [Thing()]], maxlen=5),
    Slotted,
    lambda: types.SimpleNamespace(a=Thing()),
    closure,
    lambda: closure().__closure__[0],
    lambda: ListOf().method,
    lambda: [Thing()].append,
    lambda: functools.partial(closure(), Thing(), key=[Thing()]),
    lambda: property(closure(), closure()),
    lambda: staticmethod(closure()),
    lambda: classmethod(closure()),
    lambda: ended_frame([Thing()]),
    started,
    lambda: started(delegating),
    suspended,
    coroutine,
    lambda: exception().__traceback__,
    exception,
    lambda: ExceptionGroup("several", [ValueError(Thing()), TypeError(Thing())]),
    lambda: OSError(2, "no", Thing()),
    with_callback,
    cached,
    context,
    lambda: slice([Thing()], Thing(), None),
    done_future,
    lambda: threading.Thread(target=closure(), args=([Thing()],)),
    used_module,
    used_optimizer,
    lambda: hooked_tensor("register_hook"),
    lambda: hooked_tensor("register_post_accumulate_grad_hook"),
    lambda: iter([Thing()]),
    lambda: iter({Thing(): 1}),
    lambda: zip([Thing()], [Thing()], strict=False),
    lambda: itertools.chain([Thing()], [Thing()]),
    lambda: dict(a=Thing()).values(),
)
"""One example of each type that has a reader."""


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
    """What CPython reports and no reader names, types and atoms apart."""
    names = _named(obj)
    missing = []
    for held in gc.get_referents(obj):
        if id(held) in names or held is type(obj) or held is None or not gc.is_tracked(held):
            continue
        if isinstance(held, (types.CodeType, type)) and not isinstance(obj, type):
            continue
        missing.append(held)
    return missing


def _invented(obj: Any) -> list[Any]:
    """What a reader names and neither the object holds, nor its own frame, dict or cell."""
    reader = reader_of(type(obj))
    near = {id(held) for held in gc.get_referents(obj)}
    for held in list(gc.get_referents(obj)):
        near.update(map(id, gc.get_referents(held)))
    named = [held for _, _, held in reader(obj) if gc.is_tracked(held)] if reader is not None else []
    return [held for held in named if id(held) not in near and type(held) is not types.FrameType]


def test_a_reader_names_all_that_cpython_reports_and_nothing_else() -> None:
    for obj in (make() for make in EVERY_KIND):
        assert (_left_out(obj), _invented(obj)) == ([], []), type(obj)


def test_names_are_written_as_in_code() -> None:
    function = closure()
    names = {name for _, name, _ in reader_of(type(function))(function)}  # type: ignore[misc]
    assert {"closure held", "closure other", ".__defaults__", ".__kwdefaults__"} <= names
    generator = started()
    assert {"local held", "local other"} <= {n for _, n, _ in reader_of(type(generator))(generator)}  # type: ignore[misc]
    assert [n for _, n, _ in dict_items({"a": 1, 2: 3, ("x", 1): 4})][:3] == ["['a']", "[2]", "[('x', 1)]"]
    assert [n for _, n, _ in slots(Slotted(), Slotted)] == [".first", ".second"]


def test_a_key_is_shown_without_running_its_code() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise AssertionError("called")

    assert key_text(Shy()) == "<Shy>"
    assert key_text(("a", Shy())) == "('a', <Shy>)"
    assert key_text("x" * 100) == repr("x" * 37 + "...")
    assert key_text(tuple(range(9))) == "(...)"
