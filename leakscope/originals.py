"""Private copies of the modules of Python through which leakscope acts inside the user's process.

Scripts and tests replace functions of these modules: gevent and eventlet patch `_thread`, `time`, `os` and `select`,
freezegun and pyfakefs also patch the namespace of each loaded module, and `unittest.mock.patch` can patch any of them.
Code that runs in the user's process therefore never imports such a module. It writes

    from leakscope.originals import os, time

and gets what Python had when this module was imported, ahead of the script. tests/test_originals.py checks that.

A copy is not a module, because pyfakefs replaces modules by their `__name__` in every namespace that has them. Its
functions that are written in Python are copied too, with the copy as their globals: `os.makedirs` calls the original
`os.mkdir`, and `os.path.exists` the original `os.stat`. Classes are shared with the real module.

Every recorded process imports this module first. It loads only what an interpreter has loaded at its start; other
modules are copied at their first use, or by `take`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    import _thread
    import atexit
    import fcntl
    import gc
    import json
    import mmap
    import os
    import resource
    import select
    import shutil
    import signal
    import tempfile
    import time
    from builtins import open as open_file
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

__all__ = [
    "FROZEN_BY_PYTHON",
    "Path",
    "_thread",
    "atexit",
    "fcntl",
    "gc",
    "json",
    "mmap",
    "open_file",
    "os",
    "referents_in_c",
    "resource",
    "select",
    "shutil",
    "signal",
    "take",
    "tempfile",
    "time",
]

FROZEN_BY_PYTHON = 1_000 if sys.version_info[:2] == (3, 12) else 0
"""Objects that Python itself has frozen when it starts, at most: 375 in 3.12.1."""

_Module: Any = type(sys)
_Function: Any = type(lambda: None)
_Builtin: Any = type(len)
_IN_C = ("fcntl", "mmap", "resource", "select")
_TAKEN = ("signal", "json", "Path", "select", "fcntl", "mmap", "resource")
_copies: dict[Any, Any] = {}
"""The copy of each original module and function."""
_builtins = dict(vars(sys.modules["builtins"]))
"""Builtins of the copied functions. One of them may call `open` after the script has replaced it."""


class Copy:
    """A copy of a module."""

    def __init__(self, names: dict[str, Any]) -> None:
        vars(self).update(names)

    def __repr__(self) -> str:
        return f"<leakscope's copy of {vars(self)['__name__']}>"


def _of_c(name: str) -> Copy:
    """Copy a module written in C, with its own functions in place of those that have been replaced already.

    Its initialization, run again, makes new functions from the table in C (PEP 489), and leaves the module alone.
    """
    module = __import__(name)
    names = dict(vars(module))
    odd = [
        key
        for key, value in names.items()
        if callable(value) and not isinstance(value, (_Builtin, type)) and not key.startswith("__")
    ]
    if odd:
        spec = _spec(name)
        new = spec.loader.create_module(spec)
        spec.loader.exec_module(new)
        names |= {key: vars(new)[key] for key in odd if key in vars(new)}
    _copies[module] = copy = Copy(names)
    return copy


def _spec(name: str) -> Any:
    from importlib.machinery import BuiltinImporter, PathFinder

    return BuiltinImporter.find_spec(name) or PathFinder.find_spec(name)


def _of_python(module: Any, **instead: Any) -> Copy:
    """Copy a module written in Python, and its functions; `instead` are names that the copy has otherwise."""
    names = vars(module)
    copy = Copy({**names, "__builtins__": _builtins})
    own = vars(copy)
    for name, value in names.items():
        if type(value) is _Function and value.__globals__ is names:
            own[name] = _copies[value] = _bound(value, own)
        elif type(value) in (_Function, _Module):
            own[name] = _copies.get(value, value)
    own.update(instead)
    _copies[module] = copy
    return copy


def _bound(function: Any, names: dict[str, Any]) -> Any:
    """A copy of a function with other globals."""
    made = _Function(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__, made.__doc__ = function.__kwdefaults__, function.__doc__
    vars(made).update(vars(function))
    return made


def _os() -> Copy:
    in_c = vars(_of_c("posix"))
    path, generic = sys.modules["posixpath"], sys.modules["genericpath"]
    os = vars(generic)["os"]  # `sys.modules["os"]` is a fake while pyfakefs is active
    generic_copy = _of_python(generic)
    path_copy = _of_python(path, genericpath=generic_copy)
    functions = {key: value for key, value in in_c.items() if isinstance(value, _Builtin) and key in vars(os)}
    copy = _of_python(os, path=path_copy, fdopen=open_file, **functions)
    for each in (path_copy, generic_copy):
        vars(each)["os"] = copy
    return copy


def _signal() -> Copy:
    # not by `_of_c`: initialising this one sets the handler of SIGINT
    import _signal as in_c
    import signal

    return _of_python(signal, _signal=Copy(vars(in_c)))


def _path() -> type:
    """A `pathlib.Path` whose methods use the copies, and that is equal to one with the same parts."""
    import pathlib

    base = type(pathlib.Path())
    io = Copy({**vars(sys.modules["io"]), "open": open_file})
    globals_of: dict[str, dict[str, Any]] = {}
    methods: dict[str, Any] = {}
    for cls in reversed(base.__mro__[:-1]):
        for name, value in vars(cls).items():
            function = value.__func__ if type(value) is classmethod else value
            if name.startswith("__") or type(function) is not _Function:
                continue
            module = function.__module__
            if module not in globals_of:
                globals_of[module] = vars(_of_python(sys.modules[module], os=os, io=io))
            bound = _bound(function, globals_of[module])
            methods[name] = bound if function is value else classmethod(bound)

    def resolve(self: Any, strict: bool = False) -> Any:  # Python's own calls the functions of `self.parser`
        return type(self)(os.path.realpath(self, strict=strict))

    return type("Path", (base,), {"__slots__": (), "__module__": __name__, **methods, "resolve": resolve})


_MAKE: dict[str, Callable[[], object]] = {"signal": _signal, "Path": _path}


def _made(name: str) -> object:
    if name in _MAKE:
        return _MAKE[name]()
    return _of_c(name) if name in _IN_C else _of_python(__import__(name))


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = _made(name)
    return value


def take() -> None:
    """Copy now what is otherwise copied when it is first used. To be called ahead of the script."""
    for name in _TAKEN:
        if name not in globals():
            __getattr__(name)


_namespace = vars(_Module)["__dict__"].__get__


def _name_of(module: Any) -> object:
    """The `__name__` of a module, read without calling code of a subclass; None of anything else."""
    if not issubclass(type(module), _Module):
        return None
    name = (_namespace(module) or {}).get("__name__")
    return name if type(name) is str else None


def _referents_that_live(*objects: Any) -> list[Any]:
    """`gc.get_referents`, but of module `_asyncio` only its dict.

    Before 3.12.6 the module shows its free list of iterators too: to refer to those, which are dead, frees them a
    second time, and no collection ends from then on (CPython gh-122695).
    """
    found: list[Any] = []
    for obj in objects:
        found += [_namespace(obj)] if _name_of(obj) == "_asyncio" else _get_referents(obj)
    return found


def referents_in_c(objects: list[Any]) -> Callable[..., list[Any]]:
    """`gc.get_referents` for these objects, without Python code of ours that would let another thread go on."""
    return gc.get_referents if any(issubclass(type(obj), _Module) for obj in objects) else _get_referents


if not TYPE_CHECKING:
    open_file = sys.modules["_io"].open
    _builtins["open"] = open_file
    os = _os()
    _thread, atexit, gc, time = (_of_c(name) for name in ("_thread", "atexit", "gc", "time"))
_get_referents = gc.get_referents
if (3, 12) <= sys.version_info < (3, 12, 6):
    gc.get_referents = _referents_that_live
