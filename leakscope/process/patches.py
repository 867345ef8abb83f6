"""Everything put into the process, in one list that takes it out again; import hooks and dynamo."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from leakscope.bootstrap import RECORDING
from leakscope.process.guard import Guard
from leakscope.stand_ins import ImportHook, by_name, put_everywhere, stand_in

_ABSENT = object()


@dataclass(frozen=True, eq=False)
class Patch:
    """One change to the process."""

    name: str
    take_out: Callable[[], object]
    replaced: tuple[Any, str, Any] | None = None
    """(owner, name, previous value) of a replaced attribute; the owner may have inherited it."""


class Patches:
    """The changes to the process, in order, each with its undo."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = Guard() if guard is None else guard
        self._entries: list[Patch | Patches] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The active changes, in order."""
        return tuple(self._each_name())

    def replaced(self) -> Iterator[tuple[Any, str, Any]]:
        """(owner, name, previous value) of each replaced attribute, in order."""
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
        """A sub-list that can be undone on its own, repeatedly; the rest of the list includes it."""
        part = Patches(self.guard)
        self._entries.append(part)
        return part

    def add(self, name: str, take_out: Callable[[], object]) -> None:
        """Add a change such as a callback; if `take_out` returns False it cannot be undone yet and stays."""
        self._entries.append(Patch(name, take_out))

    def replace(self, owner: Any, name: str, value: object, label: str = "") -> None:
        """Set `owner.name`; listed as `label`, or as `Owner.name`.

        A function of a module is replaced under all names by which modules have it, so that they stay one object. On
        removal the original is restored under each name that still has the replacement, also in modules that imported
        it since.
        """
        stood = vars(owner).get(name, _ABSENT)
        has_aliases = isinstance(owner, ModuleType) and callable(stood)

        def put_back() -> None:
            if has_aliases:
                put_everywhere((value, stood))
            # a replacement may have been replaced since and be called by the new one; then it stays below it
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
        """Register `function` as a torch hook and pass its result to `then`; `register` returns the handle.

        As `Guard.guarded`.
        """
        handles: list[Any] = []
        self.add(name, lambda: [handle.remove() for handle in handles] and None)
        # one call, so that nothing interrupts between the registration and recording its handle
        handles.extend(map(register, [self.guard.guarded(name, function, then)]))

    def hook_with_kwargs(self, name: str, function: Callable[..., Any]) -> None:
        """Register a global forward hook of modules that also receives keyword arguments."""
        self.hook(name, _register_with_kwargs, function)

    def listen(self, name: str, listeners: list[Any], function: Callable[..., object]) -> None:
        """Append a function to a list of callbacks."""
        listener = self.guard.finalizer_safe(name, function)
        self.add(name, lambda: listeners.remove(listener) if listener in listeners else None)
        listeners.append(listener)

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the function or method `owner.name` by `make` of it, under its own name.

        For functions called so often that the replacement handles leakscope's errors itself, as `call_before` does.
        """
        called = getattr(owner, name)
        is_class = isinstance(owner, type)
        made = stand_in(called, make(called), binds=is_class)
        self.replace(owner, name, made)
        if is_class:
            by_name(made, owner, name)

    def call_before(self, owner: Any, name: str, before: Callable[..., object]) -> None:
        """Call `before` with the same arguments before the function or method `owner.name`, whose
        result is unchanged.
        """
        self.wrap(owner, name, functools.partial(calling_before, self.guard, name_of(owner, name), before))

    def call_before_tracing(self, before: Callable[..., object]) -> None:
        """Call `before` before functions that trace with dynamo, which traces global module hooks into compiled code
        and fails on them in an export.
        """
        torch = sys.modules["torch"]
        self.call_before(torch, "compile", before)
        self.call_before(torch.export, "export", before)

    def call_after(self, owner: Any, name: str, after: Callable[..., object]) -> None:
        """Call `after` with the result and arguments of the function or method `owner.name`."""
        self.wrap(owner, name, functools.partial(calling_after, self.guard, name_of(owner, name), after))

    def after_import(self, module: str, then: Callable[[], object]) -> None:
        """Call `then`, guarded, after the import of a module; now if it is already imported."""
        then = self.guard.guarded(f"import of {module}", then)
        if module in sys.modules:
            then()
            return
        disabled = self.guard.disabled
        hook = ImportHook(module, then, lambda: not disabled)
        hook.install()
        self.add(f"import hook for {module}", hook.remove)

    def take_out(self) -> bool:
        """Undo all changes, latest first; False if some have to stay for now.

        An exception is an error of leakscope and does not keep the others in place.
        """
        for entry in reversed(self._entries[:]):
            if isinstance(entry, Patches):
                entry.take_out()
                continue
            try:
                gone = entry.take_out() is not False
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                self.guard.internal_error(f"taking out {entry.name}", error)
                gone = True
            if gone:
                with suppress(ValueError):  # another thread has it
                    self._entries.remove(entry)
        return not self.names


class _HandleWithKwargs:
    """Removes a global hook completely: `handle.remove()` leaves the note that it takes keyword arguments (torch 2.13,
    torch/nn/modules/module.py, register_module_forward_hook).
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def remove(self) -> None:
        from leakscope.process.torch_compat import HOOKS_WITH_KWARGS

        self._handle.remove()
        dict.pop(HOOKS_WITH_KWARGS, self._handle.id, None)


def _register_with_kwargs(hook: Callable[..., Any]) -> _HandleWithKwargs:
    from torch.nn.modules.module import register_module_forward_hook

    return _HandleWithKwargs(register_module_forward_hook(hook, with_kwargs=True))


def name_of(owner: Any, name: str) -> str:
    """The qualified name, as `Work.wait`."""
    return f"{getattr(owner, '__name__', owner)}.{name}"


def calling_before(
    guard: Guard, name: str, before: Callable[..., object], called: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a wrapper that calls `before` with the same arguments before `called`."""
    before, disabled, fault = guard.untraced(name, before), guard.disabled, guard.internal_error

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not disabled:
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
    """Return a wrapper that calls `after` with the result and arguments of `called`."""
    after, disabled, fault = guard.untraced(name, after), guard.disabled, guard.internal_error

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = called(*args, **kwargs)
        if not disabled:
            try:
                after(result, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                fault(name, error)
        return result

    return wrapper


def exclude_from_dynamo(patches: Patches, report: Callable[[str], object]) -> None:
    """Make dynamo skip leakscope's folders once the script has loaded dynamo; `report` receives the
    reason if that fails.
    """
    from leakscope.process.torch_compat import DYNAMO_RULES, RecordingPart, skipped_folders

    def skip() -> None:
        known = skipped_folders()
        if known is None:
            report(f"this torch has no {DYNAMO_RULES}.SKIP_DIRS: {RecordingPart.COMPILED.value}")
            return
        folders, read_again = known
        folders.extend(RECORDING)
        read_again()
        patches.add("skipped folder of dynamo", unskip)

    def unskip() -> None:
        known = skipped_folders()
        if known is not None:
            folders, read_again = known
            for folder in RECORDING:
                if folder in folders:
                    folders.remove(folder)
            read_again()

    patches.after_import(DYNAMO_RULES, skip)


def without_compiling(call: Callable[[], object]) -> None:
    """Call with dynamo disabled: inside a compiled function that breaks its graph, dynamo compiles
    whatever is called.
    """
    from leakscope.process.torch_compat import RecordingPart, compiling, lacks

    if lacks(RecordingPart.COMPILED):
        call()
        return
    before = compiling(None)
    try:
        call()
    finally:
        compiling(before)
