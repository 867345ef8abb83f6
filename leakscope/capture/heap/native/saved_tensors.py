"""What does a saved tensor hold: the tensor itself, or what a pack hook made of it?"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from leakscope.capture.heap.native.raw_memory import OBJECT_HEAD, WORD, Words, pack_hook_at
from leakscope.capture.torch_older import (
    DATA,
    HOOKS,
    SAVED_TENSORS_TELL,
    saved_data,
    saved_layout,
    saved_unpack_hook,
)

_HOOKS = 4
"""Words of a PySavedVariableHooks."""
_NO_PACK_HOOK = "this torch keeps the pack hooks of saved tensors where they are not found: what they hold has no cut"
_NOT_READ = "a saved tensor could not be read: this torch does not tell what it saves"


class Contents(NamedTuple):
    """What one saved tensor holds."""

    payload: Any
    """The tensor, or what the pack hook made of it."""
    unpack_hook: Any = None
    """None where it has no hooks."""
    pack_hook_at: int = 0
    """Address of the pack hook, 0 where it was not found."""


def contents_of(saved: Any, words: Words, gaps: dict[str, None]) -> Contents | None:
    """What a saved tensor holds, without running a hook; None where it holds nothing. What cannot be read is a gap.

    Up to torch 2.9 it must have been handed out by a node that is there: it is the node's own, and goes with it.
    """
    found = _asked(saved, words) if SAVED_TENSORS_TELL else _read(saved, words, gaps)
    if found is not None and found.unpack_hook is not None and not found.pack_hook_at:
        gaps[_NO_PACK_HOOK] = None
    return found


def _asked(saved: Any, words: Words) -> Contents | None:
    try:
        payload, hook = saved_data(saved), saved_unpack_hook(saved)
    except RuntimeError:  # freed by a backward on another thread
        return None
    if payload is None:
        return None
    return Contents(payload, hook, 0 if hook is None else pack_hook_at(saved, payload, hook, words))


def _read(saved: Any, words: Words, gaps: dict[str, None]) -> Contents | None:
    layout = saved_layout()
    for variable in () if layout is None else words(id(saved) + OBJECT_HEAD * WORD, 1):
        fields = words(variable, HOOKS + 1)
        if layout is None or not fields:
            break
        if fields[HOOKS]:
            hooks = words(fields[HOOKS], _HOOKS)
            if hooks[:1] != (layout.hooks,):
                break
            pack, unpack, payload = hooks[1:]
            return Contents(_object_at(payload), _object_at(unpack), pack) if payload else None
        kind = words(fields[DATA], 1)
        if kind == (layout.tensor,):
            return Contents(layout.wrap(variable))
        if kind == (layout.undefined,):  # freed by backward
            return None
        break
    gaps[_NOT_READ] = None
    return None


def _object_at(address: int) -> Any:
    return ctypes.cast(address, ctypes.py_object).value
