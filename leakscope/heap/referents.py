"""Classes, code and containers: the references of an object and their names."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import ctypes
import dis
import functools
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple

from leakscope.graph.model import CACHED_ARGUMENTS, ReferenceKind
from leakscope.graph.ownership import is_built_with
from leakscope.originals import gc
from leakscope.process import user_code as source
from leakscope.process.raw_types import (
    LAYOUT_IS_KNOWN,
    MISSING,
    WORD,
    instance_dict,
    made_in_python,
    mro,
    qualified_name,
    slots_at,
    type_dict,
    type_name,
    type_qualname,
    word_at,
)
from leakscope.process.user_code import MAIN, newest_first

_module_dict = type_dict(types.ModuleType)["__dict__"].__get__


def module_dict(module: Any) -> dict[str, Any]:
    """A module's namespace, read without calling its own `__getattribute__`."""
    namespace: dict[str, Any] = _module_dict(module)
    return namespace


def globals_of_spawned_main() -> dict[str, Any] | None:
    """The namespace of the script's functions in a spawned process; None in other processes.

    Its `__main__` is a copy of what runpy made of the script (CPython Lib/multiprocessing/spawn.py,
    `_fixup_main_from_path`), so a variable of the script exists twice.
    """
    main = sys.modules.get("__mp_main__")
    if main is None or type(main) is not types.ModuleType:
        return None
    copy = module_dict(main)
    for value in list(copy.values()):
        if type(value) is types.FunctionType and value.__globals__ is not copy:
            own = value.__globals__
            if own.get("__name__") == "__mp_main__":
                return own
    return None


def module_file(module: Any) -> str:
    """The file of a module; "" if it has none or is not a module."""
    if module is None or types.ModuleType not in mro(type(module)):
        return ""
    filename = module_dict(module).get("__file__")
    return filename if type(filename) is str else ""


def class_file(kind: type) -> str:
    """The file that defines a class, or the most recent notebook cell; "" for C classes."""
    module = type_dict(kind).get("__module__")
    if type(module) is not str:
        return ""
    file = module_file(sys.modules.get(module))
    if file or module != MAIN:
        return file
    return next((cell for cell in newest_first() if source.class_line(cell, type_qualname(kind))), "")


def package_base(kind: type) -> str:
    """The nearest base class from an installed package, as `torchmetrics.metric.Metric`.

    "" if there is none except those of torch and Python.
    """
    for base in mro(kind)[1:]:
        name, filename = qualified_name(base), class_file(base)
        if filename and not is_built_with(name) and not source.is_users(filename):
            return name
    return ""


def class_where(kind: type) -> str:
    """The line that defines a class of the user, as `train.py:12`; "" for any other."""
    filename = class_file(kind)
    if not filename or not source.is_users(filename):
        return ""
    name = type_qualname(kind)
    line = source.class_line(filename, name) or source.local_line(filename, "", name)  # `Batch = namedtuple(...)`
    return source.at(filename, line) if line else ""


_BY_NAME = frozenset(
    {"__setattr__", "setattr", "__dict__", "register_buffer", "register_module", "register_parameter", "add_module"}
)
"""Functions that set an attribute by name."""
_FIELDS = (MemberDescriptorType, GetSetDescriptorType)
"""Types with fields of their own in an instance, such as `args` of a partial."""
_WRAPPERS = (staticmethod, classmethod)


def package_that_sets(kind: type, name: str) -> str:
    """The installed package whose class sets this attribute of `kind` or a base, as `gpytorch`.

    "" if no class sets it, or if the first to do so is the user's.
    """
    for base in mro(kind):
        filename = class_file(base)
        if type(type_dict(base).get(name)) in _FIELDS or any(_sets(code, name) for code in _codes(base)):
            return "" if not filename or source.is_users(filename) else qualified_name(base).partition(".")[0]
    return ""


def _codes(kind: type) -> Iterator[CodeType]:
    """Code objects of the methods in a class body and of what decorators wrapped around them."""
    for name, value in list(type_dict(kind).items()):
        parts: tuple[Any, ...] = (value.fget, value.fset) if type(value) is property else (value,)
        for part in parts:
            yield from _codes_of(part.__func__ if type(part) in _WRAPPERS else part, name)


