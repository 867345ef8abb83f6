"""What is leakscope's in this process? Everything it puts there stands in one list and is taken out at the end.

What is put in through here goes through the guard: an error of ours in it never becomes the script's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from leakscope.capture.process.guard import Guard
from leakscope.stand_ins import by_name, put_everywhere, stand_in

_ABSENT = object()


@dataclass(frozen=True, eq=False)
class Patch:
    """One thing that was put into the process."""

    name: str
    take_out: Callable[[], object]
    replaced: tuple[Any, str, Any] | None = None
    """(owner, name, what was there) of an attribute that was set; the owner may have inherited it."""


class Patches:
    """What was put into the process, in order, each with the way to take it out again."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = Guard() if guard is None else guard
        self._entries: list[Patch | Patches] = []

    @property
    def names(self) -> tuple[str, ...]:
        """What stands now, in the order in which it was put in."""
        return tuple(self._each_name())

    def replaced(self) -> Iterator[tuple[Any, str, Any]]:
        """(owner, name, what was there) of each attribute that is replaced now, in the order in which it was."""
        for entry in self._entries:
            if isinstance(entry, Patches):
                yield from entry.replaced()
            elif entry.replaced is not None:
                yield entry.replaced

    def _each_name(self) -> Iterator[str]:
        for entry in self._entries:
            if isinstance(entry, Patches):
                yield from entry.names
            else:
                yield entry.name

    def part(self) -> Patches:
        """A stretch of this list that can be taken out by itself, again and again; at the end it goes with the rest."""
        part = Patches(self.guard)
        self._entries.append(part)
        return part

    def add(self, name: str, take_out: Callable[[], object]) -> None:
        """Note something that was put in, as a callback; what answers False to `take_out` cannot go yet and stays."""
        self._entries.append(Patch(name, take_out))

    def replace(self, owner: Any, name: str, value: object, label: str = "") -> None:
        """Set `owner.name`; goes by `label`, or as `Owner.name`.

        A function of a module is replaced under all names by which modules have it, so that these stay one object. At
        the end the original comes back under each name that still has ours, also under those that modules have
        imported since.
        """
        stood = vars(owner).get(name, _ABSENT)
        has_aliases = isinstance(owner, ModuleType) and callable(stood)

        def put_back() -> None:
            if has_aliases:
                put_everywhere((value, stood))
            # somebody may have replaced ours since and pass on to it; then it stays below theirs
            if vars(owner).get(name) is not value:
                return
            if stood is _ABSENT:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, stood)

        self._entries.append(Patch(label or name_of(owner, name), put_back, (owner, name, stood)))
        if has_aliases:
            put_everywhere((stood, value))
        setattr(owner, name, value)

    def hook(
        self,
        name: str,
        register: Callable[[Callable[..., Any]], Any],
        function: Callable[..., Any],
        then: Callable[[Any], object] | None = None,
    ) -> None:
        """Have torch call `function` and, with what that answers, `then`; `register` gives the handle that removes it.

        As `Guard.guarded`.
        """
        handles: list[Any] = []
        self.add(name, lambda: [handle.remove() for handle in handles] and None)
        # one call, which nothing interrupts between the registration and the note of its handle
        handles.extend(map(register, [self.guard.guarded(name, function, then)]))

    def hook_with_kwargs(self, name: str, function: Callable[..., Any]) -> None:
        """Have torch call `function` after every forward call of a module, with its keyword arguments too."""
        self.hook(name, _register_with_kwargs, function)

    def listen(self, name: str, listeners: list[Any], function: Callable[..., object]) -> None:
        """Add a function to a list of those that Python calls."""
        heard = self.guard.callback(name, function)
        self.add(name, lambda: listeners.remove(heard) if heard in listeners else None)
        listeners.append(heard)

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put what `make` makes of the function or method `owner.name` in its place, under its own name.

        For what is called so often that it must see to errors of ours by itself: `call_before` and `call_around` do.
        """
        called = getattr(owner, name)
        is_class = isinstance(owner, type)
        made = stand_in(called, make(called), binds=is_class)
        self.replace(owner, name, made)
        if is_class:
            by_name(made, owner, name)

    def call_before(self, owner: Any, name: str, before: Callable[..., object]) -> None:
        """Call `before` with the same arguments ahead of the function or method `owner.name`, whose results stay."""
        self.wrap(owner, name, functools.partial(calling_before, self.guard, name_of(owner, name), before))

    def call_before_tracing(self, before: Callable[..., object]) -> None:
        """Call `before` ahead of what has dynamo trace: it traces global hooks of modules into what it compiles, and
        raises where it is to export them.
        """
        torch = sys.modules["torch"]
        self.call_before(torch, "compile", before)
        self.call_before(torch.export, "export", before)

    def call_after(self, owner: Any, name: str, after: Callable[..., object]) -> None:
        """Call `after` with what the function or method `owner.name` returned, and with the same arguments."""
        self.wrap(owner, name, functools.partial(calling_after, self.guard, name_of(owner, name), after))

    def take_out(self) -> bool:
        """Take everything out, the latest first; False where something had to stay for now.

        What raises is a fault of ours, and does not keep the others in.
        """
        for entry in reversed(self._entries[:]):
            if isinstance(entry, Patches):
                entry.take_out()
                continue
            try:
                gone = entry.take_out() is not False
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                self.guard.fault(f"taking out {entry.name}", error)
                gone = True
            if gone:
                with suppress(ValueError):  # another thread has
                    self._entries.remove(entry)
        return not self.names


class _HandleWithKwargs:
    """Removes a global hook with all that torch notes of it: `handle.remove()` leaves the note that it takes keyword
    arguments (torch 2.13, torch/nn/modules/module.py, register_module_forward_hook).
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def remove(self) -> None:
        from leakscope.capture.torch_private import HOOKS_WITH_KWARGS

        self._handle.remove()
        dict.pop(HOOKS_WITH_KWARGS, self._handle.id, None)


def _register_with_kwargs(hook: Callable[..., Any]) -> _HandleWithKwargs:
    from torch.nn.modules.module import register_module_forward_hook

    return _HandleWithKwargs(register_module_forward_hook(hook, with_kwargs=True))


def name_of(owner: Any, name: str) -> str:
    """`Work.wait`."""
    return f"{getattr(owner, '__name__', owner)}.{name}"


def calling_before(
    guard: Guard, name: str, before: Callable[..., object], called: Callable[..., Any]
) -> Callable[..., Any]:
    """What calls `before` ahead of `called`, with the same arguments."""
    before, deaf, fault = guard.entry(name, before), guard.deaf, guard.fault

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not deaf:
            try:
                before(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                fault(name, error)
        elif guard.later:
            guard.try_again()
        return called(*args, **kwargs)

    return wrapper


def calling_after(
    guard: Guard, name: str, after: Callable[..., object], called: Callable[..., Any]
) -> Callable[..., Any]:
    """What calls `after` with what `called` returned, and with the same arguments."""
    after, deaf, fault = guard.entry(name, after), guard.deaf, guard.fault

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = called(*args, **kwargs)
        if not deaf:
            try:
                after(result, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                fault(name, error)
        return result

    return wrapper
