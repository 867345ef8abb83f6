"""Errors that the user can act on, and the versions of Python and torch that leakscope works with."""

from __future__ import annotations

import re
import sys

_PYTHONS = (3, 11), (3, 13)
"""The first and the last Python that leakscope has been run with."""
_TORCH = 2, 10
"""The oldest torch that works: before it a saved tensor does not show what it holds, and C++ takes over Python objects
of tensors instead of counting a reference to them, so that holders would be missed."""


class LeakscopeError(Exception):
    """An error that the user can fix. The message is one sentence; the command line exits with status 2.

    >>> from pathlib import Path
    >>> import leakscope
    >>> try:
    ...     leakscope.read_run(Path("tests"))
    ... except leakscope.LeakscopeError as error:
    ...     type(error).__name__
    'Unreadable'

    """


class Unreadable(LeakscopeError):
    """A file or folder is damaged, of another kind, or written by a newer leakscope."""


class LaunchFailed(LeakscopeError):
    """The ranks could not be started."""


class UnsupportedPython(LeakscopeError, ImportError):
    """Leakscope has not been run with the version or build of this Python.

    Also an ImportError: modules that inspect live objects cannot be imported there, nor can the C extensions.
    """


class UnsupportedTorch(LeakscopeError, ImportError):
    """The installed torch is older than the oldest one that leakscope works with."""


def unsupported_python() -> str:
    """Why live objects of this Python are not inspected: one sentence; "" if they are.

    Reference counts and the layout of frames and instances differ between versions and builds, so that an answer from
    one that leakscope has not been run with may be wrong.
    """
    import sysconfig  # reads the build's variables from a file: not needed for `leakscope --help`

    if sys.implementation.name != "cpython":
        return f"leakscope requires CPython, and this is {sys.implementation.name}"
    version = sys.version_info[:2]
    if not _PYTHONS[0] <= version <= _PYTHONS[1]:
        first, last = (".".join(map(str, one)) for one in _PYTHONS)
        this = ".".join(map(str, version))
        return f"leakscope supports Python {first} to {last}, and this is {this}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            "leakscope does not support free-threaded Python, whose reference counts have another meaning; use a build "
            "with the GIL"
        )
    return ""


def check_python() -> None:
    """Raises UnsupportedPython if live objects of this Python are not inspected."""
    if why := unsupported_python():
        raise UnsupportedPython(why)


def unsupported_torch() -> str:
    """One sentence where the installed torch is too old, else "". Does not import torch."""
    version = getattr(sys.modules.get("torch"), "__version__", None)
    if version is None:
        from importlib import metadata  # 20 ms that a process with torch does not need

        try:
            version = metadata.version("torch")
        except metadata.PackageNotFoundError:
            return ""
    known = re.match(r"(\d+)\.(\d+)", str(version))
    if known is None or tuple(map(int, known.groups())) >= _TORCH:
        return ""
    oldest = ".".join(map(str, _TORCH))
    return f"leakscope needs torch {oldest} or newer, and this is {version}; install a newer torch"


def check_torch() -> None:
    """Raises UnsupportedTorch where the installed torch is too old."""
    if why := unsupported_torch():
        raise UnsupportedTorch(why)
