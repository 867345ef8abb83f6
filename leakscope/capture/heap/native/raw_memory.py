"""What does C++ keep where no getter of torch shows it?

Memory is read word by word, and believed only where known addresses stand around what is looked for.
"""

from __future__ import annotations

import ctypes
import inspect
import struct
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from leakscope.capture import torch_private
from leakscope.originals import open_file, os
from leakscope.shield import contextmanager

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
_METADATA = 10
"""Words of an AnomalyMetadata in which its dict is, behind what every one has (torch/csrc/autograd/
python_anomaly_mode.h)."""
_HOOKS = 8
"""Words of a PySavedVariableHooks up to its packed object, at most."""
_UNPACK_HOOK = 2, 4
"""Words before the unpack hook in it, one more than between its fields: up to torch 2.14 each is a pointer, in 2.15
{pointer, interpreter, whether it is there} (std::optional of c10::SafePyObject)."""


_FIRST_PAGE = 4096
"""Bytes from address 0 on that no process has."""
_PAIR, _VECTOR = 2, 3
"""Words of a vector that say where it begins and ends, and all of its words."""


@contextmanager
def own_memory() -> Iterator[Words]:
    """Read the process's own memory through /proc/self/mem; where the system has none, nothing can be read."""
    try:
        memory = open_file("/proc/self/mem", "rb", buffering=0)
    except OSError:
        yield lambda _address, _count: ()
        return
    opened = memory.fileno()

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
        memory.close()


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


class NodeLayout(NamedTuple):
    """Words of a Node, learned from one made for it (torch/csrc/autograd/node.h)."""

    metadata: int
    """Its pointer to {..., dict of `metadata`}; 0 where unknown, as for the others."""
    pre_hooks: int
    """The vector of its own pre-hooks. Three words on is that of the hooks of its output tensors."""
    post_hooks: int


def node_layout(words: Words) -> NodeLayout:
    """Where a Node keeps its dicts, which Python's getters and `register_hook` make where there are none."""
    probe: Any = torch_private.node_without_tensors("", 1)  # a node that needs no tensor
    pre, post = probe.register_prehook(lambda *_: None), probe.register_hook(lambda *_: None)
    metadata = id(probe.metadata)
    found: dict[int, int] = {}
    for node in words(id(probe) + OBJECT_HEAD * WORD, 1):
        fields = words(node, _NODE)
        for place in range(len(fields) - 1):
            dicts = _dicts_in(fields[place : place + _PAIR], words)
            for hooks in (pre, post):
                if id(torch_private.hooks_behind(hooks)) in dicts:
                    found.setdefault(id(hooks), place)
            if metadata in words(fields[place], _METADATA):
                found.setdefault(metadata, place)
    return NodeLayout(*(found.get(key, 0) for key in (metadata, id(pre), id(post))))


def dicts_of_node(node: Any, layout: NodeLayout, words: Words) -> Iterator[tuple[str, int]]:
    """(what it is called, address) of each dict that a node keeps out of gc's sight.

    The hooks of its output tensors are there while the tensor lives and afterwards.
    """
    if not layout.pre_hooks:
        return
    fields = words(_node_of(node, layout.pre_hooks, words), _NODE)
    if not fields:
        return
    if layout.metadata:
        yield from (("metadata", address) for address in words(fields[layout.metadata], _METADATA))
    begin = layout.pre_hooks
    yield from (("pre-hook", address) for address in _dicts_in(fields[begin : begin + _PAIR], words))
    begin = layout.pre_hooks + _VECTOR
    yield from (("tensor hook", address) for address in _dicts_in(fields[begin : begin + _PAIR], words))
    if layout.post_hooks:
        begin = layout.post_hooks
        yield from (("post-hook", address) for address in _dicts_in(fields[begin : begin + _PAIR], words))


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
