"""Each storage belongs to the one category that its references determine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from leakscope.findings.categories import CATEGORIES, categories
from leakscope.heap import snapshot as heap

pytestmark = pytest.mark.usefixtures("nothing_collected")

FLOAT = 4


class Halves(torch.Tensor):
    """A wrapper without memory of its own, as DTensor is one."""

    parts: tuple[torch.Tensor, ...]

    @staticmethod
    def __new__(cls, inner: torch.Tensor, requires_grad: bool = False) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=requires_grad)  # type: ignore[attr-defined]
        made._inner_tensor = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0]._inner_tensor)
        raise NotImplementedError(func)


def _categories() -> dict[str, int]:
    seen = heap.take_heap_snapshot(1, "step")
    found = categories(seen.heap)
    assert set(found) == set(CATEGORIES)
    assert sum(found.values()) == seen.explained_bytes
    return found


class Kept:
    """Holds what no other category claims."""


def test_every_byte_has_its_category() -> None:
    before = _categories()
    model = nn.Linear(100, 50, bias=False)
    model.register_buffer("scale", torch.ones(7))
    kept = Kept()
    kept.cache = torch.ones(11)  # type: ignore[attr-defined]
    batch = {"inputs": torch.ones(3, 100), "labels": [torch.ones(3, 50)]}
    optimizer = torch.optim.Adam(model.parameters())
    (model(batch["inputs"]) - batch["labels"][0]).pow(2).mean().backward()
    optimizer.step()
    given = torch.ones(200, requires_grad=True)
    loss = given.exp().sum()
    lost: list[Any] = [torch.ones(30)]
    lost.append(lost)
    del lost
    weight = nn.Parameter(Halves(torch.ones(40)))
    weight.grad = Halves(torch.ones(41)[:40])
    more = {name: size - before[name] for name, size in _categories().items() if size != before[name]}
    assert {
        "parameter": (5000 + 40) * FLOAT,
        "gradient": (5000 + 41) * FLOAT,
        "optimizer state": (2 * 5000 + 1) * FLOAT,
        "buffer": 7 * FLOAT,
        "input or label": (300 + 150 + 200) * FLOAT,
        "activation held by a live graph": 200 * FLOAT,
        "leaked": 30 * FLOAT,
    }.items() <= more.items()
    assert loss is not None
