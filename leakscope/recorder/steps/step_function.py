"""Makes each return of a function that the user names end a step."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from leakscope.process.patches import Patches

_DECORATOR = "__leakscope_step__"
"""The builtin name under which the compiled script finds the decorator: its own names stay as they are."""
_RUNNING: ContextVar[bool] = ContextVar("leakscope_step_function", default=False)
"""Whether a call is in progress: a recursive call is one step."""


class StepFunction:
    """The step function, as `train_step`, `Trainer.training_step` or `package.module.function`.

    A function defined in the script is wrapped by a decorator added when its code is compiled, at any depth; an
    imported one is wrapped after its module has been imported, before any `from module import name`.
    """

    def __init__(self, name: str, returned: Callable[[], None]) -> None:
        self._parts = tuple(name.split("."))
        self._returned = returned
        self._patches = Patches()
        self.seen = False
        """Whether such a function has been defined or imported."""

    def install(self, patches: Patches) -> None:
        """Wait for the modules that the name may begin with."""
        self._patches = patches
        self._around = patches.guard.untraced("definition of the step function", self.around)
        patches.replace(builtins, _DECORATOR, self._defined)
        self._await(self._parts)

    def compiled(self, source: str | bytes, path: str, package: str = "") -> CodeType:
        """Compile the script's code; raises SyntaxError as `compile` does."""
        tree = ast.parse(source, path)
        defined = list(_definitions(tree, ()))
        called = [(len(parts), node) for parts, node in defined if parts[-len(self._parts) :] == self._parts]
        least = min((depth for depth, _ in called), default=0)
        for depth, node in called:
            if depth == least:
                place = node.decorator_list[0] if node.decorator_list else node
                mark = ast.copy_location(ast.Name(_DECORATOR, ast.Load()), place)
                node.decorator_list.insert(0, mark)
        if not called:
            for imported in _imports(tree, self._parts[0], package):
                self._await((*imported, *self._parts[1:]))
        return compile(tree, path, "exec", dont_inherit=True)

    def _await(self, parts: Sequence[str]) -> None:
        for count in range(1, len(parts)):
            module, rest = ".".join(parts[:count]), parts[count:]
            self._patches.after_import(module, functools.partial(self._wrap_in, module, rest))

    def _wrap_in(self, module: str, rest: Sequence[str]) -> None:
        owner: Any = sys.modules.get(module)
        for part in rest[:-1]:
            owner = inspect.getattr_static(owner, part, None)
            if not isinstance(owner, type):
                return
        value = inspect.getattr_static(owner, rest[-1], None)
        stepping = self.around(value)
        if stepping is not value:
            self._patches.replace(owner, rest[-1], stepping)

    def _defined(self, value: Any) -> Any:
        """As `around`; called by the script's code, which gets its own function if this fails."""
        guard = self._patches.guard
        if guard.disabled:
            return value
        try:
            return self._around(value)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
            guard.internal_error("definition of the step function", error)
            return value

    def around(self, value: Any) -> Any:
        """Wrap a function or method to report each return; return anything else unchanged."""
        if isinstance(value, (staticmethod, classmethod)):
            within = self.around(value.__func__)
            return value if within is value.__func__ else type(value)(within)
        if not isinstance(value, (FunctionType, BuiltinFunctionType)):
            return value
        self.seen = True
        if inspect.iscoroutinefunction(value):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                outermost = self._begin()
                try:
                    return await value(*args, **kwargs)
                finally:
                    del args, kwargs
                    self._end(outermost)

            return functools.wraps(value)(awaited)

        def stepped(*args: Any, **kwargs: Any) -> Any:
            outermost = self._begin()
            try:
                return value(*args, **kwargs)
            finally:
                del args, kwargs  # a snapshot must not find them here
                self._end(outermost)

        return functools.wraps(value)(stepped)

    def _begin(self) -> bool:
        outermost = not _RUNNING.get()
        _RUNNING.set(True)
        return outermost

    def _end(self, outermost: bool) -> None:
        if outermost:
            _RUNNING.set(False)
            self._returned()


def _definitions(
    tree: ast.AST, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each function of a tree, by its name and those of the enclosing classes and functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (*above, node.name), node
            yield from _definitions(node, (*above, node.name))
        else:
            yield from _definitions(node, (*above, node.name) if isinstance(node, ast.ClassDef) else above)


def _imports(tree: ast.AST, name: str, package: str) -> Iterator[tuple[str, ...]]:
    """The full name that the script imports under this one: `from engine import Trainer` gives `engine`, `Trainer`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            within = [*above, *(node.module or "").split(".")] if node.module else above
            yield from ((*within, alias.name) for alias in node.names if name == (alias.asname or alias.name))
        elif isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names if name == alias.asname)