def _codes_of(value: Any, name: str) -> Iterator[CodeType]:
    seen: list[Any] = []
    found = [value]
    while found:
        function = found.pop()
        if type(function) is FunctionType and not any(function is one for one in seen):
            seen.append(function)
            yield function.__code__
            found += [function.__dict__.get("__wrapped__"), *_replaced(function, name)]


def _replaced(function: FunctionType, name: str) -> Iterator[Any]:
    """The original method behind a wrapper without `__wrapped__`: torch.compile wraps every module's `__init__`
    (torch/_dynamo/mutation_guard.py).
    """
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            held = cell.cell_contents
            if type(held) is FunctionType and held.__name__ == name:
                yield held


def _sets(code: CodeType, name: str) -> bool:
    if name in code.co_consts and not _BY_NAME.isdisjoint(code.co_names):
        return True
    if name not in code.co_names:
        return False
    return any(step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code))


Named = tuple[ReferenceKind, str, Any]
"""(reference kind, name as written in code, referent)"""
Reader = Callable[[Any], Iterator[Named]]
"""Names the referents of one object. It runs no user code: only C slots of exact types and their bases."""

# Bound once: up to Python 3.11 an enum's member costs a third of a microsecond, and readers yield millions.
ITEM, ATTRIBUTE = ReferenceKind.ITEM, ReferenceKind.ATTRIBUTE
LOCAL, CLOSURE = ReferenceKind.LOCAL, ReferenceKind.CLOSURE

_MAX_KEY_LENGTH = 40
"""Maximum characters of a key in a name."""
_MAX_KEY_ITEMS = 4
"""Maximum items of a tuple key in a name."""


def key_text(key: Any) -> str:
    """A dict key as written in code, without calling a user's `__repr__`."""
    kind = type(key)
    if kind is str:
        return repr(key if len(key) <= _MAX_KEY_LENGTH else key[: _MAX_KEY_LENGTH - 3] + "...")
    if any(kind is plain for plain in (int, bool, float, bytes, type(None))):
        return repr(key)
    if kind is tuple:
        inner = ", ".join(key_text(item) for item in tuple.__iter__(key)) if len(key) <= _MAX_KEY_ITEMS else "..."
        return f"({inner})"
    return f"<{type_name(kind)}>"


def c_fields(obj: Any, base: type, hidden: str | None = None) -> Iterator[Named]:
    """Contents of the C fields that one base has added, except names that begin with `hidden`."""
    for name, descriptor in type_dict(base).items():
        if type(descriptor) is types.MemberDescriptorType and not (hidden and name.startswith(hidden)):
            try:
                yield ATTRIBUTE, f".{name}", descriptor.__get__(obj)
            except AttributeError:  # never set
                continue


def function(obj: Any) -> Iterator[Named]:
    """Closure variables by name, defaults and globals of a function."""
    get = types.FunctionType.__dict__
    code = get["__code__"].__get__(obj)
    for name, cell in zip(code.co_freevars, get["__closure__"].__get__(obj) or (), strict=False):
        yield CLOSURE, f"closure {name}", cell
    yield CLOSURE, "closure", get["__closure__"].__get__(obj)
    named = [(f".{name}", get[name].__get__(obj)) for name in _OF_FUNCTIONS]
    named.append((".__dict__", instance_dict(obj, types.FunctionType)))  # reading it would create one
    yield from ((ATTRIBUTE, name, held) for name, held in named)
    known = {id(held) for _, held in named} | {id(get["__closure__"].__get__(obj))}
    for held in gc.get_referents(obj):  # reading __annotations__ would create a dict
        if (type(held) is dict or type(held) is tuple) and id(held) not in known:
            yield ATTRIBUTE, ".__annotations__", held


_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__", "__globals__", "__builtins__")


def cell(obj: Any) -> Iterator[Named]:
    """The variable in a closure cell."""
    try:
        yield CLOSURE, "cell", obj.cell_contents
    except ValueError:  # an empty cell
        return


