"""Tensors that are freed only when gc runs."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from corpus.case import LeakCase


class Cyclic(LeakCase):
    rule = "tensor-cycle"
    freed_by = "gc"
    collections = 1
    per_step: Any = 1


class RecursiveClosure(Cyclic):
    cut = r"closure walk"

    def leak(self) -> None:
        buffer = self.tensor()

        def walk(depth: int) -> torch.Tensor:
            return buffer.sum() if depth == 0 else walk(depth - 1)

        walk(3)

    def clean(self) -> None:
        buffer = self.tensor()

        def walk(depth: int, again: Callable[..., torch.Tensor]) -> torch.Tensor:
            return buffer.sum() if depth == 0 else again(depth - 1, again)

        walk(3, walk)


class Scaled(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def scaled(self) -> torch.Tensor:
        return self.weight * 2


class _KeepsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, wrong: bool) -> torch.Tensor:
        made = given * 2
        if wrong:
            ctx.made = made
        else:
            ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class ContextAttribute(Cyclic):
    cut = r"\.made"
    per_step = 2

    def leak(self) -> None:
        _KeepsOutput.apply(self.leaf(), True)

    def clean(self) -> None:
        _KeepsOutput.apply(self.leaf(), False)


class LeafHookOnItself(Cyclic):
    cut = r"closure leaf"

    def leak(self) -> None:
        leaf = self.leaf()
        leaf.register_hook(lambda grad: grad * leaf)

    def clean(self) -> None:
        leaf = self.leaf()
        leaf.register_hook(lambda grad: grad * 2)


class Pair:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.parent: Any = None
        self.children: list[Any] = []


class Cached:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def size(self) -> int:
        return self.tensor.numel()


class CachedMethodOnInstance(Cyclic):
    tells = r"Cached.*\.size"

    def leak(self) -> None:
        one = Cached(self.tensor())
        one.size = functools.lru_cache(one.size)  # type: ignore[method-assign]
        one.size()

    def clean(self) -> None:
        one = Cached(self.tensor())
        one.size = functools.lru_cache(weakref.WeakMethod(one.size))  # type: ignore[method-assign]


class PatchedForward(Cyclic):
    """As accelerate.hooks.add_hook_to_module does."""

    cut = r"\.(_old_)?forward"

    def leak(self) -> None:
        module = Scaled(self.tensor())
        module._old_forward = module.forward
        module.forward = functools.partial(lambda itself, *args: itself._old_forward(*args), module)

    def clean(self) -> None:
        module = Scaled(self.tensor())
        module.forward = functools.partial(type(module).forward, weakref.proxy(module))  # type: ignore[method-assign]


class WeakrefCallback(Cyclic):
    cut = r"closure pair|\.watch"

    def leak(self) -> None:
        pair, target = Pair(self.tensor()), Pair(torch.ones(1))
        pair.children.append(target)
        pair.watch = weakref.ref(target, lambda _: pair.children.clear())  # type: ignore[attr-defined]

    def clean(self) -> None:
        pair, target = Pair(self.tensor()), Pair(torch.ones(1))
        pair.children.append(target)
        pair.watch = weakref.ref(target, lambda _: None)  # type: ignore[attr-defined]


@dataclass(slots=True)
class Slotted:
    tensor: torch.Tensor
    owner: Any = None


class SlotsCycle(Cyclic):
    cut = r"\.owner"

    def leak(self) -> None:
        one = Slotted(self.tensor())
        one.owner = one

    def clean(self) -> None:
        one = Slotted(self.tensor())
        one.owner = one.tensor


class TensorAttribute(Cyclic):
    cut = r"\.owner|\.tensor"

    def leak(self) -> None:
        pair = Pair(self.tensor())
        pair.tensor.owner = pair  # type: ignore[attr-defined]

    def clean(self) -> None:
        pair = Pair(self.tensor())
        pair.tensor.owner = pair.children  # type: ignore[attr-defined]


class Wrapper(torch.Tensor):
    """A wrapper subclass: no memory of its own, an inner tensor in its dict."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("nobody may run an operator of this tensor")


