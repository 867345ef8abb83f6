"""Starts the process of a rank, and imports leakscope's modules where a script has its own `sys.path`.

`python [FLAGS] .../bootstrap.py [WORDS]...` calls `main` of `leakscope.recorder`. `python -m` would put the working
directory first on `sys.path` while leakscope and what it needs are imported, so that a `token.py` there stands
in for the standard library's. Run as a file, Python puts this file's folder there instead (CPython Modules/main.c,
pymain_run_python), which is removed before the first import.

The script must get its own modules, and leakscope those of the standard library. `own_imports` swaps `sys.path`, and
those entries of `sys.modules` on which the two disagree, while leakscope imports something.

This file is run before anything of leakscope can be imported: it imports nothing but what Python has loaded itself.
"""

from __future__ import annotations

import _frozen_importlib
import _frozen_importlib_external
import _imp
import os
import sys

TYPE_CHECKING = False  # from typing, which must not be imported before the script
if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType
    from typing import Any

NAME = "leakscope.bootstrap"
FILE = os.path.abspath(__file__)
_PACKAGE = FILE.removesuffix("/bootstrap.py")
"""The folder of the package `leakscope` that this file belongs to."""
RECORDING = tuple(f"{_PACKAGE}/{name}/" for name in ("comm", "dataloader", "heap", "process", "recorder"))
"""The folders of the packages whose code runs between the script's, each with a slash at its end."""
_OURS = ("leakscope", "leakscope_cli")
"""Packages that stay in `sys.modules` in any case: later imports of their modules depend on it."""
_STDLIB = os.path.dirname(os.__file__)
_PathFinder: Any = _frozen_importlib_external.PathFinder

_own_path: list[str] = []
"""`sys.path` while leakscope imports something; empty in a process that leakscope has not started."""
_start: list[Any] = []
"""The script's `sys.path` without its first entry, and the names in `sys.modules` at the start. Empty once the script
has them, and in a process that this file has not started.
"""
_hidden: dict[str, ModuleType] = {}
"""Modules that leakscope has imported and that the script would find elsewhere, by name."""


def remember(path: Sequence[str]) -> None:
    """Import from `path` in `own_imports`.

    Args:
        path: `sys.path` as the interpreter has made it, without the script's folder. Its entries keep their order, but
            the standard library goes first: PYTHONPATH stands before it, and often is the working directory.

    """
    _own_path[:] = sorted(path, key=lambda entry: not _is_stdlib(entry))


def use_own_path() -> None:
    """Import as in `own_imports` for good, in a process that is leakscope's alone: `python -m leakscope`.

    The first entry of `sys.path` is the working directory, or the folder of the console script.
    """
    if not sys.flags.safe_path:
        del sys.path[0]
    remember(sys.path)
    sys.path[:] = _own_path


def become_rank(path: list[str], before: set[str]) -> None:
    """Prepare a fork of a process that has imported modules for the script, as `_run` prepares a new Python.

    Args:
        path: `sys.path` of that process when it began, without its first entry.
        before: Names in `sys.modules` then.

    """
    _start[:] = path, before
    sys.path = _own_path


def own_imports() -> AbstractContextManager[None]:
    """The block in which leakscope imports what it needs, restored whatever exception of the script's interrupts it."""
    if "leakscope.shield" not in sys.modules:  # in a followed process, before anything else of leakscope
        first = _OwnImports()
        try:
            first.enter()
        finally:
            first.leave()
    from leakscope.shield import Block

    block = _OwnImports()
    return Block(block.enter, block.leave)


class _OwnImports:
    """Import what leakscope needs from where leakscope finds it, and leave the script what it would find.

    Inside the block `sys.path` has no folder of the script's, and the standard library's modules are its own. After the
    block `sys.path` is the list that it was. A module that was imported inside and that the script would find in
    another file is no longer in `sys.modules`: the script's own import finds that file. Nothing is changed in a process
    that neither this file nor a followed process has started.
    """

    def __init__(self) -> None:
        self._path = sys.path
        self._theirs: dict[str, ModuleType] = {}
        self._before: set[str] | None = None

    def enter(self) -> None:
        if not _own_path or sys.path is _own_path:
            return
        front = _ahead_of_stdlib(sys.path)
        shadowed = [name for name in sys.modules.copy() if _is_from(name, front)]
        self._theirs = {below: sys.modules[below] for name in shadowed for below in _and_below(name)}
        self._before = set(sys.modules) - set(self._theirs)  # from here on `leave` restores everything
        for name in self._theirs:
            sys.modules.pop(name, None)
        sys.modules.update(_hidden)
        sys.path = _own_path

    def leave(self) -> None:
        if self._before is None:
            return
        sys.path = self._path
        hide(self._before)
        sys.modules.update(self._theirs)


