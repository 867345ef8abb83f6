"""Autograd nodes, saved tensors and hooks, read without running a hook."""

from __future__ import annotations

import ctypes
import inspect
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import chain, compress, repeat
from operator import attrgetter, call, contains
from types import FrameType, GetSetDescriptorType
from typing import Any, NamedTuple

from leakscope.graph.model import ReferenceKind
from leakscope.originals import _thread, open_file, os
from leakscope.process import torch_compat
from leakscope.process.frames import is_alone
from leakscope.process.guard import CLOCK, CODE_OF_CALLS
from leakscope.process.raw_types import TypeCache, mro, type_dict
from leakscope.process.torch_compat import (
    OWNED_FLAGS,
    RAW_SAVED,
    SAVED_TENSOR,
    SAVED_TENSORS_READABLE,
    MissingName,
    TensorBase,
    agent_is_set,
    counts_of_contexts,
    node_running,
    saved_data,
    saved_unpack_hook,
)
from leakscope.shield import contextmanager

UNREAD = "what grad nodes hold was not read, as another thread ran a backward"
RUN_BACKWARD = "run_backward"
"""The engine's entry point, called by whoever starts a backward."""
_PATIENCE_S = 0.25
"""Maximum seconds in total that a walk waits for backwards of other threads. Heuristic."""
_PAUSE_S = 0.001
_current_frames = sys._current_frames
_code_of = attrgetter("f_code")
_names_in = attrgetter("f_code.co_names")


class EngineGuard:
    """Guards the reading of grad nodes during one walk."""

    def __init__(self) -> None:
        self.disturbed = _runs_for_others()
        """Whether something was skipped because another thread ran a backward; nothing more is read from then on."""
        self.alone = is_alone()
        """Whether no other thread of the script could start a backward."""
        self._waiting = int(_is_engines())
        self._patience = _PATIENCE_S

    def call(self, node: Any, getter: Callable[[Any], Any]) -> list[Any]:
        """Call a C getter on a node: one item, or none if the node must not be read now."""
        if self.alone and not self.disturbed:  # enumerating running threads takes several times as long as the getter
            return [getter(node)]
        return self._patiently(lambda: list(map(getter, self._where_at_rest(node))))

    def call_each(self, node: Any, getter: Callable[[Any], Any], each: Callable[[Any], Any]) -> list[Any]:
        """Call a C getter on a node and `each` on every item; empty if the node must not be read now.

        There must be at least one item.
        """
        if self.alone and not self.disturbed:
            return list(map(each, getter(node)))
        return self._patiently(lambda: list(map(each, chain.from_iterable(map(getter, self._where_at_rest(node))))))

    def _patiently(self, call: Callable[[], list[Any]]) -> list[Any]:
        while not self.disturbed:
            contents = call()
            if contents:
                return contents
            self.disturbed = self._patience <= 0
            self._patience -= _PAUSE_S
            CLOCK.sleep(_PAUSE_S)
        return []

    def _where_at_rest(self, node: Any) -> Iterator[Any]:
        """Yield the node, unless another thread runs a backward when the first item is requested."""
        running = map(contains, map(_names_in, _frames_then()), repeat(RUN_BACKWARD))
        within_ours = map(CODE_OF_CALLS.__contains__, map(_code_of, _frames_then()))
        most = map(self._waiting.__ge__, map(sum, (chain(running, within_ours),)))
        return compress((node,), most)


def _frames_then() -> Iterator[FrameType]:
    """The innermost frame of each thread, taken when the first one is requested."""
    return chain.from_iterable(map(dict.values, map(call, (_current_frames,))))


def _runs_for_others() -> bool:
    """Whether distributed autograd runs a backward in this process on behalf of others, in C++ threads."""
    if isinstance(agent_is_set, MissingName) or isinstance(counts_of_contexts, MissingName) or not agent_is_set():
        return False
    try:
        return int(counts_of_contexts().get("num_current_backward_passes", 0)) > 0
    except RuntimeError:  # distributed autograd is not initialised
        return False


