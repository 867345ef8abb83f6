"""How each Python type names the references it holds.

A reader yields (kind, name, referent) with names as written in code. It runs no user code: only C slots of
exact types and their bases. What CPython's traversal reports and no reader names stays in the graph, unnamed.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import gc
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from leakscope.capture.heap.raw_types import mro

Named = tuple[str, str, Any]
Reader = Callable[[Any], Iterator[Named]]

_CO_OPTIMIZED = 0x1


def dict_items(obj: Any) -> Iterator[Named]:
    for key, value in dict.items(obj):
        yield "item", f"[{key_text(key)}]", value
    for key in dict.keys(obj):
        yield "item", f"key {key_text(key)}", key


def default_dict(obj: Any) -> Iterator[Named]:
    yield from dict_items(obj)
    yield "attribute", ".default_factory", collections.defaultdict.__dict__["default_factory"].__get__(obj)


def sequence(base: Any) -> Reader:
    iterate = base.__iter__

    def read(obj: Any) -> Iterator[Named]:
        for k, value in enumerate(iterate(obj)):
            yield "item", f"[{k}]", value

    return read


def members(base: Any) -> Reader:
    iterate = base.__iter__

    def read(obj: Any) -> Iterator[Named]:
        for value in iterate(obj):
            yield "item", "{...}", value

    return read


def getters(base: type, *names: str) -> Reader:
    """A reader of C attributes, by their descriptors."""
    found = [(name, base.__dict__[name]) for name in names if name in base.__dict__]

    def read(obj: Any) -> Iterator[Named]:
        for name, descriptor in found:
            value = descriptor.__get__(obj)
            if value is not None:
                yield "attribute", f".{name}", value

    return read


def function(obj: Any) -> Iterator[Named]:
    get = types.FunctionType.__dict__
    code = get["__code__"].__get__(obj)
    for name, cell in zip(code.co_freevars, get["__closure__"].__get__(obj) or (), strict=False):
        yield "closure", f"closure {name}", cell
    yield "closure", "closure", get["__closure__"].__get__(obj)
    named = [(f".{name}", get[name].__get__(obj)) for name in _OF_FUNCTIONS]
    yield from (("attribute", name, held) for name, held in named)
    known = {id(held) for _, held in named} | {id(get["__closure__"].__get__(obj))}
    for held in gc.get_referents(obj):  # reading __annotations__ would make a dict of them
        if (type(held) is dict or type(held) is tuple) and id(held) not in known:
            yield "attribute", ".__annotations__", held


_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__", "__dict__", "__globals__", "__builtins__")


def cell(obj: Any) -> Iterator[Named]:
    try:
        yield "closure", "cell", obj.cell_contents
    except ValueError:  # an empty cell
        return


def frame_locals(frame: types.FrameType) -> dict[str, Any]:
    """The locals of a frame, leaving no dict behind that would keep them alive.

    Up to Python 3.12 `f_locals` fills a dict that stays with the frame; it is emptied again unless it is a
    namespace (module, class body) or somebody else holds it (`locals()` was called there). PEP 667 ends this.
    """
    if not frame.f_code.co_flags & _CO_OPTIMIZED:
        return {}
    found = frame.f_locals
    values = dict(found)
    # The frame, `found`, the argument; and the sweep's list, where an earlier read has left the empty dict.
    if sys.version_info < (3, 13) and sys.getrefcount(found) <= 4:
        found.clear()
    return values


def frame(obj: types.FrameType) -> Iterator[Named]:
    for name, value in frame_locals(obj).items():
        yield "local", f"local {name}", value
    if obj.f_back is not None:
        yield "attribute", ".f_back", obj.f_back
    yield from _called(obj, obj.f_code)


def _called(obj: Any, code: types.CodeType) -> Iterator[Named]:
    """The function whose frame this is: since Python 3.11 the frame keeps it alive, under no name."""
    for held in gc.get_referents(obj):
        if type(held) is types.FunctionType and types.FunctionType.__dict__["__code__"].__get__(held) is code:
            yield "attribute", "its function", held


def suspended(prefix: str) -> Reader:
    """Generators, coroutines and async generators: their frame's locals as their own."""

    def read(obj: Any) -> Iterator[Named]:
        held = getattr(obj, f"{prefix}_frame")
        if held is not None:
            for name, value in frame_locals(held).items():
                yield "local", f"local {name}", value
            yield "attribute", f".{prefix}_frame", held
            yield from _called(obj, held.f_code)
        waiting = getattr(obj, {"gi": "gi_yieldfrom", "cr": "cr_await", "ag": "ag_await"}[prefix])
        if waiting is not None:
            yield "attribute", ".awaiting", waiting

    return read


def traceback(obj: types.TracebackType) -> Iterator[Named]:
    yield "attribute", ".tb_frame", obj.tb_frame
    if obj.tb_next is not None:
        yield "attribute", ".tb_next", obj.tb_next


def exception(obj: BaseException) -> Iterator[Named]:
    get = BaseException.__dict__
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        value = get[name].__get__(obj)
        if value is not None:
            yield "attribute", f".{name}", value
    for base in mro(type(obj)):  # .value of StopIteration, .obj of AttributeError, .exceptions of a group, ...
        if not flags_of(base) & _HEAP_TYPE:
            for name, descriptor in type.__dict__["__dict__"].__get__(base).items():
                if type(descriptor) is types.MemberDescriptorType and not name.startswith("__"):
                    try:
                        yield "attribute", f".{name}", descriptor.__get__(obj)
                    except AttributeError:  # never set
                        continue


