"""How each Python type names the references it holds.

A reader yields (kind, name, referent) with names as written in code. It runs no user code: only C slots of
exact types and their bases. What CPython's traversal reports and no reader names stays in the graph, unnamed.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import itertools
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from leakscope.capture.heap.python import code_referents as code
from leakscope.capture.heap.python.named import ATTRIBUTE, ITEM, Named, Reader, c_fields, key_text
from leakscope.capture.heap.raw_types import made_in_python, mro, type_name
from leakscope.graph.model import CACHED_ARGUMENTS
from leakscope.originals import gc


def dict_items(obj: Any) -> Iterator[Named]:
    """Values by their keys, then the keys."""
    items = list(dict.items(obj))  # by one call of C: another thread may put something in meanwhile
    for key, value in items:
        yield ITEM, f"[{key_text(key)}]", value
    for key, _ in items:
        yield ITEM, f"key {key_text(key)}", key


def default_dict(obj: Any) -> Iterator[Named]:
    """As of a dict, and what makes missing values."""
    yield from dict_items(obj)
    yield ATTRIBUTE, ".default_factory", collections.defaultdict.__dict__["default_factory"].__get__(obj)


def sequence(base: Any) -> Reader:
    """A reader of items by their places."""
    iterate = base.__iter__

    def read(obj: Any) -> Iterator[Named]:
        for k, value in enumerate(list(iterate(obj))):
            yield ITEM, f"[{k}]", value

    return read


def items_of(obj: Any) -> Iterable[Any]:
    """The items of a tuple that are there: what `tuple(step() for ...)` makes has empty places while `step` runs.

    To go over an empty place ends the process. gc's traversal leaves it out, and goes from the last item to the first
    (Objects/tupleobject.c); what is of a class made from tuple is never seen so.
    """
    return gc.get_referents(obj)[::-1] if type(obj) is tuple else tuple.__iter__(obj)


def items_of_tuple(obj: Any) -> Iterator[Named]:
    """Items by their places."""
    for k, value in enumerate(items_of(obj)):
        yield ITEM, f"[{k}]", value


def members(base: Any) -> Reader:
    """A reader of items that have no place."""
    iterate = base.__iter__

    def read(obj: Any) -> Iterator[Named]:
        for value in list(iterate(obj)):
            yield ITEM, "{...}", value

    return read


def getters(base: type, *names: str) -> Reader:
    """A reader of C attributes, by their descriptors."""
    descriptors = [(name, base.__dict__[name]) for name in names if name in base.__dict__]

    def read(obj: Any) -> Iterator[Named]:
        for name, descriptor in descriptors:
            value = descriptor.__get__(obj)
            if value is not None:
                yield ATTRIBUTE, f".{name}", value

    return read


def reference(obj: Any) -> Iterator[Named]:
    """A weak reference holds what it calls back, not what it refers to."""
    callback = weakref.ref.__dict__["__callback__"].__get__(obj)
    if callback is not None:
        yield ATTRIBUTE, ".__callback__", callback


def iterated(obj: Any) -> Iterator[Named]:
    """Iterators and views of the builtins say by no attribute what they go over."""
    for held in gc.get_referents(obj):
        yield ITEM, "iterated", held


def context(obj: Any) -> Iterator[Named]:
    """contextvars.Context and the nodes of its tree (Python/hamt.c): a value is reported right before its variable."""
    held = gc.get_referents(obj)
    for part, after in zip(held, [*held[1:], None], strict=True):
        if type(part) is contextvars.ContextVar:
            yield ITEM, f"key {part.name}", part
        elif type(after) is contextvars.ContextVar:
            yield ITEM, f"[{after.name}]", part
        else:
            yield ATTRIBUTE, ".items()", part


CONTEXT_PARTS = ("hamt", "hamt_bitmap_node", "hamt_array_node", "hamt_collision_node")


def proxy(obj: Any) -> Iterator[Named]:
    """The mapping behind a read-only view, such as a class's `__dict__`."""
    for held in gc.get_referents(obj):
        yield ATTRIBUTE, ".__mapping__", held