class WrapperSubclass(Cyclic):
    cut = r"\.same"

    def leak(self) -> None:
        wrapped = Wrapper(self.tensor())
        wrapped.same = wrapped

    def clean(self) -> None:
        wrapped = Wrapper(self.tensor())
        wrapped.same = wrapped.inner


class GeneratorOfItsOwner(Cyclic):
    tells = r"generator GeneratorOfItsOwner\.leak.*batches"

    def leak(self) -> None:
        pair = Pair(self.tensor())

        def batches() -> Any:
            yield pair
            yield pair

        pair.parent = batches()
        next(pair.parent)

    def clean(self) -> None:
        pair = Pair(self.tensor())

        def batches() -> Any:
            yield pair

        pair.parent = list(map(id, batches()))


class TaskOfItself(Cyclic):
    tells = r"coroutine TaskOfItself\.leak.*waits"

    def leak(self) -> None:
        tensor = self.tensor()
        box: list[Any] = [tensor]

        async def waits() -> None:
            await _Never()
            box.clear()

        running = waits()
        running.send(None)
        box.append(running)

    def clean(self) -> None:
        tensor = self.tensor()
        box: list[Any] = [tensor]

        async def waits() -> None:
            await asyncio.sleep(0)
            box.clear()

        asyncio.run(waits())


class _Never:
    def __await__(self) -> Any:
        yield


_CURRENT: contextvars.ContextVar[Any] = contextvars.ContextVar("current")


class ContextOfItself(Cyclic):
    tells = r"Context"

    def leak(self) -> None:
        context = contextvars.copy_context()
        box = [self.tensor(), context]
        context.run(_CURRENT.set, box)

    def clean(self) -> None:
        context = contextvars.copy_context()
        context.run(_CURRENT.set, [self.tensor()])


class ClassPerStep(Cyclic):
    frees = False
    tells = r"class Local|ClassPerStep\.leak.*Local"

    def leak(self) -> None:
        class Local:
            table = self.tensor()

        assert Local.table is not None

    def clean(self) -> None:
        table = self.tensor()
        assert table is not None


class Sized:
    """A base that outlives the classes made of it."""

    def size(self) -> int:
        return 1


def _sized(table: torch.Tensor | None) -> type[Sized]:
    class Table(Sized):
        __slots__ = ("rows",)
        held = table

        def size(self) -> int:
            return super().size() + 1

    return Table


class SlottedClassPerStep(Cyclic):
    """No `__dict__` to lead back, but slots, a `super()` and a base that knows its subclasses."""

    frees = False

    tells = r"class Table.*\.held"

    def begin(self) -> None:
        self.once: Any = _sized(None)

    def leak(self) -> None:
        assert _sized(self.tensor())().size() == 2

    def clean(self) -> None:
        self.once.held = self.tensor()
        assert self.once().size() == 2


class ParamGroupHooks(Cyclic):
    """The 2024 stage backward: hook -> cell -> param_group -> intermediates -> grad node -> hook."""

    tells = r"param_group.*intermediates|intermediates.*param_group"
    per_step = None
    collections = 3

    def leak(self) -> None:
        self._backward(remove=False)

    def clean(self) -> None:
        self._backward(remove=True)

    def _backward(self, remove: bool) -> None:
        made = self.leaf()
        groups: list[dict[str, Any]] = []
        handles = []
        for _ in range(3):
            made = (made * made).tanh()
            groups.append({"intermediates": [made.grad_fn], "grads": []})
        for param_group in groups:

            def get_hook(param_group: dict[str, Any]) -> Any:
                def hook(grads: Any) -> None:
                    param_group["grads"].append(grads)

                return hook

            for node in param_group["intermediates"]:
                handles.append(node.register_prehook(get_hook(param_group)))
        if remove:
            for handle in handles:
                handle.remove()
