"""A snapshot creates and clears nothing that CPython and torch create lazily, by independent readers of raw memory."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from leakscope.graph.model import HeapGraph
from leakscope.heap import snapshot as heap
from leakscope.heap.snapshot import SnapshotContext
from leakscope.process.raw_types import LAYOUT_IS_KNOWN

pytestmark = [
    pytest.mark.inspect,
    pytest.mark.skipif(not LAYOUT_IS_KNOWN, reason="not a build of CPython 3.11 to 3.13 with the GIL"),
]
OLD = sys.version_info < (3, 12)
State = tuple[Any, ...]


def word(address: int) -> int:
    return int(ctypes.c_size_t.from_address(address).value)


def of_dict_at(address: int) -> State:
    """Where a dict is, and what it holds; nothing for the address 0."""
    if not address:
        return (0,)
    found = ctypes.cast(address, ctypes.py_object).value
    return address, [(id(key), id(value)) for key, value in dict.items(found)] if isinstance(found, dict) else ()


def of_instance(obj: Any) -> State:
    """The two words before an instance that lead to its dict and to its values."""
    return word(id(obj) - 24), word(id(obj) - 32)


def of_offset(obj: Any) -> State:
    return of_dict_at(word(id(obj) + type(obj).__dictoffset__))


def of_annotations(function: Any) -> State:
    """All words of a function but the last two, func_dict and func_annotations among them."""
    return (
        *of_offset(function),
        tuple(word(id(function) + 8 * k) for k in range(2, type(function).__basicsize__ // 8 - 2)),
    )


def of_inner_frame(inner: int) -> State:
    return (*of_dict_at(word(inner + 8 * (3 if OLD else 5))), word(inner + 8 * (5 if OLD else 6)))


def of_frame(frame: types.FrameType) -> State:
    state = of_inner_frame(word(id(frame) + 24))
    return state if sys.version_info < (3, 13) else (*state, word(id(frame) + 48), word(id(frame) + 56))


def of_generator(generator: Any) -> State:
    return of_inner_frame(id(generator) + type(generator).__basicsize__ - 72)


def of_node(node: Any) -> State:
    """The words of a Node before and after the one that leads back to its Python object.

    Its dicts of metadata and hooks are behind pointers there. The way to it is in the Python object, at one place for
    the nodes of C++ and at another for those of a `torch.autograd.Function`.
    """
    with open("/proc/self/mem", "rb", buffering=0) as memory:

        def words(at: int, count: int) -> State:
            try:
                return struct.unpack(f"{count}P", os.pread(memory.fileno(), 8 * count, at))
            except (OSError, OverflowError, struct.error):
                return ()

        for at in words(id(node), type(node).__basicsize__ // 8)[2:]:
            found = words(at, 45)
            if id(node) in found[:20]:
                place = found.index(id(node))
                return found[place - 3 : place + 20]  # what stands behind a small node is of somebody else
    raise AssertionError("no Node was found")


class Plain:
    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)


class Slotted:
    __slots__ = ("__dict__", "tensor")

    def __init__(self) -> None:
        self.tensor = torch.ones(3)


class Failed(Exception):
    pass


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(given)
        return given * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


def generated(tensor: torch.Tensor) -> Iterator[Any]:
    made = tensor + 1
    yield made


async def awaited(tensor: torch.Tensor) -> None:
    return None


HELD = torch.ones(3)


def annotated(first: torch.Tensor = HELD, *, second: Any = HELD) -> torch.Tensor:
    return first


def frame_with_f_locals() -> types.FrameType:
    tensor = torch.ones(3)
    frame = sys._getframe()
    frame.f_locals.update(hidden=tensor)  # what a debugger has put there
    return frame


def frame_with_stale_f_locals() -> tuple[types.FrameType, Any]:
    tensor: Any = torch.ones(3)
    names = locals()
    tensor = torch.ones(4)
    assert tensor is not None
    return sys._getframe(), names


def failed_frame() -> types.FrameType:
    try:
        raise Failed(torch.ones(3))
    except Failed:
        return sys._getframe()


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def zoo() -> list[tuple[str, Any, Callable[[Any], State]]]:
    """(name, object, how its state is read)."""
    plain, with_dict, half = (Plain(tensor=torch.ones(3), more=[torch.ones(3)]) for _ in range(3))
    with_dict.__dict__  # noqa: B018
    del half.tensor
    bare, custom = leaf().exp(), Doubled.apply(leaf())
    with_metadata, hooked, loose = leaf().exp(), leaf().exp(), leaf().exp()
    with_metadata.grad_fn.metadata["tensor"] = torch.ones(3)  # type: ignore[union-attr]
    hooked.grad_fn.register_hook(lambda *_, held=HELD: None)  # type: ignore[union-attr]
    loose.register_hook(functools.partial(lambda held, grad: grad, torch.ones(3)))
    nodes = {
        "bare": bare,
        "custom": custom,
        "with metadata": with_metadata,
        "with a hook": hooked,
        "of a tensor hook": loose,
    }
    started, fresh = generated(torch.ones(3)), generated(torch.ones(3))
    next(started)
    bound = functools.partial(annotated, torch.ones(3))
    return [
        ("values inline", plain, of_instance),
        ("a dict made", with_dict, of_instance),
        ("an attribute deleted", half, of_instance),
        ("a tensor", torch.ones(3), of_instance),
        ("a tensor of a class", torch.ones(3).as_subclass(type("Sub", (torch.Tensor,), {})), of_instance),
        ("slots and a dict", Slotted(), of_instance),
        ("an exception", Failed(torch.ones(3)), of_offset),
        ("a function", annotated, of_annotations),
        ("a partial", bound, of_offset),
        ("a generator", started, of_generator),
        ("a generator not started", fresh, of_generator),
        ("a coroutine", awaited(torch.ones(3)), of_generator),
        ("a frame with f_locals", frame_with_f_locals(), of_frame),
        ("a frame with stale f_locals", frame_with_stale_f_locals()[0], of_frame),
        ("a frame left by an error", failed_frame(), of_frame),
        *((f"a node {name}", made.grad_fn, of_node) for name, made in nodes.items()),
        ("what keeps them", [*nodes.values()], lambda held: (len(held),)),
    ]


def inspect_twice() -> HeapGraph:
    graph = heap.take_heap_snapshot(1, "step").heap
    heap.take_heap_snapshot(2, "step", SnapshotContext(explained=lambda found: None))
    return graph


def test_two_snapshots_create_nothing() -> None:
    there = zoo()
    before = {name: read(obj) for name, obj, read in there}
    graph = inspect_twice()
    changed = [name for name, obj, read in there if read(obj) != before[name]]
    assert changed == []
    assert graph.of_kind("tensor").size > len(there)
    next(obj for name, obj, _ in there if name == "a coroutine").close()  # else Python warns of it


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="PEP 667: f_locals writes through")
def test_values_that_a_library_puts_into_f_locals_arrive() -> None:
    def put(frame: types.FrameType, **values: Any) -> None:
        frame.f_locals.update(values)
        inspect_twice()
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)

    def read() -> Any:
        put(sys._getframe(), hidden=tensor)
        if False:
            hidden = None
        return hidden

    tensor = torch.ones(3)
    assert read() is tensor