_FRAME = 3
"""Word of a frame object that points to the interpreter's frame (CPython Include/internal/pycore_frame.h)."""
_EXTRA_LOCALS = 6
"""Word of a frame object where two dicts start that `f_locals` may have created, since Python 3.13."""
_F_LOCALS, _CODE, _FRAME_OBJECT = (3, 4, 5) if sys.version_info < (3, 12) else (5, 0, 6)
"""Words of an interpreter's frame: the dict of `f_locals` or the namespace, the code, the frame object (struct
_PyInterpreterFrame). The first and last are 0 until requested.
"""
_SLOTS = 9
"""Words of an interpreter's frame before its variables."""
_STATE = 5
"""Bytes between a generator's state and its frame (Include/cpython/genobject.h)."""
_CLEARED = 4
"""State of a finished generator, whose frame is gone: FRAME_CLEARED."""
_CODE_OF: dict[type, Any] = {
    types.GeneratorType: types.GeneratorType.__dict__["gi_code"].__get__,
    types.CoroutineType: types.CoroutineType.__dict__["cr_code"].__get__,
    types.AsyncGeneratorType: types.AsyncGeneratorType.__dict__["ag_code"].__get__,
}


class FrameContents(NamedTuple):
    """The contents of a frame."""

    variables: list[tuple[str, Any]]
    """Each bound variable by name; for a closure variable the cell, not the value."""
    namespace: Any
    """The dict of `f_locals` if the frame has one, or the namespace that a class body or module fills; else None."""
    frame: types.FrameType | None
    """The frame object, if one exists."""


_NOTHING = FrameContents([], None, None)


def frame_contents(obj: Any) -> FrameContents:
    """Read the contents of a frame, or of the frame of a generator, coroutine or async generator, without changing it.

    Up to Python 3.12, reading `f_locals` creates a dict that stays with the frame and keeps the values alive, or
    overwrites the dict that a debugger or library may have filled for `PyFrame_LocalsToFast` (Objects/frameobject.c,
    PyFrame_FastToLocals). `gi_frame` creates a frame object that stays with the generator.
    """
    place = _place_of_frame(obj)
    if place is None:
        return _NOTHING
    guard, width, expected, inner = place
    names = _variable_names(_code_of(obj))
    values = slots_at(guard, width, expected, inner + _SLOTS * WORD, len(names))
    head = slots_at(guard, width, expected, inner + _F_LOCALS * WORD, _FRAME_OBJECT - _F_LOCALS + 1)
    if values is None or head is None:  # the function has returned meanwhile, in another thread
        return _NOTHING
    bound = [(name, value) for name, value in zip(names, values, strict=True) if value is not MISSING]
    namespace, frame = (None if held is MISSING else held for held in (head[0], head[-1]))
    return FrameContents(bound, namespace, frame)


def _place_of_frame(obj: Any) -> tuple[int, int, int, int] | None:
    """Return (guard as for `slots_at`, its width, its value while the frame exists, address of the interpreter's
    frame).
    """
    if not FRAMES_CAN_BE_READ:
        return None
    if type(obj) is types.FrameType:
        guard = id(obj) + _FRAME * WORD
        inner = word_at(guard)
        return guard, WORD, inner, inner
    inner = id(obj) + type(obj).__basicsize__ - _SLOTS * WORD
    state = ctypes.c_uint8.from_address(inner - _STATE).value
    return None if state == _CLEARED else (inner - _STATE, 1, state, inner)


def _code_of(obj: Any) -> types.CodeType:
    code: types.CodeType = obj.f_code if type(obj) is types.FrameType else _CODE_OF[type(obj)](obj)
    return code


def forget_variable(obj: Any, name: str, value: object) -> bool:
    """Set a variable of a frame or generator with this value to None; False if there is none.

    For a forked copy of the process only.
    """
    place = _place_of_frame(obj)
    names = [] if place is None else _variable_names(_code_of(obj))
    for known, held in frame_contents(obj).variables:
        if known != name:
            continue
        if type(held) is types.CellType and held is not value:
            held.cell_contents = None
            return True
        if held is value and place is not None:
            slots = place[-1] + _SLOTS * WORD
            at = next(k for k in range(len(names)) if names[k] == name and word_at(slots, k) == id(value))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
            ctypes.c_size_t.from_address(slots + at * WORD).value = id(None)
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(value))
            return True
    return False


def _variable_names(code: types.CodeType) -> list[str]:
    """Names of a frame's slots in order (Python/compile.c, compute_localsplus_info)."""
    local = code.co_varnames
    return [*local, *(name for name in code.co_cellvars if name not in local), *code.co_freevars]


