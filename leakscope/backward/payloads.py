"""What stands for a saved tensor: itself, or what saved-tensor hooks packed. No hook runs."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch.autograd.graph import Node

_TELLS = hasattr(torch._C._autograd.SavedTensor, "data")
"""Whether a saved tensor says so itself; torch 2.9 and older do not."""
_HEAD = 2
"""Words of a Python object before its own fields; the first of a SavedTensor is the address of a SavedVariable."""
_TENSOR, _HOOKS = 0, 7
"""Words of a SavedVariable at which its tensor and its hooks stand (torch/csrc/autograd/saved_variable.h)."""
_UNPACK, _PACKED = 2, 3
"""Words of both in {vtable, pack hook, unpack hook, packed object} (python_saved_variable_hooks.h)."""


class Untold:
    """A tensor, or whatever it may be in a torch in which none of this is where it is known to be."""


TENSOR, UNKNOWN = Untold(), Untold()


def payload_of(saved: Any) -> Any:
    """The tensor or packed object of a saved tensor, None where it has none (any more)."""
    if _TELLS:
        return saved.data
    layout = _layout()
    if layout is None:
        return UNKNOWN
    undefined, of_hooks = layout
    variable = _word(id(saved), _HEAD)
    if hooks := _word(variable, _HOOKS):
        packed = _word(hooks, _PACKED) if _word(hooks) == of_hooks else id(UNKNOWN)
        return ctypes.cast(packed, ctypes.py_object).value if packed else None
    return None if _word(_word(variable, _TENSOR)) == undefined else TENSOR


def unpack_hook_of(saved: Any) -> Any:
    """The hook that would unpack it, None where it has none or this torch does not tell."""
    if hasattr(saved, "unpack_hook"):
        return saved.unpack_hook
    if _TELLS or (layout := _layout()) is None:
        return None
    hooks = _word(_word(id(saved), _HEAD), _HOOKS)
    known = hooks and _word(hooks) == layout[1]
    return ctypes.cast(_word(hooks, _UNPACK), ctypes.py_object).value if known else None


def _word(address: int, place: int = 0) -> int:
    return ctypes.c_size_t.from_address(address + place * ctypes.sizeof(ctypes.c_size_t)).value


@cache
def _layout() -> tuple[int, int] | None:
    """The first words of an undefined tensor and of hooks, learned from a tensor saved for it."""
    packed: list[None] = []

    def pack(_: Any) -> list[None]:
        return packed

    with torch.inference_mode(False), torch.enable_grad(), torch._C._DisableTorchDispatch():
        tensor = torch.empty(0, requires_grad=True, device="cpu", dtype=torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(pack, _never):
            node: Any = tensor.exp().grad_fn
    saved = node._raw_saved_result
    variable = _word(id(saved), _HEAD)
    hooks = _word(variable, _HOOKS)
    if not hooks or [_word(hooks, place) for place in (1, _UNPACK, _PACKED)] != [id(pack), id(_never), id(packed)]:
        return None
    return _word(_word(variable, _TENSOR)), _word(hooks)


def _never(_: Any) -> Any:
    raise AssertionError("this tensor is never unpacked")


LISTED = "_raw_saved_tensors"
"""How a custom Function's node lists what it saved; it raises once that was freed."""


@cache
def saved_names(kind: type) -> tuple[str, ...]:
    """The names under which a type of grad node shows its saved tensors without running unpack hooks."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def variables(node: Node) -> list[Any]:
    """What a node saved, each as torch shows it without running unpack hooks."""
    found: list[Any] = []
    for name in saved_names(type(node)):
        saved = getattr(node, name)
        if isinstance(saved, tuple):
            found += saved
        else:
            found.append(saved)
    return found


def freed(start: Node) -> bool:
    """True where an earlier backward freed what the first nodes below `start` saved. Runs no unpack hook.

    Looks down to the first node on each path that saved anything; a graph freed only further down still fails in
    the engine.
    """
    seen = {start}
    pending = [start]
    while pending:
        node = pending.pop()
        names = saved_names(type(node))
        if not names:
            children = [child for child, _ in node.next_functions if child is not None and child not in seen]
            seen.update(children)
            pending.extend(children)
        elif _emptied(node, names):
            return True
    return False


def _emptied(node: Node, names: tuple[str, ...]) -> bool:
    empty = 0
    for name in names:
        try:
            entry = getattr(node, name)
        except RuntimeError:  # a custom Function's freed buffers refuse to be listed
            return True
        for variable in entry if isinstance(entry, tuple) else (entry,):
            if payload_of(variable) is not None:
                return False
            empty += 1
    if not empty:
        return False
    # A freed and a never defined saved tensor both read None; only the checked access tells them apart. No hook holds
    # a payload here, so none runs.
    try:
        getattr(node, names[0].replace("_raw_saved_", "_saved_"), None)
    except RuntimeError:
        return True
    return False