def _is_engines() -> bool:
    """Whether this is an autograd thread that works for one waiting in `run_backward`.

    The waiting thread itself runs only nodes on the host, which a graph on an accelerator seldom has.
    """
    if node_running() is None:
        return False
    frame: FrameType | None = _current_frames()[_thread.get_ident()]
    while frame is not None:
        if RUN_BACKWARD in frame.f_code.co_names:
            return False
        frame = frame.f_back
    return True


Words = Callable[[int, int], tuple[int, ...]]
"""Reads `count` machine words at an address; () if unreadable, so a wrong address does not crash."""
WORD = struct.calcsize("P")
OBJECT_HEAD = 2
"""Words of a Python object before its own fields: reference count and type."""
_BEFORE_LOCALS = 9
"""Words of a frame before its locals (CPython Include/internal/pycore_frame.h)."""
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SAVED_VARIABLE = 24
_NODE = 64
"""Words read of a torch::autograd::SavedVariable or Node; the fields of interest lie within."""
_METADATA = 10
"""Words of an AnomalyMetadata that may hold its dict, after the common header (torch/csrc/autograd/
python_anomaly_mode.h).
"""
_RAW_HOOKS = 8
"""Maximum words of a PySavedVariableHooks up to its packed object."""
_UNPACK_HOOK = 2, 4
"""Words before its unpack hook, one more than between fields: a pointer up to torch 2.14, {pointer, interpreter,
engaged} in 2.15 (std::optional of c10::SafePyObject).
"""


_FIRST_PAGE = 4096
"""First bytes of the address space, never mapped."""
_PAIR, _VECTOR = 2, 3
"""Words of a vector's begin and end pointers, and of the whole vector."""


@contextmanager
def own_memory() -> Iterator[Words]:
    """Read this process's memory through /proc/self/mem; nothing is readable where the system has none."""
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
    """Read up to `count` bytes of this process's memory; fewer if they are unreadable."""
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
    """Address of the pack hook that a saved tensor keeps after packing; 0 if not found.

    PySavedVariableHooks is {vtable, pack hook, unpack hook, packed object} (python_saved_variable_hooks.h). The last
    two are known; finding them at the expected offsets confirms the layout.
    """
    for variable in words(id(saved) + OBJECT_HEAD * WORD, 1):
        for hooks in words(variable, _SAVED_VARIABLE):
            fields = words(hooks, _RAW_HOOKS)
            if any(fields[place :: place - 1][:2] == (id(unpack_hook), id(payload)) for place in _UNPACK_HOOK):
                return fields[1]
    return 0


class NodeLayout(NamedTuple):
    """Word offsets within a Node, learned from a probe node (torch/csrc/autograd/node.h)."""

    metadata: int
    """Offset of the pointer to {..., dict of `metadata`}; 0 if unknown, as for the others."""
    pre_hooks: int
    """Offset of the vector of pre-hooks. The vector of hooks on its output tensors follows three words later."""
    post_hooks: int


def node_layout(words: Words) -> NodeLayout:
    """Learn where a Node keeps its dicts. Python's getters and `register_hook` would create missing ones."""
    probe: Any = torch_compat.node_without_tensors("", 1)  # a node that needs no tensor
    pre, post = probe.register_prehook(lambda *_: None), probe.register_hook(lambda *_: None)
    metadata = id(probe.metadata)
    found: dict[int, int] = {}
    for node in words(id(probe) + OBJECT_HEAD * WORD, 1):
        fields = words(node, _NODE)
        for place in range(len(fields) - 1):
            dicts = _dicts_in(fields[place : place + _PAIR], words)
            for hooks in (pre, post):
                if id(torch_compat.hooks_behind(hooks)) in dicts:
                    found.setdefault(id(hooks), place)
            if metadata in words(fields[place], _METADATA):
                found.setdefault(metadata, place)
    return NodeLayout(*(found.get(key, 0) for key in (metadata, id(pre), id(post))))


