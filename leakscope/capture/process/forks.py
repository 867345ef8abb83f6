"""Is this a process forked from the one that is recorded?

Wrappers ask on every call, and asking for the number of the process would be a system call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from leakscope.originals import os


class Mark(list[bool]):
    """Empty, and so false, until something has come to pass; true from then on.

    To be kept, and tested like a truth value whenever the question comes up: that runs no line of Python.
    """

    __slots__ = ("__weakref__",)


_CURRENT = [Mark()]
"""The mark of this process; the only entry."""
_OTHERS: list[weakref.ref[Mark]] = []
"""Those that mean something else as well."""


def in_forked_child() -> Mark:
    """True in every process that is forked, from now on, from the one where it was asked for."""
    return _CURRENT[0]


def also_in_forked_child() -> Mark:
    """A mark of one's own: true as soon as its owner makes it so, and in every process that is forked from now on."""
    mark = Mark()
    _OTHERS[:] = [other for other in _OTHERS if other() is not None]
    _OTHERS.append(weakref.ref(mark))
    return mark


_CALLED: list[weakref.WeakMethod[Callable[[], None]]] = []
"""What is to be called in the child."""


def call_in_forked_child(method: Callable[[], None]) -> None:
    """Call it once in every process that is forked from now on, as long as what it is a method of is there."""
    _CALLED[:] = [called for called in _CALLED if called() is not None]
    _CALLED.append(weakref.WeakMethod(method))


def _forked() -> None:
    # whoever holds them made them before the fork
    marks = [_CURRENT[0], *(other() for other in _OTHERS)]
    _CURRENT[0] = Mark()
    _OTHERS.clear()
    for mark in marks:
        if mark is not None:
            mark.append(True)
    methods = [called() for called in _CALLED]
    _CALLED.clear()
    for method in methods:
        if method is not None:
            method()


os.register_at_fork(after_in_child=_forked)
