"""Replacements of functions, in every namespace and under the original's identity, and callbacks after imports.

Every recorded process imports this module first. It loads only what an interpreter has loaded at its start.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_Module: Any = type(sys)
_Function: Any = type(lambda: None)
_Builtin: Any = type(len)
_namespace = vars(_Module)["__dict__"].__get__
_COPIED = ("__module__", "__name__", "__qualname__", "__doc__", "__defaults__", "__kwdefaults__")
"""Attributes of a function; to have defaults changes nothing for one that takes `*args, **kwargs`."""


class OfBuiltin:
    """Stands in for a function written in C: it does not bind as a method, and is equal to the function.

    A Python function would bind where a class has it as an attribute, and would not be found where the original is a
    key, as `os.execve` is in `os.supports_fd`.
    """

    def __init__(self, original: Any, function: Callable[..., Any]) -> None:
        vars(self).update(_call=function, __wrapped__=original)
        vars(self).update(__module__=original.__module__, __doc__=original.__doc__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function that stands in."""
        return vars(self)["_call"](*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # so that `inspect.isbuiltin` answers as for the original
        return _Builtin  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["__wrapped__"], name)

    def __repr__(self) -> str:
        return repr(vars(self)["__wrapped__"])

    def __eq__(self, other: object) -> bool:
        return self is other or bool(vars(self)["__wrapped__"] == other)

    def __hash__(self) -> int:
        return hash(vars(self)["__wrapped__"])

    def __copy__(self) -> OfBuiltin:
        return self

    def __deepcopy__(self, _: object) -> OfBuiltin:
        return self

    def __reduce__(self) -> Any:
        module, name = self.__module__, self.__name__
        if getattr(sys.modules.get(module), name, None) is self:
            return name
        from pkgutil import resolve_name  # a reference to this one outlived the patch

        return resolve_name, (f"{module}:{name}",)


def stand_in(original: Any, function: Any, binds: bool) -> Any:
    """Make a new function that takes `*args, **kwargs` look like another one.

    `binds` says whether the original becomes a method as an attribute of a class.
    """
    if not binds and type(original) in (_Builtin, OfBuiltin):
        return OfBuiltin(original, function)
    for name in _COPIED:
        try:
            setattr(function, name, getattr(original, name))
        except AttributeError:  # methods in C have fewer
            continue
    function.__annotations__ = getattr(original, "__annotations__", {})
    function.__wrapped__ = original
    return function


def by_name(function: Any, owner: type, name: str) -> None:
    """Let pickle find the function at `owner.name` if the original belongs to another class, or has no module."""
    if type(function) is _Function and "<locals>" not in function.__qualname__ and _found(function) is not function:
        function.__module__, function.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"


def _found(function: Any) -> Any:
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found


def put_everywhere(*exchanges: tuple[object, object]) -> None:
    """Replace the first object of each pair by the second under every name in every module.

    Modules of leakscope are not changed. All pairs take one pass: 10 ms with 3,000 modules.
    """
    wanted = {id(old): (old, new) for old, new in exchanges}
    for title, module in list(sys.modules.items()):
        if title.partition(".")[0].startswith("leakscope") or not issubclass(type(module), _Module):
            continue
        names = _namespace(module) or {}
        for name, there in list(names.items()):
            if id(there) in wanted:
                old, new = wanted[id(there)]
                if names.get(name) is old:  # another thread may have replaced it
                    names[name] = new


class ImportHook:
    """A finder, first in `sys.meta_path`, that calls a function after the code of a module has run."""

    def __init__(self, name: str, then: Callable[[], object], is_active: Callable[[], object]) -> None:
        self._name, self._then, self._is_active = name, then, is_active

    def install(self) -> None:
        """Wait for the import."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop waiting."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's spec from the finders behind this one, with its loader wrapped; None for other modules.

        Two hooks that wait for one module must not search each other in turn.
        """
        if name != self._name or not self._is_active():
            return None
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 if self in finders else 0 :]:
            find = getattr(finder, "find_spec", None)
            spec: Any = None if find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def imported(self) -> None:
        """Called after the module's code has run."""
        self.remove()
        self._then()


class _Loader:
    """Wraps the module's loader to report when it is done; restores the original first."""

    def __init__(self, real: Any, hook: ImportHook) -> None:
        self._real, self._hook = real, hook

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._hook.imported()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
