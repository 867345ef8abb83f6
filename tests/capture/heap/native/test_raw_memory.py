"""Values read from C++ memory are correct, and invalid addresses are harmless."""

from __future__ import annotations

import collections
import gc
import os
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from leakscope.graph.model import HeapGraph
from leakscope.heap import snapshot as heap
from leakscope.heap.autograd import contents_of, own_memory, pack_hook_at


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
