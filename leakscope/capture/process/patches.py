"""What is leakscope's in this process? Everything it puts there stands in one list and is taken out at the end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_ABSENT = object()


@dataclass(frozen=True, eq=False)
class Patch:
    """One thing that was put into the process."""

    name: str
    take_out: Callable[[], object]


class Patches:
    """What was put into the process, in order, each with the way to take it out again."""

    def __init__(self) -> None:
        self._entries: list[Patch | Patches] = []

    @property
    def names(self) -> tuple[str, ...]:
        """What stands now, in the order in which it was put in."""
        return tuple(self._each_name())

    def _each_name(self) -> Iterator[str]:
        for entry in self._entries:
            if isinstance(entry, Patches):
                yield from entry.names
            else:
                yield entry.name

    def part(self) -> Patches:
        """A stretch of this list that can be taken out by itself, again and again; at the end it goes with the rest."""
        part = Patches()
        self._entries.append(part)
        return part

    def add(self, name: str, take_out: Callable[[], object]) -> None:
        """Note something that was put in, as a callback; what answers False to `take_out` cannot go yet and stays."""
        self._entries.append(Patch(name, take_out))

    def replace(self, owner: Any, name: str, value: object, label: str = "") -> None:
        """Set `owner.name`; goes by `label`, or as `Owner.name`."""
        stood = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)

        def put_back() -> None:
            # somebody may have replaced ours since and pass on to it; then it stays below theirs
            if vars(owner).get(name) is not value:
                return
            if stood is _ABSENT:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, stood)

        self.add(label or f"{getattr(owner, '__name__', owner)}.{name}", put_back)

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put what `make` makes of the function or method `owner.name` in its place, under its own name."""
        called = getattr(owner, name)
        self.replace(owner, name, functools.wraps(called, updated=())(make(called)))

    def call_before(self, owner: Any, name: str, before: Callable[..., object]) -> None:
        """Call `before` with the same arguments ahead of the function or method `owner.name`, whose results stay."""

        def make(called: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                before(*args, **kwargs)
                return called(*args, **kwargs)

            return wrapper

        self.wrap(owner, name, make)

    def take_out(self) -> bool:
        """Take everything out, the latest first; False where something had to stay for now."""
        for entry in reversed(self._entries[:]):
            if isinstance(entry, Patches):
                entry.take_out()
            elif entry.take_out() is not False:
                self._entries.remove(entry)
        return not self.names