def dicts_of_node(node: Any, layout: NodeLayout, words: Words) -> Iterator[tuple[str, int]]:
    """Yield (name, address) of each dict of a node that gc cannot see.

    Hooks of output tensors are there during and after the lifetime of the tensor.
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
    """Addresses on the evaluation stack of a frame that is calling a Python function.

    The list of `losses.append(step())` is one. Empty if C code is called, and on Pythons other than 3.11 to 3.13.

    A frame object is {head, f_back, f_frame}. The interpreter frame has nine words before locals and stack; the last is
    the height of both, -1 while C runs (CPython Include/internal/pycore_frame.h).
    """
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return ()
    code = frame.f_code
    if code.co_flags & _GENERATORS:  # gc reports the contents of their frames
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
    """Address of the C++ node behind a Python one, verified by its back pointer (`pyobj_slot_`)."""
    size = int(type.__dict__["__basicsize__"].__get__(type(node)))
    for address in words(id(node), size // WORD)[OBJECT_HEAD:]:
        if id(node) in words(address, within):
            return address
    return 0


def _dicts_in(vector: tuple[int, ...], words: Words) -> list[int]:
    """The dicts in a vector of hooks, given by its begin and end; a hook is {vtable, dict, ...} (python_hook.h)."""
    if len(vector) < _PAIR or not 0 < vector[1] - vector[0] <= _NODE * WORD:
        return []
    hooks = words(vector[0], (vector[1] - vector[0]) // WORD)
    return [dict_at for hook in hooks for dict_at in words(hook, 2)[1:]]


_NO_PACK_HOOK = "this torch keeps the pack hooks of saved tensors where they are not found: what they hold has no cut"
_NOT_READ = "a saved tensor could not be read: this torch does not tell what it saves"


class Contents(NamedTuple):
    """The content of one saved tensor."""

    payload: Any
    """The tensor, or the result of the pack hook."""
    unpack_hook: Any = None
    """None without hooks."""
    pack_hook_at: int = 0
    """Address of the pack hook, 0 if it was not found."""


def saved_of(
    node: Any, name: str, at_rest: EngineGuard, words: Words, gaps: dict[str, None]
) -> Iterator[tuple[int | None, Contents | None]]:
    """Yield (position, contents) of each saved tensor behind a getter of a node; a single one has no position.

    Runs no hook and skips released saved tensors. (None, None) if some could not be read.
    """
    getter = attrgetter(name)
    try:
        values = at_rest.call(node, getter)
        saved = values[0] if values else ()
        several = isinstance(saved, (tuple, list))
        tensors = [each for each in (saved if several else (saved,)) if type(each) is SAVED_TENSOR]
        if tensors and not SAVED_TENSORS_READABLE:
            gaps[_NOT_READ] = None
            return
        parts = at_rest.call_each(node, getter, _CONTENTS) if several and tensors else []
        parts = at_rest.call(node, _contents(name)) if tensors and not several else parts
        found = [_with_pack_hook(*both, words, gaps) for both in zip(tensors, parts, strict=False)]
    except RuntimeError:  # freed by backward: CopySlices and released custom Functions raise
        return
    for place, contents in enumerate(found):
        if contents is not None:
            yield place if several else None, contents
    if not values or len(found) < len(tensors):
        gaps[UNREAD] = None
        yield None, None


_CONTENTS = attrgetter("data", "unpack_hook")


@cache
def _contents(name: str) -> Any:
    """The contents of the node's saved tensor of this name."""
    return attrgetter(f"{name}.data", f"{name}.unpack_hook")


