"""Referents are read and named as CPython reports them, found by address, and attributed to packages."""

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
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from leakscope.heap import _sweep_fallback, address_index
from leakscope.heap import sweep as module
from leakscope.heap.address_index import PagedAddressIndex, addresses_of
from leakscope.heap.referents import dict_items, key_text, package_that_sets, reader_of, slots
from leakscope.heap.sweep import listed
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


LIBRARY = """
import functools

def decorated(method):
    @functools.wraps(method)
    def around(*args):
        return method(*args)
    return around

class Base:
    __slots__ = ("room", "__dict__")

    def __init__(self, model):
        object.__setattr__(self, "model", model)
        self.strategy = model
        setattr(self, "given", model)

    @property
    def value(self): return self.read_only

    @value.setter
    def value(self, value): self.behind = value

    @decorated
    def fill(self): self.filled = 3

    def __getattr__(self, name): raise AssertionError("user code")
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    package = tmp_path / "site-packages" / "setters_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(package.parent))
    yield __import__("setters_library")
    del sys.modules["setters_library"]


def test_attributes_set_by_a_class_of_a_package(library: ModuleType) -> None:
    class Mine(library.Base):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__(self)
            self.mine = self

    set_here = ("model", "strategy", "given", "behind", "filled", "room")
    assert {package_that_sets(Mine, name) for name in set_here} == {"setters_library"}
    assert {package_that_sets(Mine, name) for name in ("mine", "read_only", "nothing", "value")} == {""}


def test_fields_of_c_types_and_hooks_of_modules() -> None:
    assert package_that_sets(functools.partial, "args") == "functools"
    assert package_that_sets(functools.partial, "mine") == ""
    assert package_that_sets(torch.nn.Linear, "_forward_hooks") == "torch"
    assert package_that_sets(torch.nn.Linear, "weight") == "torch"
    assert package_that_sets(torch.nn.Linear, "parent") == ""


_HEAPS = st.lists(st.integers(1, 1 << 42), unique=True, max_size=60)


@given(_HEAPS, st.lists(st.integers(1, 1 << 47), max_size=20), st.sampled_from([8, 16, 32, 48]))
def test_every_object_is_found_and_nothing_else(places: list[int], elsewhere: list[int], spacing: int) -> None:
    addresses = [place * spacing for place in places]
    index = {address: k for k, address in enumerate(addresses)}
    book = PagedAddressIndex(np.asarray(addresses, dtype=np.int64))
    wanted = [*addresses, *elsewhere, *(address + 8 for address in addresses)]
    expected = [index.get(address, -1) for address in wanted]
    assert book.find(np.asarray(wanted, dtype=np.int64)).tolist() == expected
    assert [book.find_one(address) for address in wanted] == expected


def test_sparse_addresses_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_index, "_TABLE_LIMIT", 1)
    addresses = np.arange(1, 2000, dtype=np.int64) * 7_777_776
    book = PagedAddressIndex(addresses)
    assert book.find(addresses[::-1]).tolist() == list(range(len(addresses)))[::-1]
    assert book.find_one(7_777_776) == 0
    assert book.find_one(7_777_777) == -1


def test_addresses_are_those_of_id() -> None:
    objects = [[], {}, "text", 3, None, [1, [2]], (), object()]
    assert addresses_of(objects, len(objects)).tolist() == list(map(id, objects))
    assert addresses_of(map(type, objects), len(objects)).tolist() == [id(type(obj)) for obj in objects]
    assert addresses_of([], 0).tolist() == []


@pytest.mark.parametrize("alone", [True, False])
def test_a_listing_keeps_nothing_alive(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list among what it lists itself would be garbage that holds all of that."""
    monkeypatch.setattr(module, "is_alone", lambda: alone)
    gc.disable()
    try:
        thing = Thing()
        objects, addresses = listed(0, 1)
        assert any(obj is thing for obj in objects) and id(thing) in addresses
        gone = weakref.ref(thing)
        del thing, objects
        assert gone() is None
    finally:
        gc.enable()


def test_a_listing_beside_threads_holds_nothing() -> None:
    """The reader's own iterators are among the objects; they would be taken for garbage that holds memory."""
    gc.disable()  # a collection in between would visit the iterators
    try:
        thing = object()
        last = [thing]
        before = sys.getrefcount(thing)
        objects = _sweep_fallback._but_unheld_tuples(lambda: [*gc.get_objects(0), last])
        assert any(type(obj) is map for obj in objects) and any(obj is last for obj in objects)
        assert sys.getrefcount(thing) == before
    finally:
        gc.enable()
