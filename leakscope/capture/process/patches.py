"""What is leakscope's in this process? Everything it installs stands in one list and is taken out at the end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Installed:
    """A list of what was put into the process, each with the way to take it out again."""

    def __init__(self) -> None:
        self._out: list[tuple[str, Callable[[], object]]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """What stands now, in the order in which it was put in."""
        return tuple(name for name, _ in self._out)

    def add(self, name: str, take_out: Callable[[], object]) -> None:
        """Note something installed, and how to take it out."""
        self._out.append((name, take_out))

    def wrap(self, owner: Any, name: str, before: Callable[..., object]) -> None:
        """Call `before` with the same arguments ahead of the function or method `owner.name`; results are not touched."""
        original = vars(owner)[name]
        called = getattr(owner, name)

        @functools.wraps(called, updated=())
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            before(*args, **kwargs)
            return called(*args, **kwargs)

        setattr(owner, name, wrapper)
        label = f"{getattr(owner, '__name__', owner)}.{name}"

        def unwrap() -> None:
            # somebody may have wrapped the wrapper since; then it stays below theirs and only passes on
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)

        self.add(label, unwrap)

    def take_out(self) -> None:
        """Take everything out, the latest first."""
        while self._out:
            self._out.pop()[1]()
