"""Values read from C++ memory are correct, and invalid addresses are harmless."""

from __future__ import annotations

import collections
import gc
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from leakscope.graph.model import HeapGraph
from leakscope.heap import snapshot as heap
from leakscope.heap.autograd import contents_of, dicts_of_node, node_layout, own_memory, pack_hook_at


def pack(tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    return "kept", tensor.detach()


def unpack(packed: tuple[str, torch.Tensor]) -> torch.Tensor:
    return packed[1]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(given)
        return given * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def changed_view() -> torch.Tensor:
    whole = leaf() * 1
    whole[:2].mul_(2)
    return whole


MADE: dict[str, Callable[[], torch.Tensor]] = {
    "built in": lambda: leaf() * 2,
    "saving nothing": lambda: leaf().sum(),
    "custom": lambda: Doubled.apply(leaf()),
    "changed view": changed_view,
    "many inputs": lambda: torch.stack([leaf() for _ in range(40)]),
}


@pytest.mark.parametrize("name", list(MADE))
def test_the_hooks_of_a_tensor_are_found_on_its_node_when_it_is_gone(name: str) -> None:
    made = MADE[name]()
    made.register_hook(lambda grad: grad)
    node, hooks = made.grad_fn, made._backward_hooks
    above = made * 2  # in torch 2.10 Python does not own the node of a custom Function
    del made
    other = leaf().exp()
    other.register_hook(lambda grad: grad)
    with own_memory() as words:
        layout = node_layout(words)
        assert ("tensor hook", id(hooks)) in dicts_of_node(node, layout, words)
        assert ("tensor hook", id(other._backward_hooks)) in dicts_of_node(other.grad_fn, layout, words)
        assert [*dicts_of_node((leaf() * 2).grad_fn, layout, words)] == []
    assert above is not None


@pytest.mark.parametrize("name", list(MADE))
def test_each_dict_of_a_node_is_found_where_it_is(name: str) -> None:
    made = MADE[name]()
    node: Any = made.grad_fn
    with own_memory() as words:
        layout = node_layout(words)
        assert [*dicts_of_node(node, layout, words)] == []
        before, after = node.register_prehook(lambda *_: None), node.register_hook(lambda *_: None)
        expected = {"metadata": id(node.metadata)}
        expected |= {"pre-hook": id(before.hooks_dict_ref()), "post-hook": id(after.hooks_dict_ref())}
        found = [*dicts_of_node(node, layout, words)]
        assert set(expected.items()) <= set(found)
        assert {kind for kind, _ in found} == set(expected)
    assert made is not None


def test_a_pack_hook_is_found_and_no_other() -> None:
    with saved_tensors_hooks(pack, unpack):
        built_in = leaf().exp().grad_fn
        doubled = Doubled.apply(leaf())  # in torch 2.10 its node goes with it
    custom = doubled.grad_fn
    plain: Any = leaf().exp().grad_fn
    assert built_in is not None
    with own_memory() as words:
        for saved in (built_in._raw_saved_result, custom._raw_saved_tensors[0]):
            found = contents_of(saved, words, {})
            assert found is not None and found.payload[0] == "kept"
            assert (found.unpack_hook, found.pack_hook_at) == (unpack, id(pack))
            assert pack_hook_at(saved, found.payload, pack, words) == 0
        assert pack_hook_at(plain._raw_saved_result, None, None, words) == 0


def test_what_cannot_be_read_is_an_answer() -> None:
    before = os.listdir("/proc/self/fd")
    with own_memory() as words:
        assert (
            words(0, 1) == words(8, 4) == words(id(pack) + 1, 1) == words(1 << 60, 2) == words((1 << 64) - 8, 2) == ()
        )
        assert words(id(pack), 2)[1] == id(type(pack))
    assert os.listdir("/proc/self/fd") == before


def _unexplained(graph: HeapGraph, name: str) -> list[int]:
    objects = [graph.object(k) for k in range(len(graph))]
    return [o.unexplained for o in objects if name in o.name]


def test_every_reference_to_a_pack_hook_is_counted() -> None:
    heavy = torch.ones(50)

    def packs_with_heavy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach() * heavy.sum()

    with saved_tensors_hooks(packs_with_heavy, unpack):
        losses = [leaf().exp().tanh().sum() for _ in range(3)]
    assert _unexplained(heap.look(1, "step").heap, "packs_with_heavy") == [0]
    assert losses


def test_a_node_made_to_learn_from_is_gone_after_the_look() -> None:
    made = leaf() * 2
    later = made.exp()
    made.register_hook(lambda grad: grad * later)
    del made
    heap.look(1, "step")
    alive = []
    for step in (2, 3):
        types = collections.Counter(type(one).__name__ for one in gc.get_objects())
        alive.append([types[name] for name in ("OrderedDict", "RemovableHandle", "DelayedError")])
        heap.look(step, "step")
    assert alive[0] == alive[1] and alive[0][0] > 0
