"""A dispatch mode that notes operations and allocation sites and changes none."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FrameType
from typing import Any

import torch

from leakscope.bootstrap import RECORDING
from leakscope.originals import _thread
from leakscope.process.frames import users_line, waiting
from leakscope.process.guard import Guard, call_traced, untraced
from leakscope.process.patches import Patches
from leakscope.process.raw_types import mro, type_dict
from leakscope.process.torch_compat import (
    Overload,
    address_of_storage,
    called_by,
    frames_compiled,
    mode_at,
    modes_running,
    no_dispatch_of_its_own,
    node_running,
    schema_of,
    watching_base,
)

Dispatched = Callable[[Any, Any, Any, Any], None]
"""Called after each operation with the operator, its arguments, keyword arguments and result."""


Tensors = (torch.Tensor, torch.nn.Parameter)
_OFF = "a dispatch mode would disable compilation"


def watching_mode(dispatched: Dispatched, guard: Guard) -> Any:
    """Return a mode for `enter`."""
    plain: dict[type, bool] = {}
    disabled, name = guard.disabled, "dispatch mode"
    dispatched, is_plain = (
        guard.untraced(name, guard.gc_neutral(dispatched)),
        guard.untraced("types under the dispatch mode", _is_plain),
    )

    base: Any = watching_base()

    class Watching(base):  # type: ignore[misc]
        @untraced
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for kind in types:  # usually none, but `.data` inside a custom Function names torch.Tensor itself
                if kind not in plain:
                    try:
                        plain[kind] = is_plain(kind)
                    except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                        plain[kind] = kind in Tensors
                        guard.internal_error("types under the dispatch mode", error)
                if not plain[
                    kind
                ]:  # a subclass with a dispatch of its own runs it with this mode on: its inner operations are seen
                    return NotImplemented
            try:
                out = call_traced(called_by(func) if type(func) is Overload else func, *args, **(kwargs or {}))
            except BaseException as error:
                # A bare `raise` adds no entry for this frame (ceval.c, RAISE_VARARGS): the script sees the traceback it
                # would have seen without the mode.
                assert error.__traceback__ is not None
                error.__traceback__ = error.__traceback__.tb_next
                raise
            if not disabled:
                try:
                    dispatched(func, args, kwargs, out)
                except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                    guard.internal_error(name, error)
            return out

    return Watching()


def caller_of_operation() -> FrameType | None:
    """The frame that called the current operation; None on a C++ thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(RECORDING):
        frame = frame.f_back
    return frame


def enter(mode: Any, patches: Patches) -> None:
    """Push the mode for this thread."""
    patches.add("dispatch mode", lambda: left(mode))
    mode.__enter__()


def left(mode: Any) -> bool:
    """Pop the mode; False while a mode of the script is above it, which must not be popped."""
    modes = [mode_at(place) for place in range(modes_running())]
    if not any(each is mode for each in modes):  # it was never entered
        return True
    if modes[-1] is not mode:
        return False
    mode.__exit__(None, None, None)
    return True


def why_not(compile_called: bool) -> str:
    """The reason why a mode would change what runs, "" if it would not."""
    if not _is_of_python():
        return "steps end on threads started by C++, such as those of RPC, and the next one may end on another thread"
    if modes_running() > 0:
        return "the script itself runs under a dispatch mode"
    # a dispatch mode makes compiled callables run eager (measured on torch 2.13)
    regions = compiled_regions()
    if regions:
        counted = f"{regions} compiled region{'s' * (regions != 1)}"
        return f"the script uses torch.compile: {counted} cannot be inspected, and {_OFF}"
    if compile_called:
        return f"the script or torch calls torch.compile: compiled regions cannot be inspected, and {_OFF}"
    return ""


def _is_of_python() -> bool:
    """Whether Python started this thread: a mode belongs to a thread and must be left where it was entered."""
    # not `threading.enumerate`: its lock may be held, and is cooperative under gevent
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return thread is not None and not isinstance(thread, threading._DummyThread)


def compiled_regions() -> int:
    """Number of frames that torch.compile has compiled so far."""
    return int(frames_compiled().get("ok", 0))


def _is_plain(kind: type) -> bool:
    """Whether a tensor type has no dispatch of its own."""
    for base in mro(kind):
        handler = type_dict(base).get("__torch_dispatch__")
        if handler is not None:
            own = getattr(handler, "__func__", handler)
            return own is no_dispatch_of_its_own or base is torch.Tensor
    return True


@lru_cache(maxsize=4096)
def makes_memory(func: Any) -> bool:
    """Whether the operator returns new tensors, not a view or an argument, according to its schema.

    `lift_fresh` returns its argument, and is how a tensor from torch.tensor first appears.
    """
    schema = schema_of(func)
    if schema is None or str(schema.name) == "aten::lift_fresh":
        return True
    return any(returned.alias_info is None for returned in schema.returns)


def name_of(func: Any) -> str:
    """The operator's name without overload, as `aten::add`."""
    schema = schema_of(func)
    return str(func.name()) if schema is None else str(schema.name)


class _StorageRef(weakref.ref[Any]):
    """Reference to a storage with a known allocation site."""

    __slots__ = ("address",)
    address: int


class AllocationSites:
    """Records allocation sites during a few steps: entered and left at step boundaries, keeps no storage alive."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._entries: dict[int, tuple[_StorageRef, str]] = {}
        self._died = patches.guard.finalizer_safe("death of a storage with a known allocation site", self._on_death)
        self._mode: Any = None
        self._home = 0

    @property
    def watching(self) -> bool:
        """Whether the mode is on."""
        return self._mode is not None

    @property
    def made_at(self) -> Mapping[int, str]:
        """Address of each live storage, mapped to `train.py:41 forward (aten::addmm)`."""
        return {address: text for address, (_, text) in self._entries.items()}

    def enter(self, compile_called: bool) -> str:
        """Start watching; return the reason if that would change what runs, else ""."""
        reason = why_not(compile_called)
        if reason:
            return f"allocation sites were not recorded: {reason}"
        self._home = _thread.get_ident()
        self._mode = watching_mode(self._note, self._patches.guard)
        enter(self._mode, self._patches)
        return ""

    def leave(self) -> bool:
        """Stop watching; False while a mode of the script is above ours and must not be popped."""
        if self._mode is None:
            return True
        if not self._patches.take_out():
            return False
        self._mode = None
        return True

    def forget(self) -> None:
        """Drop every entry."""
        self._entries.clear()

    def add(self, storage: torch.UntypedStorage, made_at: str) -> None:
        """Record the allocation site of this storage."""
        reference = _StorageRef(storage, self._died)
        reference.address = address_of_storage(storage)
        self._entries[reference.address] = reference, made_at

    def _on_death(self, reference: _StorageRef) -> None:
        entries = self._entries
        if reference.address in entries and entries[reference.address][0] is reference:
            del entries[reference.address]

    def _note(self, func: Any, args: object, kwargs: object, out: object) -> None:
        del args, kwargs
        if not makes_memory(func):
            return
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if type(tensor) in Tensors and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if address_of_storage(storage) not in self._entries:
                    self._add(storage, name_of(func))

    def _add(self, storage: torch.UntypedStorage, operator: str) -> None:
        node = node_running()
        above = caller_of_operation()
        line = users_line(waiting(self._home) if above is None and node is not None else above)
        inside = operator if node is None else f"{operator} in {node.name()}"
        self.add(storage, f"{line} ({inside})" if line else inside)