def is_owned(saved: Any, words: Words) -> bool:
    """Whether Python owns a saved tensor. One that belongs to a node is read through the node only."""
    if OWNED_FLAGS is None:
        return False
    return any(flags & 1 for flags in words(id(saved) + OWNED_FLAGS * WORD, 1))


def contents_of(saved: Any, words: Words, gaps: dict[str, None]) -> Contents | None:
    """The contents of a saved tensor that Python owns, read without running a hook; None if released."""
    return _with_pack_hook(saved, (saved_data(saved), saved_unpack_hook(saved)), words, gaps)


def _with_pack_hook(saved: Any, contents: tuple[Any, Any], words: Words, gaps: dict[str, None]) -> Contents | None:
    payload, hook = contents
    if payload is None:
        return None
    found = Contents(payload, hook, 0 if hook is None else pack_hook_at(saved, payload, hook, words))
    if hook is not None and not found.pack_hook_at:
        gaps[_NO_PACK_HOOK] = None
    return found


_grad_fn = TensorBase.grad_fn.__get__
_is_nested = TensorBase.is_nested.__get__
_is_leaf = TensorBase.is_leaf.__get__
_retains_grad = TensorBase.retains_grad.__get__
# bound once: the walk visits every tensor
_gradient, _base = torch_compat.gradient_of, torch_compat.base_of
_hooks, _after_accumulate = torch_compat.hooks_of_tensor, torch_compat.hooks_after_accumulate

# Bound once: up to Python 3.11 an enum's member costs a third of a microsecond, and a graph has millions of references.
_GRAD_GRAPH, _SAVED, _HOOK = ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED, ReferenceKind.HOOK
_MEMORY, _ATTRIBUTE = ReferenceKind.MEMORY, ReferenceKind.ATTRIBUTE


@dataclass(frozen=True)
class NativeReference:
    """One reference from a tensor or a grad node."""

    kind: ReferenceKind
    name: str
    """The name as written in code: `.grad_fn`, `saved self`."""
    target: Any
    python: int
    """Number of Python references this accounts for; 0 if C++ holds the C++ object itself."""
    of: Any = None
    """The referrer, if it is not the object that was read."""
    at: int = 0
    """Address of the referent, if it was read and `target` is not available."""


class Role(IntEnum):
    """The role of an object in the walk through C++ references."""

    PLAIN = 0
    """No role."""
    TENSOR = 1
    GRAD_NODE = 2
    STORAGE = 3
    """The Python object of a storage."""


class Types:
    """Classifies types as tensors and grad nodes, once per type and without calling their code."""

    def __init__(self) -> None:
        self.described: dict[Any, Any] = {}
        """Cached labels of objects that are alike, by what the label depends on."""
        self.gaps: dict[str, None] = {}
        """What could not be read, in words."""
        self.at_rest = EngineGuard()
        """Reads grad nodes when that is safe."""
        self.role = TypeCache(role_of).of
        """The role of objects of a type."""
        self.saved_names = TypeCache(_saved_names).of
        """Getters of a grad node type that return saved tensors without running an unpack hook."""


def _saved_names(kind: type) -> tuple[str, ...]:
    getters = [name for base in mro(kind) for name in type_dict(base) if name.startswith(RAW_SAVED)]
    return tuple(dict.fromkeys(getters))


def role_of(kind: type) -> Role:
    """The role of objects of a type."""
    bases = mro(kind)
    if TensorBase in bases:
        return Role.TENSOR
    if torch_compat.StorageBase in bases:
        return Role.STORAGE
    return Role.GRAD_NODE if is_grad_node(kind) else Role.PLAIN


def is_grad_node(kind: type) -> bool:
    """Recognised by a C getter that every node type has; isinstance with the ABC torch.autograd.graph.Node would run
    Python.
    """
    return any(type(type_dict(base).get("next_functions")) is GetSetDescriptorType for base in mro(kind))


