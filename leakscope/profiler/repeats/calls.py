"""Can a training step be called again and again, with what, and what becomes of what it returns?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import Runner

_RUNS_NOTHING = (
    "{name} is a generator function: calling it runs nothing; give a function that takes it to its end, like "
    "`lambda: list(...)`"
)
_LOOP_RUNS = (
    "an event loop runs here already, as in a notebook, and {name} is a coroutine function that needs one of its own: "
    "await asyncio.to_thread(leakscope.check, train_step)"
)


def require_callable(step: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse what no call would run.

    Raises:
        TypeError: it cannot be called, or not with these arguments, or it is a generator function.
        RuntimeError: it is a coroutine function, and an event loop runs in this thread.

    """
    if not callable(step):
        raise TypeError(f"check calls a training step; {type(step).__qualname__} cannot be called")
    if _is(inspect.isgeneratorfunction, step) or _is(inspect.isasyncgenfunction, step):
        raise TypeError(_RUNS_NOTHING.format(name=_name(step)))
    try:
        inspect.signature(step).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{_name(step)} cannot be called so: {error}; give args=(...) and kwargs={{...}}") from None
    except ValueError:  # a builtin that does not say what it takes
        pass
    if _is(inspect.iscoroutinefunction, step):
        _require_no_loop(step)


def take(made: object, step: Callable[..., object], runner: Runner) -> None:
    """Run what a call returned, where it is a coroutine. Raises as `require_callable` does."""
    if inspect.iscoroutine(made):
        try:
            _require_no_loop(step)
        except RuntimeError:
            made.close()
            raise
        runner.run(made)
    elif inspect.isgenerator(made) or inspect.isasyncgen(made):
        raise TypeError(_RUNS_NOTHING.format(name=_name(step)))


def _require_no_loop(step: Callable[..., object]) -> None:
    from asyncio import get_running_loop

    try:
        get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(_LOOP_RUNS.format(name=_name(step)))


def _is(kind: Callable[[object], bool], step: Callable[..., object]) -> bool:
    """Whether it, or the `__call__` of its type, is such a function."""
    return kind(step) or kind(type(step).__call__)


def _name(step: object) -> str:
    return str(getattr(step, "__qualname__", type(step).__qualname__))
