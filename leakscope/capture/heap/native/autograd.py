"""The references only C++ knows: grad_fn, next functions, saved tensors, `.grad`, views, hooks, metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from types import GetSetDescriptorType
from typing import Any

from leakscope.capture import torch_private
from leakscope.capture.heap.native.at_rest import AtRest
from leakscope.capture.heap.native.raw_memory import Words
from leakscope.capture.heap.native.saved_tensors import Contents, contents_of, is_owned, saved_of
from leakscope.capture.heap.raw_types import mro, type_dict
from leakscope.capture.torch_private import RAW_SAVED, TensorBase
from leakscope.graph.model import ReferenceKind

_grad_fn = TensorBase.grad_fn.__get__
_is_nested = TensorBase.is_nested.__get__
_is_leaf = TensorBase.is_leaf.__get__
_retains_grad = TensorBase.retains_grad.__get__
# bound once, as the walk asks every tensor
_gradient, _base = torch_private.gradient_of, torch_private.base_of
_hooks, _after_accumulate = torch_private.hooks_of_tensor, torch_private.hooks_after_accumulate

# Bound once: up to Python 3.11 an enum's member costs a third of a microsecond, and a graph has millions of references.
_GRAD_GRAPH, _SAVED, _HOOK = ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED, ReferenceKind.HOOK
_MEMORY, _ATTRIBUTE = ReferenceKind.MEMORY, ReferenceKind.ATTRIBUTE


@dataclass(frozen=True)
class Held:
    """One reference out of a tensor or a grad node."""

    kind: ReferenceKind
    name: str
    """As code writes it: `.grad_fn`, `saved self`."""
    target: Any
    python: int
    """How many Python references this accounts for; 0 where C++ holds the C++ object itself."""
    of: Any = None
    """The holder, where it is not the object that was asked."""
    at: int = 0
    """Address of what is held, where it was read and `target` is not at hand."""


class Role(IntEnum):
    """What an object is to the walk through what C++ holds."""

    PLAIN = 0
    """Nothing to it."""
    TENSOR = 1
    GRAD_NODE = 2
    STORAGE = 3
    """The Python object of a storage."""


class Types:
    """Which types are tensors and which are grad nodes, decided once per type and without asking an object."""

    def __init__(self) -> None:
        self.told: dict[Any, Any] = {}
        """What was said of objects of which many are alike, by what that depends on."""
        self.gaps: dict[str, None] = {}
        """What could not be read of what they hold, in words."""
        self.at_rest = AtRest()
        """Reads grad nodes, where that is safe."""
        self._known: dict[int, Role] = {}
        self._saved: dict[int, tuple[str, ...]] = {}

    def role(self, kind: type) -> Role:
        """What objects of this type are to the walk."""
        role = self._known.get(id(kind))
        if role is None:
            role = self._known[id(kind)] = role_of(kind)
        return role

    def saved_names(self, kind: type) -> tuple[str, ...]:
        """The getters of a grad node's type that give saved tensors and run no unpack hook."""
        names = self._saved.get(id(kind))
        if names is None:
            getters = [name for base in mro(kind) for name in type_dict(base) if name.startswith(RAW_SAVED)]
            names = self._saved[id(kind)] = tuple(dict.fromkeys(getters))
        return names


def role_of(kind: type) -> Role:
    """What objects of a type are to the walk."""
    bases = mro(kind)
    if TensorBase in bases:
        return Role.TENSOR
    if torch_private.StorageBase in bases:
        return Role.STORAGE
    return Role.GRAD_NODE if is_grad_node(kind) else Role.PLAIN


def is_grad_node(kind: type) -> bool:
    """torch.autograd.graph.Node is an ABC whose check runs Python; every node type has this C getter."""
    return any(type(type_dict(base).get("next_functions")) is GetSetDescriptorType for base in mro(kind))


