"""Selects the C extensions, or their equivalents in Python."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from leakscope.originals import Path, os

NATIVE, PYTHON = "native", "Python"
_PURE = "LEAKSCOPE_PURE"
"""The environment variable that disables the C extensions."""
_UNPACKING_S = 60
"""Seconds within which an installer writes all files of a package, in any order. Heuristic."""
_GC_HEAP, _WALKS = "leakscope.heap._gc_heap", "leakscope.graph._walks"
_UNTRACED, _SHIELD = "leakscope.process._untraced", "leakscope._shield"


def gc_heap() -> Any:
    """The module `_gc_heap`; None if it was not built, was built for another Python or is disabled."""
    return _wanted(_GC_HEAP)


def walks() -> Any:
    """The module `_walks`; None as for `gc_heap`."""
    return _wanted(_WALKS)


def untraced() -> Any:
    """The module `_untraced`; None as for `gc_heap`."""
    return _wanted(_UNTRACED)


def shield() -> Any:
    """The module `_shield`; None as for `gc_heap`."""
    return _wanted(_SHIELD)


def _wanted(module: str) -> Any:
    return None if os.environ.get(_PURE, "") not in ("", "0") else _built(module)


@cache
def _built(module: str) -> Any:
    try:
        built = import_module(module)
    except (ImportError, SystemError):  # SystemError: a module built for another Python despite its name
        return None
    return None if _is_outdated(Path(str(built.__file__))) else built


def _is_outdated(built: Path) -> bool:
    """Whether the C sources beside it are newer, as in a checkout: it may not match the Python code."""
    sources = [path for path in built.parent.glob("_*") if path.suffix in (".c", ".h")]
    return any(path.stat().st_mtime > built.stat().st_mtime + _UNPACKING_S for path in sources)


def heap_reader() -> str:
    """`NATIVE` or `PYTHON`."""
    return PYTHON if gc_heap() is None else NATIVE


def described() -> str:
    """The name of the reader, with the reason if it is not the native one."""
    if gc_heap() is not None:
        return f"{NATIVE} heap reader"
    reason = "the C extension was not built for this version" if _built(_GC_HEAP) is None else f"{_PURE} is set"
    return f"{PYTHON} heap reader: {reason}"