def hide(before: set[str]) -> None:
    """Take out of `sys.modules` what has come since `before` and what the script, with `sys.path`, finds elsewhere."""
    front = _ahead_of_stdlib(sys.path)
    known = {name.partition(".")[0] for name in before}
    for name in {name.partition(".")[0] for name in sys.modules.copy()} - known - set(_OURS):
        if name in sys.builtin_module_names or _imp.is_frozen(name):
            continue  # takes precedence over any file
        spec = _PathFinder.find_spec(name, front)
        if spec is None or spec.loader is None:  # none, or a folder that is a package only if nothing else is found
            continue
        if spec.origin != getattr(getattr(sys.modules[name], "__spec__", None), "origin", None):
            for each in _and_below(name):
                _hidden[each] = sys.modules[each]
                del sys.modules[each]


def _and_below(name: str) -> list[str]:
    """The names of a module and of those in it, as far as they are imported."""
    below = f"{name}."
    return [there for there in sys.modules.copy() if there == name or there.startswith(below)]


def _is_stdlib(entry: str) -> bool:
    return entry in (_STDLIB, f"{_STDLIB}/lib-dynload")


def _ahead_of_stdlib(path: Sequence[str]) -> list[str]:
    """Entries of a path that can stand in for the standard library."""
    first = next((place for place, entry in enumerate(path) if _is_stdlib(entry)), len(path))
    return list(path[:first])


def _is_from(name: str, entries: Sequence[str]) -> bool:
    """Whether a top-level module with the name of one of the standard library's was found at one of these entries."""
    if name not in sys.stdlib_module_names:
        return False
    origin = getattr(vars(sys.modules[name]).get("__spec__"), "origin", None)
    if type(origin) is not str:
        return False
    folder = os.path.dirname(origin)
    folders = (folder, os.path.dirname(folder)) if os.path.basename(origin).startswith("__init__.") else (folder,)
    return any(os.path.abspath(entry) in folders for entry in entries)


def load_package() -> None:
    """Import the package `leakscope` that this file belongs to, whatever else `sys.path` has under that name."""
    name = "leakscope"
    there = sys.modules.get(name)
    if there is not None:
        if getattr(there, "__path__", None) != [_PACKAGE]:
            raise ImportError(f"the script has imported another package of the name {name}: {there!r}")
        return
    spec: Any = _frozen_importlib_external.spec_from_file_location(
        name, f"{_PACKAGE}/__init__.py", submodule_search_locations=[_PACKAGE]
    )
    sys.modules[name] = package = _frozen_importlib.module_from_spec(spec)
    spec.loader.exec_module(package)


def leave_to_script(first: str | None) -> None:
    """Give the script the `sys.path` and `sys.modules` that it has under plain Python.

    Args:
        first: the entry that Python would put first for it; None where it would put none.

    """
    if _start:
        sys.path, before = _start
        _start.clear()
    else:  # `main` was called without this file: the first entry is the caller's
        before = None
        if not sys.flags.safe_path:
            del sys.path[0]
    if first is not None:
        sys.path.insert(0, first)
    if before is not None:
        hide(before)


def _run() -> Any:
    """Call `main` of the recorder; gives what to pass to `sys.exit`."""
    if not sys.flags.safe_path:
        del sys.path[0]
    remember(sys.path)
    _start[:] = sys.path, set(sys.modules)
    sys.path = _own_path
    sys.modules[NAME] = sys.modules["__main__"]
    load_package()
    # under the module's own name, by which snapshots recognise these frames as leakscope's
    from leakscope.recorder.__main__ import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    __name__ = NAME  # including these frames
    sys.exit(_run())
