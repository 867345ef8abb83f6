"""Blocks of code that leave tensors behind: as garbage that gc frees or never frees, or retained by a live object."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections.abc import Callable
from typing import Any

import torch

Block = Callable[[], object]
GARBAGE: dict[str, Callable[[], Block]] = {}
KEPT: dict[str, Callable[[], Block]] = {}
SIZE = 1000
"""Elements of each tensor that is left."""
module_list: list[Any] = []
of_thread = threading.local()
of_context: contextvars.ContextVar[Any] = contextvars.ContextVar("of_context")


class Thing:
    """Refers to itself, so that only gc frees it."""

    held: Any

    def __init__(self) -> None:
        self.me = self


class KeepsOutput(torch.autograd.Function):
    """Stores its output where it closes a cycle."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.output = x * 2
        return ctx.output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def garbage(block: Block) -> Block:
    GARBAGE[block.__name__] = lambda: block
    return block


def garbage_of_setup(way: Callable[[], Block]) -> Callable[[], Block]:
    """The function sets up what is there before the block, which it returns."""
    GARBAGE[way.__name__] = way
    return way


def kept(block: Block) -> Block:
    KEPT[block.__name__] = lambda: block
    return block


def kept_of_setup(way: Callable[[], Block]) -> Callable[[], Block]:
    KEPT[way.__name__] = way
    return way


def tensor() -> torch.Tensor:
    return torch.ones(SIZE)


def leaf() -> torch.Tensor:
    return torch.ones(SIZE, requires_grad=True)


# garbage made by the block


@garbage
def list_of_itself() -> None:
    items: list[Any] = [tensor()]
    items.append(items)


@garbage
def recursive_closure() -> None:
    held = tensor()

    def again(depth: int) -> int:
        return again(depth - 1) if depth else held.numel()

    again(1)


@garbage
def context_of_its_output() -> object:
    return KeepsOutput.apply(leaf())


@garbage
def suspended_generator() -> None:
    def one_by_one(own: list[Any]) -> Any:
        held = tensor()
        yield own
        yield held

    items: list[Any] = []
    items.append(one_by_one(items))
    next(items[0])


@garbage
def hook_over_its_tensor() -> None:
    hidden = leaf() * 2
    hidden.register_hook(lambda grad, own=hidden: grad + own)


@garbage
def metadata_of_its_node() -> None:
    hidden = leaf() * 2
    assert hidden.grad_fn is not None
    hidden.grad_fn.metadata["own"] = hidden


@garbage
def saved_by_identity() -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        leaf().exp()


@garbage
def gradient_with_its_graph() -> None:
    weight = leaf()
    (weight**3).sum().backward(create_graph=True)


@garbage
def saved_tensor_whose_python_object_is_gone() -> None:
    items: list[Any] = [(leaf() * tensor()).sum()]
    items.append(items)


@garbage
def numpy_view() -> None:
    items: list[Any] = [tensor().numpy()]
    items.append(items)


@garbage
def storage_alone() -> None:
    items: list[Any] = [tensor().untyped_storage()]
    items.append(items)


@garbage
def after_the_blocks_own_collection() -> None:
    thing = Thing()
    gc.collect()
    thing.held = tensor()
    del thing


@garbage
def frozen_and_thawed_by_the_block() -> None:
    thing = Thing()
    thing.held = tensor()
    del thing
    gc.freeze()
    gc.unfreeze()


# garbage of objects from before the block


def dropped(fill: Callable[[Thing], object], use: Callable[[Thing], object] = lambda thing: None) -> Block:
    """A thing from before the block, which uses it and lets it go."""
    box = [Thing()]
    fill(box[0])

    def block() -> None:
        use(box[0])
        box.clear()

    return block


def hold(thing: Thing) -> None:
    thing.held = tensor()


@garbage_of_setup
def old_thing_dropped() -> Block:
    return dropped(hold)


@garbage_of_setup
def old_thing_filled_and_dropped() -> Block:
    return dropped(lambda thing: None, hold)


@garbage_of_setup
def old_tensor_moved_into_a_cycle() -> Block:
    box = [tensor()]

    def block() -> None:
        items: list[Any] = [box.pop()]
        items.append(items)

    return block


@garbage_of_setup
def old_parameter_with_other_data() -> Block:
    def fill(thing: Thing) -> None:
        thing.held = torch.nn.Parameter(torch.ones(3))

    def use(thing: Thing) -> None:
        thing.held.data = tensor()

    return dropped(fill, use)


@garbage_of_setup
def old_tensor_swapped() -> Block:
    def fill(thing: Thing) -> None:
        thing.held = torch.ones(3)

    return dropped(fill, lambda thing: torch.utils.swap_tensors(thing.held, tensor()))


@garbage_of_setup
def old_tensor_with_a_new_gradient() -> Block:
    def fill(thing: Thing) -> None:
        thing.held = leaf()

    return dropped(fill, lambda thing: thing.held.sum().backward())


@garbage_of_setup
def old_node_alone() -> Block:
    def fill(thing: Thing) -> None:
        thing.held = (leaf() * tensor()).sum().grad_fn

    return dropped(fill)


@garbage_of_setup
def old_sum_of_losses() -> Block:
    def fill(thing: Thing) -> None:
        thing.held = torch.zeros(())

    def use(thing: Thing) -> None:
        thing.held += (leaf() * tensor()).sum()

    return dropped(fill, use)


# retained by a live object


@kept
def nothing() -> object:
    return None


@kept
def of_the_module() -> object:
    return module_list.append(tensor())


@kept_of_setup
def of_an_old_list() -> Block:
    items: list[Any] = []
    return lambda: items.append(tensor())


@kept_of_setup
def gradients_of_an_old_model() -> Block:
    model = torch.nn.Linear(SIZE, 3)
    return lambda: model(tensor()).sum().backward()


@kept_of_setup
def optimizer_of_an_old_model() -> Block:
    model = torch.nn.Linear(SIZE, 3)
    optimizer = torch.optim.Adam(model.parameters())

    def block() -> None:
        model(tensor()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return block


@kept_of_setup
def graph_of_an_old_sum() -> Block:
    total = torch.zeros(())

    def block() -> None:
        nonlocal total
        total += (leaf() * tensor()).sum()

    return block


@kept_of_setup
def hook_of_an_old_tensor() -> Block:
    weight, held = leaf(), tensor()
    product = weight * 2

    def block() -> None:
        more = held + 1
        product.register_hook(lambda grad: grad + more)

    return block


@kept_of_setup
def in_a_numpy_view() -> Block:
    items: list[Any] = []
    return lambda: items.append(tensor().numpy())


@kept
def of_a_thread() -> None:
    of_thread.held = tensor()


@kept
def of_a_context() -> object:
    return of_context.set(tensor())


@kept_of_setup
def old_tensor_gone() -> Block:
    box = [tensor()]
    return box.clear


def let_go() -> None:
    """What module, thread and context hold for a block."""
    module_list.clear()
    vars(of_thread).clear()
    of_context.set(None)