def reference(obj: Any) -> Iterator[Named]:
    callback = weakref.ref.__dict__["__callback__"].__get__(obj)
    if callback is not None:
        yield "attribute", ".__callback__", callback


def iterated(obj: Any) -> Iterator[Named]:
    """Iterators and views of the builtins say by no attribute what they go over."""
    for held in gc.get_referents(obj):
        yield "item", "iterated", held


def context(obj: Any) -> Iterator[Named]:
    """contextvars.Context and the nodes of its tree (Python/hamt.c): a value is reported right before its variable."""
    held = gc.get_referents(obj)
    for part, after in zip(held, [*held[1:], None], strict=True):
        if type(part) is contextvars.ContextVar:
            yield "item", f"key {part.name}", part
        elif type(after) is contextvars.ContextVar:
            yield "item", f"[{after.name}]", part
        else:
            yield "attribute", ".items()", part


CONTEXT_PARTS = ("hamt", "hamt_bitmap_node", "hamt_array_node", "hamt_collision_node")


def proxy(obj: Any) -> Iterator[Named]:
    for held in gc.get_referents(obj):
        yield "attribute", ".__mapping__", held


LRU_CACHE: Any = type(functools.lru_cache(lambda: None))
"""Type of what `functools.lru_cache` makes of a function."""


def closed(obj: Any) -> Iterator[Named]:
    """functools.lru_cache: CPython shows the cached results and the wrapped function, not the keys' names."""
    wrapped = obj.__wrapped__
    yield "attribute", ".__wrapped__", wrapped
    for held in gc.get_referents(obj):
        if held is not wrapped and type(held) is not type:
            yield "item", "cached result", held


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
    tuple: sequence(tuple),
    collections.deque: sequence(collections.deque),
    set: members(set),
    frozenset: members(frozenset),
    types.FunctionType: function,
    types.CellType: cell,
    types.MethodType: getters(types.MethodType, "__self__", "__func__"),
    types.BuiltinMethodType: getters(types.BuiltinMethodType, "__self__"),
    functools.partial: getters(functools.partial, "func", "args", "keywords"),
    property: getters(property, "fget", "fset", "fdel"),
    staticmethod: getters(staticmethod, "__func__"),
    classmethod: getters(classmethod, "__func__"),
    types.FrameType: frame,
    types.GeneratorType: suspended("gi"),
    types.CoroutineType: suspended("cr"),
    types.AsyncGeneratorType: suspended("ag"),
    types.TracebackType: traceback,
    BaseException: exception,
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
        found = _BY_ADDRESS.get(id(base))
        if found is not None:
            return found
    return context if type_name(kind) in CONTEXT_PARTS and not flags_of(kind) & _HEAP_TYPE else None


def slots(obj: Any, kind: type) -> Iterator[Named]:
    """`__slots__` of every base, through their member descriptors."""
    for base in mro(kind):
        for name, descriptor in type.__dict__["__dict__"].__get__(base).items():
            if type(descriptor) is types.MemberDescriptorType and flags_of(base) & _HEAP_TYPE:
                try:
                    yield "attribute", f".{name}", descriptor.__get__(obj)
                except AttributeError:  # never set
                    continue


_HEAP_TYPE = 1 << 9


def flags_of(kind: type) -> int:
    """`__flags__` of a type, without running a metaclass's own `__getattribute__`."""
    return int(type.__dict__["__flags__"].__get__(kind))


def type_name(kind: type) -> str:
    """`__name__` of a type, without running a metaclass's own."""
    return str(type.__dict__["__name__"].__get__(kind))


def qualified_name(kind: type) -> str:
    """`module.QualName` of a type; builtins without their module."""
    module = type.__dict__["__dict__"].__get__(kind).get("__module__")
    if type(module) is not str and not flags_of(kind) & _HEAP_TYPE:
        module = type.__dict__["__module__"].__get__(kind)
    name = str(type.__dict__["__qualname__"].__get__(kind))
    return name if module in ("builtins", None) or type(module) is not str else f"{module}.{name}"


def instance_dict(obj: Any, kind: type) -> dict[str, Any] | None:
    """The dict of an instance; None where its type has none.

    On Python 3.11 and 3.12 this makes a dict object for an instance whose values stand inline (allowed residue).
    """
    for base in mro(kind):
        descriptor = type.__dict__["__dict__"].__get__(base).get("__dict__")
        if descriptor is not None:
            if (
                type(descriptor) is not types.GetSetDescriptorType
                and type(descriptor) is not types.MemberDescriptorType
            ):
                return None  # a property of the user's: not to be run
            found = descriptor.__get__(obj)
            return found if type(found) is dict else None
    return None


def key_text(key: Any) -> str:
    """A dict key as code shows it, without calling anybody's `__repr__`."""
    kind = type(key)
    if kind is str:
        return repr(key if len(key) <= 40 else key[:37] + "...")
    if any(kind is plain for plain in (int, bool, float, bytes, type(None))):
        return repr(key)
    if kind is tuple:
        inner = ", ".join(key_text(item) for item in tuple.__iter__(key)) if len(key) <= 4 else "..."
        return f"({inner})"
    return f"<{type_name(kind)}>"