_SAMPLE: Any = functools.lru_cache(lambda of: of)
_SAMPLE(())
LRU_CACHE: Any = type(_SAMPLE)
"""Type of what `functools.lru_cache` makes of a function."""
_ENTRY = next((kind for kind in gc.get_referents(_SAMPLE)[1:] if type(kind) is type), None)
"""Type of an entry of a bounded cache, which gc is shown after the key and the result of each (CPython,
Modules/_functoolsmodule.c, lru_cache_tp_traverse).
"""


def closed(obj: Any) -> Iterator[Named]:
    """functools.lru_cache: CPython shows the keys, which hold the arguments, the results and the wrapped function."""
    wrapped = obj.__wrapped__
    yield ATTRIBUTE, ".__wrapped__", wrapped
    referents = gc.get_referents(obj)
    for held, *after in itertools.zip_longest(referents, referents[1:], referents[2:]):
        if held is not wrapped and type(held) is not type:
            is_key = _ENTRY is not None and after[1] is _ENTRY
            yield ITEM, CACHED_ARGUMENTS if is_key else "cached result", held


_DICT: dict[Any, Any] = {}
_EMPTY: tuple[Any, ...] = ([], (), set(), _DICT, _DICT.keys(), _DICT.values(), _DICT.items())
_ITERATED: tuple[Any, ...] = (
    *(type(iter(empty)) for empty in _EMPTY),
    *(type(view) for view in _EMPTY[-3:]),
    *(kind for kind in vars(itertools).values() if type(kind) is type),
    type(reversed([])), reversed, enumerate, zip, map, filter,
)  # fmt: skip

READERS: dict[type, Reader] = {
    dict: dict_items,
    collections.OrderedDict: dict_items,
    collections.defaultdict: default_dict,
    list: sequence(list),
    tuple: items_of_tuple,
    collections.deque: sequence(collections.deque),
    set: members(set),
    frozenset: members(frozenset),
    types.FunctionType: code.function,
    types.CellType: code.cell,
    types.MethodType: getters(types.MethodType, "__self__", "__func__"),
    types.BuiltinMethodType: getters(types.BuiltinMethodType, "__self__"),
    functools.partial: getters(functools.partial, "func", "args", "keywords"),
    property: getters(property, "fget", "fset", "fdel"),
    staticmethod: getters(staticmethod, "__func__"),
    classmethod: getters(classmethod, "__func__"),
    types.FrameType: code.frame,
    types.GeneratorType: code.suspended("gi"),
    types.CoroutineType: code.suspended("cr"),
    types.AsyncGeneratorType: code.suspended("ag"),
    types.TracebackType: code.traceback,
    BaseException: code.exception,
    weakref.ref: reference,
    types.MappingProxyType: proxy,
    contextvars.Context: context,
    LRU_CACHE: closed,
    asyncio.Future: getters(asyncio.Future, "_result", "_exception", "_callbacks", "_loop"),
    slice: getters(slice, "start", "stop", "step"),
    **dict.fromkeys(_ITERATED, iterated),
}


_BY_ADDRESS = {id(kind): reader for kind, reader in READERS.items()}  # a metaclass may have a __hash__ of its own


def reader_of(kind: type) -> Reader | None:
    """The reader of the nearest base that has one."""
    for base in mro(kind):
        reader = _BY_ADDRESS.get(id(base))
        if reader is not None:
            return reader
    return context if type_name(kind) in CONTEXT_PARTS and not made_in_python(kind) else None


def slots(obj: Any, kind: type) -> Iterator[Named]:
    """`__slots__` of every base, through their member descriptors; only types made in Python have any of their own."""
    if made_in_python(kind):
        for base in mro(kind):
            if made_in_python(base):
                yield from c_fields(obj, base)
