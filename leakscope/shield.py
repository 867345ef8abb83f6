"""Context managers that restore state of the process even when an exception interrupts leakscope's own code.

A signal handler of the script's may raise whenever the interpreter checks for signals: at the start of a Python
function, after a call and at a jump backwards (CPython Python/ceval.c, eval_breaker). `contextlib.contextmanager` can
be interrupted before the first instruction of its `__exit__`, and then nothing is restored until the generator is
freed. `_shield.c` calls the generator, and what restores the state, from C, which is never interrupted. Where it was
not built, `contextlib` is used and that gap remains.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from leakscope.native import shield as built
from leakscope.originals import gc

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class PureBlock(Generic[T_co]):
    """A context manager that calls `enter`, and `leave` when the block ends or `enter` is interrupted.

    `leave` is called again when an exception interrupts it, so it must set state rather than change it: two calls have
    the effect of one. It must not depend on `enter` having come to its end.
    """

    __slots__ = ("_enter", "_leave")

    def __init__(self, enter: Callable[[], T_co], leave: Callable[[], object]) -> None:
        self._enter, self._leave = enter, leave

    def __enter__(self) -> T_co:
        try:
            return self._enter()
        except BaseException:
            self._leave_surely()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_surely()

    def _leave_surely(self) -> None:
        try:
            self._leave()
        except BaseException:
            self._leave()
            raise


Block: type[PureBlock[Any]] = PureBlock if built() is None else built().Block
"""`PureBlock`, or the same in C."""


def contextmanager(function: Callable[P, Iterator[T]]) -> Callable[P, contextlib.AbstractContextManager[T]]:
    """As `contextlib.contextmanager`, for blocks that leave something behind when they are not run to their end."""
    in_c = built()
    if in_c is None:
        return contextlib.contextmanager(function)

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> contextlib.AbstractContextManager[T]:
        return cast("contextlib.AbstractContextManager[T]", in_c.Generated(function(*args, **kwargs)))

    return made


def ending_with(leave: Callable[[Any], object]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a method always end with `leave(self)`, whatever interrupts the method or `leave`.

    For an `__exit__` that is written in Python. `leave` may be called again, as in `PureBlock`.
    """

    def method(function: Callable[P, T]) -> Callable[P, T]:
        in_c = built()
        if in_c is not None:
            made = in_c.Method(function, leave)
            for name in _NAMES:
                setattr(made, name, getattr(function, name))
            return cast("Callable[P, T]", made)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            finally:
                try:
                    leave(args[0])
                except BaseException:
                    leave(args[0])
                    raise

        return called

    return method


_NAMES = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")


def gc_neutral(function: Callable[P, T], count: Callable[[], int], restore: Callable[[int], object]) -> Callable[P, T]:
    """Wrap a function: automatic gc is off while it runs, and the value of `count` before it is restored after it.

    Nothing that gc tracks is made while gc is on: that alone could set off a collection.
    """
    in_c = built()
    if in_c is not None:
        return cast("Callable[P, T]", in_c.GcNeutral(function, count, restore))

    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        collecting, before = gc.isenabled(), None
        try:
            gc.disable()
            before = count()
            return function(*args, **kwargs)
        finally:
            try:
                if before is not None:
                    restore(before)
            finally:
                if collecting:
                    gc.enable()

    return called


def raised_later(callback: Callable[..., None]) -> Callable[..., None] | None:
    """Wrap a callback whose exceptions Python prints and drops; None if the C extension was not built.

    The exception is raised by the next instructions of the main thread that are not part of such a callback.
    """
    in_c = built()
    return None if in_c is None else cast("Callable[..., None]", in_c.Later(callback))


def nothing() -> None:
    """Do nothing: for blocks that only leave."""
