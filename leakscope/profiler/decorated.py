"""How is every call of a function put into a `with` block, be it awaited?"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

Enter = Callable[[], AbstractContextManager[Callable[[Any], object] | None]]
"""Gives the block of one call; what that is entered with is told what the call returns, before the block is left."""


def decorated(name: str, enter: Enter, function: Callable[P, T]) -> Callable[P, T]:
    """The function with each of its calls in a block of its own; of a coroutine function, from its start to its end.

    Raises TypeError for a generator function, whose calls run nothing, and for what is no function: `name` says whose.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        told = f"{name} around a generator function sees nothing: calling it runs nothing"
        raise TypeError(f"{told}; write `with {name}:` in its body, or around the loop that consumes it")
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"{name} decorates functions and methods; {function!r:.80} is none")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            with enter() as returns:
                result = await function(*args, **kwargs)
                if returns is not None:
                    returns(result)
            return result

        return cast("Callable[P, T]", awaited)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        with enter() as returns:
            result = function(*args, **kwargs)
            if returns is not None:
                returns(result)
        return result

    return called
