"""Everything put into the process, in one list that takes it out again; import hooks and dynamo."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from leakscope.bootstrap import RECORDING
from leakscope.process.guard import Guard
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
        from leakscope.process.torch_compat import HOOKS_WITH_KWARGS

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


class AfterImport(importlib.abc.MetaPathFinder):
    """Stands first in `sys.meta_path` until the module has been imported once."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then, self._asking = name, then, False
        self._guard = Guard()

    def install(self, patches: Patches) -> None:
        """Wait for the import; a module that is there already has had it."""
        self._guard = patches.guard
        self._then = self._guard.guarded(f"import of {self._name}", self._then)
        if self._name in sys.modules:
            self._then()
        else:
            sys.meta_path.insert(0, self)
            patches.add(f"import hook for {self._name}", self._remove)

    def _remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Ask the other finders for the module that is waited for, and stand between it and its loader."""
        del path, target
        if fullname != self._name or self._asking or self._guard.deaf:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        except Exception:  # noqa: BLE001 - a finder's own: Python asks it next, and has it from there
            return None
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def imported(self) -> None:
        """The module's own code has run."""
        self._remove()
        self._then()


class _Loader(importlib.abc.Loader):
    """The module's own loader, with a word at the end; it puts the real one back first."""

    def __init__(self, real: importlib.abc.Loader, finder: AfterImport) -> None:
        self._real, self._finder = real, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._finder.imported()

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def leave_us_out(patches: Patches, tell: Callable[[str], object]) -> None:
    """Have dynamo skip the folders of leakscope, once the script has loaded dynamo; `tell` why it cannot."""
    from leakscope.process.torch_compat import DYNAMO_RULES, Part, skipped_folders

    def skip() -> None:
        known = skipped_folders()
        if known is None:
            tell(f"this torch has no {DYNAMO_RULES}.SKIP_DIRS: {Part.COMPILED.value}")
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

    AfterImport(DYNAMO_RULES, skip).install(patches)


def without_compiling(call: Callable[[], object]) -> None:
    """Call it with dynamo off: inside a compiled function that breaks its graph, dynamo compiles whatever is called."""
    from leakscope.process.torch_compat import Part, compiling, lacks

    if lacks(Part.COMPILED):
        call()
        return
    before = compiling(None)
    try:
        call()
    finally:
        compiling(before)
