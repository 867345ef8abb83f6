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


def _told() -> dict[str, int]:
    seen = heap.look(1, "step")
    found = categories(seen.heap)
    assert set(found) == set(CATEGORIES)
    assert sum(found.values()) == seen.explained_bytes
    return found


def _more(before: dict[str, int]) -> dict[str, int]:
    return {name: size - before[name] for name, size in _told().items() if size != before[name]}


class Kept:
    """Holds what no other category claims."""


def test_every_byte_of_a_training_step_has_its_category() -> None:
    before = _told()
    model = nn.Linear(100, 50, bias=False)
    model.register_buffer("scale", torch.ones(7))
    kept = Kept()
    kept.cache = torch.ones(11)  # type: ignore[attr-defined]
    batch = {"inputs": torch.ones(3, 100), "labels": [torch.ones(3, 50)]}
    optimizer = torch.optim.Adam(model.parameters())
    (model(batch["inputs"]) - batch["labels"][0]).pow(2).mean().backward()
    optimizer.step()
    assert _more(before) == {
        "parameter": 5000 * FLOAT,
        "gradient": 5000 * FLOAT,
        "optimizer state": (2 * 5000 + 1) * FLOAT,
        "buffer": 7 * FLOAT,
        "held by a named root": 11 * FLOAT,
        "input or label": (300 + 150) * FLOAT,
    }


def test_what_a_live_graph_saves_is_an_activation_and_garbage_is_leaked() -> None:
    before = _told()
    given = torch.ones(200, requires_grad=True)
    loss = given.exp().sum()
    lost: list[Any] = [torch.ones(30)]
    lost.append(lost)
    del lost
    more = _more(before)
    assert more["activation held by a live graph"] == 200 * FLOAT
    assert more["leaked"] == 30 * FLOAT
    assert loss is not None


@pytest.mark.parametrize("where", ["parameter", "gradient"])
def test_a_wrapper_tensor_answers_for_the_tensor_it_is_made_of(where: str) -> None:
    before = _told()
    weight = nn.Parameter(Halves(torch.ones(40))) if where == "parameter" else nn.Parameter(torch.ones(40))
    if where == "gradient":
        weight = nn.Parameter(Halves(torch.ones(40)))
        weight.grad = Halves(torch.ones(40))
    more = _more(before)
    assert more[where] == 40 * FLOAT
    assert "held by a named root" not in more
    assert weight is not None
