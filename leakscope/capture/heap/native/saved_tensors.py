"""What does a saved tensor hold: the tensor itself, or what a pack hook made of it?"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from leakscope.capture.heap.native.at_rest import UNREAD, AtRest
from leakscope.capture.heap.native.raw_memory import OBJECT_HEAD, WORD, Words, pack_hook_at
from leakscope.capture.torch_older import (
    DATA,
    HOOKS,
    OWNED_FLAGS,
    SAVED_TENSOR,
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


def saved_of(
    node: Any, name: str, at_rest: AtRest, words: Words, gaps: dict[str, None]
) -> Iterator[tuple[int | None, Contents | None]]:
    """(place, contents) of each saved tensor that a node's getter of this name gives; the only one has no place.

    Runs no hook, and gives nothing of what holds nothing any more. (None, None) where some could not be read.
    """
    getter = attrgetter(name)
    try:
        told = at_rest.ask(node, getter)
        saved = told[0] if told else ()
        several = isinstance(saved, (tuple, list))
        tensors = [each for each in (saved if several else (saved,)) if type(each) is SAVED_TENSOR]
        if not SAVED_TENSORS_TELL:
            found = [_read(each, words, gaps) for each in tensors] if at_rest.alone else []
        else:
            asked = at_rest.ask_each(node, getter, _CONTENTS) if several and tensors else []
            asked = at_rest.ask(node, _contents(name)) if tensors and not several else asked
            found = [_with_pack_hook(*both, words, gaps) for both in zip(tensors, asked, strict=False)]
    except RuntimeError:  # freed by backward: CopySlices and released custom Functions say so by raising
        return
    for place, contents in enumerate(found):
        if contents is not None:
            yield place if several else None, contents
    if not told or len(found) < len(tensors):
        gaps[UNREAD] = None
        yield None, None


_CONTENTS = attrgetter("data", "unpack_hook")


@cache
def _contents(name: str) -> Any:
    """`_CONTENTS` of the one saved tensor that goes by a name, of the node."""
    return attrgetter(f"{name}.data", f"{name}.unpack_hook")


def is_owned(saved: Any, words: Words) -> bool:
    """Whether Python owns what a saved tensor shows. What a node owns is read by way of the node alone."""
    if OWNED_FLAGS is None:
        return False
    return any(flags & 1 for flags in words(id(saved) + OWNED_FLAGS * WORD, 1))


def contents_of(saved: Any, words: Words, gaps: dict[str, None]) -> Contents | None:
    """What a saved tensor that Python owns holds, without running a hook; None where it holds nothing."""
    return _with_pack_hook(saved, (saved_data(saved), saved_unpack_hook(saved)), words, gaps)


def _with_pack_hook(saved: Any, told: tuple[Any, Any], words: Words, gaps: dict[str, None]) -> Contents | None:
    payload, hook = told
    if payload is None:
        return None
    found = Contents(payload, hook, 0 if hook is None else pack_hook_at(saved, payload, hook, words))
    if hook is not None and not found.pack_hook_at:
        gaps[_NO_PACK_HOOK] = None
    return found


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
