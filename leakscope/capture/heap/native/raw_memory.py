"""What does C++ keep where no getter of torch shows it?

Memory is read word by word, and believed only where known addresses stand around what is looked for.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from leakscope.capture import torch_private

Words = Callable[[int, int], tuple[int, ...]]
"""(address, count) to so many machine words, () where nothing can be read: a wrong address is no crash."""
WORD = struct.calcsize("P")
OBJECT_HEAD = 2
"""Words of a Python object before its own fields: the reference count and the type."""
_BEFORE_LOCALS = 9
"""Words of a frame before its locals (CPython Include/internal/pycore_frame.h)."""
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SAVED_VARIABLE = 24
_NODE = 64
"""Words read of a torch::autograd::SavedVariable and Node; their fields of interest lie well within."""
_HOOKS = 8
"""Words of a PySavedVariableHooks up to its packed object, at most."""
_UNPACK_HOOK = 2, 4
"""Words before the unpack hook in it, one more than between its fields: up to torch 2.14 each is a pointer, in 2.15
{pointer, interpreter, whether it is there} (std::optional of c10::SafePyObject)."""


_FIRST_PAGE = 4096
"""Bytes from address 0 on that no process has."""
_PAIR = 2
"""Words of a vector that say where it begins and ends."""


@contextmanager
def own_memory() -> Iterator[Words]:
    """Read the process's own memory through /proc/self/mem; where the system has none, nothing can be read."""
    try:
        opened = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda _address, _count: ()
        return

    def words(address: int, count: int) -> tuple[int, ...]:
        if address < _FIRST_PAGE or address % WORD:
            return ()
        try:
            return struct.unpack(f"{count}P", os.pread(opened, count * WORD, address))
        except (OSError, OverflowError, struct.error):  # unmapped, no address, only partly mapped
            return ()

    try:
        yield words
    finally:
        os.close(opened)


def bytes_at(address: int, count: int) -> bytes:
    """So many bytes of the process's own memory; fewer where they cannot be read."""
    try:
        opened = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(opened, count, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(opened)


def pack_hook_at(saved: Any, payload: object, unpack_hook: object, words: Words) -> int:
    """Address of the pack hook that a saved tensor goes on holding after it has packed; 0 where it is not found.

    PySavedVariableHooks is {vtable, pack hook, unpack hook, packed object} (python_saved_variable_hooks.h): the last
    two are known, and found where a layout has them they prove the place.
    """
    for variable in words(id(saved) + OBJECT_HEAD * WORD, 1):
        for hooks in words(variable, _SAVED_VARIABLE):
            fields = words(hooks, _HOOKS)
            if any(fields[place :: place - 1][:2] == (id(unpack_hook), id(payload)) for place in _UNPACK_HOOK):
                return fields[1]
    return 0


def pre_hooks_word(words: Words) -> int:
    """Which word of a Node begins its vector of pre-hooks, learned from a node made for it; 0 where unknown."""
    probe: Any = torch_private.node_without_tensors("", 1)  # a node that needs no tensor
    handle = probe.register_prehook(lambda *_: None)
    hooks = torch_private.hooks_behind(handle)
    for node in words(id(probe) + OBJECT_HEAD * WORD, 1):
        fields = words(node, _NODE)
        for place in range(len(fields) - 1):
            if id(hooks) in _dicts_in(fields[place : place + 2], words):
                return place
    return 0


def tensor_hooks_of(node: Any, pre_hooks: int, words: Words) -> list[int]:
    """Addresses of the hook dicts that a node keeps for its output tensors, dead or alive.

    `tensor_pre_hooks_` stands right behind `pre_hooks_` (node.h), a vector of three words.
    """
    begin = pre_hooks + 3
    fields = words(_node_of(node, pre_hooks, words), begin + 2)
    return _dicts_in(fields[begin:], words)


def operands_of(frame: FrameType, words: Words) -> tuple[int, ...]:
    """Addresses of what a statement has on the stack of its frame while it calls a function written in Python.

    The list of `losses.append(step())` is one. () where C is called, and in other Pythons than 3.11 to 3.13.

    A frame object is {head, f_back, f_frame}; what it points to has nine words before the locals and the stack, the
    last of them the height of both, -1 while C runs (CPython Include/internal/pycore_frame.h).
    """
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return ()
    code = frame.f_code
    if code.co_flags & _GENERATORS:  # gc shows what their frames hold
        return ()
    first = len({*code.co_varnames, *code.co_cellvars}) + len(code.co_freevars)
    for inner in words(id(frame) + (OBJECT_HEAD + 1) * WORD, 1):
        fields = words(inner, _BEFORE_LOCALS)
        if id(frame) in fields and id(code) in fields:
            height = ctypes.c_int32(fields[-1] & 0xFFFFFFFF).value
            if first < height <= first + code.co_stacksize:
                return words(inner + (_BEFORE_LOCALS + first) * WORD, height - first)
    return ()


def _node_of(node: Any, within: int, words: Words) -> int:
    """Address of the C++ node behind a Python one: it points back to the Python object (`pyobj_slot_`)."""
    size = int(type.__dict__["__basicsize__"].__get__(type(node)))
    for address in words(id(node), size // WORD)[OBJECT_HEAD:]:
        if id(node) in words(address, within):
            return address
    return 0


def _dicts_in(vector: tuple[int, ...], words: Words) -> list[int]:
    """The dicts of a vector of hooks, given as its begin and end: each hook is {vtable, dict, ...} (python_hook.h)."""
    if len(vector) < _PAIR or not 0 < vector[1] - vector[0] <= _NODE * WORD:
        return []
    hooks = words(vector[0], (vector[1] - vector[0]) // WORD)
    return [dict_at for hook in hooks for dict_at in words(hook, 2)[1:]]