def tensor_holds(tensor: Any, problems: list[str]) -> Iterator[Held]:
    """What a tensor holds in C++; its dict, slots and hook dicts are seen by CPython's own traversal.

    Runs no user code: plain C getters under `DisableTorchFunction`.
    """
    try:
        grad_fn = _grad_fn(tensor)
    except RuntimeError as error:  # a view changed in place under no_grad has no grad_fn to give
        problems.append(f"the grad_fn of a view could not be read: {str(error).splitlines()[0]}")
        grad_fn = None
    if grad_fn is not None:
        yield Held(_GRAD_GRAPH, ".grad_fn", grad_fn, 0)
        hooks = _hooks(tensor)
        if hooks is not None:
            # The node holds the dict of a tensor with a grad_fn as well (tensor_pre_hooks; torch/_tensor.py
            # register_hook calls grad_fn._register_hook_dict), out of gc's sight: pytorch#7343.
            yield Held(_HOOK, "tensor hook", hooks, 1, of=grad_fn)
    after = _after_accumulate(tensor)
    if after is not None:
        yield Held(_HOOK, "post-accumulate hook", after, 1)  # gc sees one of its two owners
    base = _base(tensor)
    if base is not None:
        yield Held(_MEMORY, "._base", base, 0)
    if _is_leaf(tensor) or _retains_grad(tensor):  # reading .grad of other tensors warns
        grad = _gradient(tensor)
        if grad is not None:
            yield Held(_ATTRIBUTE, ".grad", grad, 0)


def replays(view: Any, base: Any) -> bool:
    """Whether C++ keeps functions with a view that make it again: those hold the base, and views in between, once more.

    They are there where strides alone do not tell how the view was made: from complex numbers to real ones or back,
    conjugated, negative and nested ones (torch/csrc/autograd/generated/VariableType, `rev_view_func`).
    """
    return bool(
        TensorBase.is_complex(view) or TensorBase.is_complex(base) or TensorBase.is_neg(view) or _is_nested(view)
    )


def node_holds(node: Any, types: Types, words: Words) -> Iterator[Held]:
    """What a grad node holds in C++: next functions, its variable, saved tensors without unpacking them."""
    kind = type(node)
    try:
        below = node.next_functions
    except RuntimeError:  # up to torch 2.9 a custom Function's node may be gone while Python has its object
        return
    for k, (function, _) in enumerate(below):
        if function is not None:
            yield Held(_GRAD_GRAPH, f".next_functions[{k}]", function, 0)
    if kind.__name__ == "AccumulateGrad":
        yield Held(_GRAD_GRAPH, ".variable", node.variable, 0)
        return
    for name in types.saved_names(kind):
        short = name[len(RAW_SAVED) :]
        for place, contents in saved_of(node, name, types.at_rest, words, types.gaps):
            label = f"saved {short}" if place is None else f"saved {short}[{place}]"
            if contents is None:
                yield Held(_SAVED, label, None, 0)
            else:
                yield from _content_holds(contents, label)


def saved_holds(saved: Any, label: str, types: Types, words: Words) -> Iterator[Held]:
    """What a saved tensor that Python has holds; checkpointing keeps such (torch/utils/checkpoint.py, saved_args).

    One that shows what a grad node has holds nothing, and may point at memory that was freed with the node.
    """
    contents = contents_of(saved, words, types.gaps) if is_owned(saved, words) else None
    if contents is not None:
        yield from _content_holds(contents, label)


def _content_holds(contents: Contents, label: str) -> Iterator[Held]:
    payload, hook, pack_hook = contents
    if hook is None:
        yield Held(_SAVED, label, payload, 0)
    else:  # SafePyObject: the packed object and the unpack hook are Python references owned by C++
        yield Held(_SAVED, label, payload, 1)
        yield Held(_HOOK, f"unpack hook of {label}", hook, 1)
        yield Held(_HOOK, f"pack hook of {label}", None, 1, at=pack_hook)
