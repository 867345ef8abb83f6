"""Calls back right after the script's own `import torch`, so that what the script sets before it counts."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from leakscope.capture.process.guard import Guard
from leakscope.capture.process.patches import Patches


class AfterImport(importlib.abc.MetaPathFinder):
    """Stands first in `sys.meta_path` until the module has been imported once."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then, self._asking = name, then, False
        self._guard = Guard()

    def install(self, patches: Patches) -> None:
        """Wait for the import; a module that is there already has had it."""
        self._guard = patches.guard
        self._then = self._guard.guarded(f"import of {self._name}", self._then)
        if self._name in sys.modules:
            self._then()
        else:
            sys.meta_path.insert(0, self)
            patches.add(f"import hook for {self._name}", self._remove)

    def _remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Ask the other finders for the module that is waited for, and stand between it and its loader."""
        del path, target
        if fullname != self._name or self._asking or self._guard.deaf:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        except Exception:  # noqa: BLE001 - a finder's own: Python asks it next, and has it from there
            return None
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def imported(self) -> None:
        """The module's own code has run."""
        self._remove()
        self._then()


class _Loader(importlib.abc.Loader):
    """The module's own loader, with a word at the end; it puts the real one back first."""

    def __init__(self, real: importlib.abc.Loader, finder: AfterImport) -> None:
        self._real, self._finder = real, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._finder.imported()

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)