def held_by_frame(frame: types.FrameType) -> list[Any]:
    """All referents of a frame, and the contents of its cells."""
    variables, namespace, _ = frame_contents(frame)
    held = [value for _, value in variables]
    for value in held.copy():
        if type(value) is types.CellType:
            try:
                held.append(value.cell_contents)
            except ValueError:  # an empty cell
                continue
    return held if namespace is None or namespace is frame.f_globals else [*held, namespace]


def _frames_can_be_read() -> bool:
    """Whether a probe frame and a probe generator have the expected layout; nothing read is used as an object."""
    closed, local = object(), object()

    def called(argument: object) -> bool:
        frame = sys._getframe()
        inner = word_at(id(frame), _FRAME)
        head = [word_at(inner, _CODE), word_at(inner, _F_LOCALS), word_at(inner, _FRAME_OBJECT)]
        slots = [word_at(inner, _SLOTS + k) for k in range(len(_variable_names(frame.f_code)))]
        cell = called.__closure__[frame.f_code.co_freevars.index("closed")]  # type: ignore[index]
        return (
            head == [id(frame.f_code), 0, id(frame)]
            and slots[:2] == [id(argument), id(frame)]
            and id(cell) in slots[-len(frame.f_code.co_freevars) :]
            and closed is cell.cell_contents
        )

    def suspended(argument: object) -> Iterator[object]:
        yield argument

    generator = suspended(local)
    inner = id(generator) + type(generator).__basicsize__ - _SLOTS * WORD
    state = ctypes.c_uint8.from_address(inner - _STATE)
    is_found = (next(generator), word_at(inner, _CODE), word_at(inner, _SLOTS)) == (
        local, id(suspended.__code__), id(local),
    )  # fmt: skip
    is_found = is_found and state.value != _CLEARED
    for _ in generator:
        pass
    return is_found and state.value == _CLEARED and called(local)


FRAMES_CAN_BE_READ = LAYOUT_IS_KNOWN and _frames_can_be_read()
"""Whether variables of frames can be read in this Python."""


def frame(obj: types.FrameType) -> Iterator[Named]:
    """Locals, the dict of `f_locals`, the calling frame, the running function."""
    variables, namespace, _ = frame_contents(obj)
    for name, value in variables:
        yield LOCAL, f"local {name}", value
    for held in (namespace, *_added_locals(obj)):
        if held is not None:
            yield ATTRIBUTE, ".f_locals", held
    if obj.f_back is not None:
        yield ATTRIBUTE, ".f_back", obj.f_back
    yield from _called(obj, obj.f_code)


def _added_locals(frame: types.FrameType) -> list[Any]:
    """Entries added to `f_locals` beside the variables, since Python 3.13: `f_extra_locals` and `f_locals_cache`."""
    if not FRAMES_CAN_BE_READ or sys.version_info < (3, 13):
        return []
    guard = id(frame) + _FRAME * WORD
    found = slots_at(guard, WORD, word_at(guard), id(frame) + _EXTRA_LOCALS * WORD, 2)
    return [held for held in found or () if held is not MISSING]


def _called(obj: Any, code: types.CodeType) -> Iterator[Named]:
    """The function of a frame, which the frame keeps alive without a name since Python 3.11."""
    for held in gc.get_referents(obj):
        if type(held) is types.FunctionType and types.FunctionType.__dict__["__code__"].__get__(held) is code:
            yield ATTRIBUTE, "its function", held


def suspended(prefix: str) -> Reader:
    """Generators, coroutines and async generators: the locals of their frame."""

    def read(obj: Any) -> Iterator[Named]:
        variables, namespace, frame = frame_contents(obj)
        for name, value in variables:
            yield LOCAL, f"local {name}", value
        if namespace is not None:
            yield ATTRIBUTE, f".{prefix}_frame.f_locals", namespace
        if frame is not None:
            yield ATTRIBUTE, f".{prefix}_frame", frame
        yield from _called(obj, _code_of(obj))
        waiting = getattr(obj, {"gi": "gi_yieldfrom", "cr": "cr_await", "ag": "ag_await"}[prefix])
        if waiting is not None:
            yield ATTRIBUTE, ".awaiting", waiting

    return read


def traceback(obj: types.TracebackType) -> Iterator[Named]:
    """The frame of the traceback, and the next traceback."""
    yield ATTRIBUTE, ".tb_frame", obj.tb_frame
    if obj.tb_next is not None:
        yield ATTRIBUTE, ".tb_next", obj.tb_next


