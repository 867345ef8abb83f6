"""What leakscope tells its user when something cannot be done, and in which Python that is all it does."""

from __future__ import annotations

import sys

_PYTHONS = (3, 11), (3, 13)
"""The first and the last Python that leakscope has been run with."""


class LeakscopeError(Exception):
    """Something the user can mend, told in one sentence that says what to do; the command line exits with 2."""


class Unreadable(LeakscopeError):
    """A file or folder that is not what it should be, is damaged, or comes from a newer leakscope."""


class LaunchFailed(LeakscopeError):
    """The ranks could not be started."""


class UnsupportedPython(LeakscopeError, ImportError):
    """Leakscope has not been run with the version or build of this Python.

    An ImportError too: what looks at live objects cannot be imported there, and neither can its parts in C.
    """


def unsupported_python() -> str:
    """Why live objects of this Python are not looked at: one sentence; "" where they are.

    Reference counts and the layout of frames and instances differ between versions and builds, so that an answer from
    one that leakscope has not been run with may be wrong.
    """
    import sysconfig  # reads the build's variables from a file: not for `leakscope --help`

    if sys.implementation.name != "cpython":
        return f"leakscope works with CPython only, and this is {sys.implementation.name}; run it with CPython"
    version = sys.version_info[:2]
    if not _PYTHONS[0] <= version <= _PYTHONS[1]:
        first, last = (".".join(map(str, one)) for one in _PYTHONS)
        this = ".".join(map(str, version))
        return f"leakscope has been run with Python {first} to {last} only, and this is {this}; use one of those"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            "leakscope has not been run with a free-threaded build of Python, whose reference counts mean something "
            "else; use a build with the GIL"
        )
    return ""


def check_python() -> None:
    """Raises UnsupportedPython where live objects of this Python are not looked at."""
    if why := unsupported_python():
        raise UnsupportedPython(why)