def tensor_holds(tensor: Any, problems: list[str]) -> Iterator[NativeReference]:
    """C++ references of a tensor; its dict, slots and hook dicts are visible to CPython's traversal.

    Runs no user code: plain C getters under `DisableTorchFunction`.
    """
    try:
        grad_fn = _grad_fn(tensor)
    except RuntimeError as error:  # a view changed in place under no_grad has no grad_fn
        problems.append(f"the grad_fn of a view could not be read: {str(error).splitlines()[0]}")
        grad_fn = None
    if grad_fn is not None:
        yield NativeReference(_GRAD_GRAPH, ".grad_fn", grad_fn, 0)
        hooks = _hooks(tensor)
        if hooks is not None:
            # The node holds the dict of a tensor with a grad_fn as well (tensor_pre_hooks; torch/_tensor.py
            # register_hook calls grad_fn._register_hook_dict), out of gc's sight: pytorch#7343.
            yield NativeReference(_HOOK, "tensor hook", hooks, 1, of=grad_fn)
    after = _after_accumulate(tensor)
    if after is not None:
        yield NativeReference(_HOOK, "post-accumulate hook", after, 1)  # gc sees one of its two owners
    base = _base(tensor)
    if base is not None:
        yield NativeReference(_MEMORY, "._base", base, 0)
    if _is_leaf(tensor) or _retains_grad(tensor):  # reading .grad of other tensors warns
        grad = _gradient(tensor)
        if grad is not None:
            yield NativeReference(_ATTRIBUTE, ".grad", grad, 0)


def replays(view: Any, base: Any) -> bool:
    """Whether C++ keeps replay functions with a view, which hold the base and intermediate views once more.

    They exist if strides alone do not describe the view: complex to real or back, conjugated, negated and nested views
    (torch/csrc/autograd/generated/VariableType, `rev_view_func`).
    """
    return bool(
        TensorBase.is_complex(view) or TensorBase.is_complex(base) or TensorBase.is_neg(view) or _is_nested(view)
    )


def node_holds(node: Any, types: Types, words: Words) -> Iterator[NativeReference]:
    """C++ references of a grad node: next functions, its variable, saved tensors without unpacking them."""
    kind = type(node)
    try:
        below = node.next_functions
    except RuntimeError:  # in torch 2.10 a custom Function's node may be freed while its Python object exists
        return
    for k, (function, _) in enumerate(below):
        if function is not None:
            yield NativeReference(_GRAD_GRAPH, f".next_functions[{k}]", function, 0)
    if kind.__name__ == "AccumulateGrad":
        yield NativeReference(_GRAD_GRAPH, ".variable", node.variable, 0)
        return
    for name in types.saved_names(kind):
        short = name[len(RAW_SAVED) :]
        for place, contents in saved_of(node, name, types.at_rest, words, types.gaps):
            label = f"saved {short}" if place is None else f"saved {short}[{place}]"
            if contents is None:
                yield NativeReference(_SAVED, label, None, 0)
            else:
                yield from _content_holds(contents, label)


def saved_holds(saved: Any, label: str, types: Types, words: Words) -> Iterator[NativeReference]:
    """References of a saved tensor held by Python, as checkpointing keeps them (torch/utils/checkpoint.py, saved_args).

    One that belongs to a grad node is skipped: it may point at memory that was freed with the node.
    """
    contents = contents_of(saved, words, types.gaps) if is_owned(saved, words) else None
    if contents is not None:
        yield from _content_holds(contents, label)


def _content_holds(contents: Contents, label: str) -> Iterator[NativeReference]:
    payload, hook, pack_hook = contents
    if hook is None:
        yield NativeReference(_SAVED, label, payload, 0)
    else:  # SafePyObject: the packed object and the unpack hook are Python references owned by C++
        yield NativeReference(_SAVED, label, payload, 1)
        yield NativeReference(_HOOK, f"unpack hook of {label}", hook, 1)
        yield NativeReference(_HOOK, f"pack hook of {label}", None, 1, at=pack_hook)