def exception(obj: BaseException) -> Iterator[Named]:
    """Traceback, arguments, cause and context."""
    get = BaseException.__dict__
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        value = get[name].__get__(obj)
        if value is not None:
            yield ATTRIBUTE, f".{name}", value
    for base in mro(type(obj)):  # .value of StopIteration, .obj of AttributeError, .exceptions of a group, ...
        if not made_in_python(base):
            yield from c_fields(obj, base, hidden="__")


def dict_items(obj: Any) -> Iterator[Named]:
    """Values by key, then the keys."""
    items = list(dict.items(obj))  # one C call: another thread may add an item meanwhile
    for key, value in items:
        yield ITEM, f"[{key_text(key)}]", value
    for key, _ in items:
        yield ITEM, f"key {key_text(key)}", key


def default_dict(obj: Any) -> Iterator[Named]:
    """As a dict, with the default factory."""
    yield from dict_items(obj)
    yield ATTRIBUTE, ".default_factory", collections.defaultdict.__dict__["default_factory"].__get__(obj)


def sequence(base: Any) -> Reader:
    """Return a reader of items by position."""
    iterate = base.__iter__

    def read(obj: Any) -> Iterator[Named]:
        for k, value in enumerate(list(iterate(obj))):
            yield ITEM, f"[{k}]", value

    return read


def items_of(obj: Any) -> Iterable[Any]:
    """The present items of a tuple: while `step` runs, `tuple(step() for ...)` builds a tuple with empty slots.

    Iterating over an empty slot crashes the process. gc's traversal skips it and visits items from last to first
    (Objects/tupleobject.c). Instances of tuple subclasses never have empty slots.
    """
    return gc.get_referents(obj)[::-1] if type(obj) is tuple else tuple.__iter__(obj)


def items_of_tuple(obj: Any) -> Iterator[Named]:
    """Items by position."""
    for k, value in enumerate(items_of(obj)):
        yield ITEM, f"[{k}]", value


def members(base: Any) -> Reader:
    """Return a reader of items without positions."""
    iterate = base.__iter__

    def read(obj: Any) -> Iterator[Named]:
        for value in list(iterate(obj)):
            yield ITEM, "{...}", value

    return read


def getters(base: type, *names: str) -> Reader:
    """Return a reader of C attributes, by their descriptors."""
    descriptors = [(name, base.__dict__[name]) for name in names if name in base.__dict__]

    def read(obj: Any) -> Iterator[Named]:
        for name, descriptor in descriptors:
            value = descriptor.__get__(obj)
            if value is not None:
                yield ATTRIBUTE, f".{name}", value

    return read


def reference(obj: Any) -> Iterator[Named]:
    """A weak reference holds its callback, not its referent."""
    callback = weakref.ref.__dict__["__callback__"].__get__(obj)
    if callback is not None:
        yield ATTRIBUTE, ".__callback__", callback


def iterated(obj: Any) -> Iterator[Named]:
    """Builtin iterators and views have no attribute for what they iterate over."""
    for held in gc.get_referents(obj):
        yield ITEM, "iterated", held


def context(obj: Any) -> Iterator[Named]:
    """contextvars.Context and the nodes of its tree (Python/hamt.c): a value is reported directly
    before its variable.
    """
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
"""Type of an entry of a bounded cache; the traversal reports it after its key and result (CPython,
Modules/_functoolsmodule.c, lru_cache_tp_traverse).
"""


def closed(obj: Any) -> Iterator[Named]:
    """functools.lru_cache: CPython reports the keys, which hold the arguments, the results and the wrapped function."""
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


_BY_ADDRESS = {id(kind): reader for kind, reader in READERS.items()}  # a metaclass may define __hash__


def reader_of(kind: type) -> Reader | None:
    """The reader of the nearest base that has one."""
    for base in mro(kind):
        reader = _BY_ADDRESS.get(id(base))
        if reader is not None:
            return reader
    return context if type_name(kind) in CONTEXT_PARTS and not made_in_python(kind) else None


def slots(obj: Any, kind: type) -> Iterator[Named]:
    """`__slots__` of every base, through their member descriptors; only Python classes have their own."""
    if made_in_python(kind):
        for base in mro(kind):
            if made_in_python(base):
                yield from c_fields(obj, base)
