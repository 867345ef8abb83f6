"""Heap snapshots handle every kind of tensor and count its memory once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from leakscope.findings.categories import categories
from leakscope.graph.retained import freed_without
from leakscope.heap import snapshot as heap
from leakscope.heap.garbage import Watched
from leakscope.run.model import HeapSnapshot

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # prototype, beta, deprecated

FLOAT, COMPLEX, LONG = 4, 8, 8
_PARTS = (3, 4)


class Refuses(torch.Tensor):
    """Asks itself for its sizes, layout and device, and does not answer."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            dtype=inner.dtype,
            dispatch_sizes_strides_policy="sizes",
            dispatch_device=True,
            dispatch_layout=True,
        )
        made._inner_tensor = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def _nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(part, 5) for part in _PARTS], layout=layout)


def _seen_by(transform: Callable[[Any], Any]) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x.sum()

    transform(keep)(torch.ones(5, 3))
    return seen


def _in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.eye(4).to_sparse()


ODD: dict[str, tuple[Callable[[], Any], int]] = {
    "nested": (lambda: _nested(torch.strided), sum(_PARTS) * 5 * FLOAT),
    "jagged": (lambda: _nested(torch.jagged), sum(_PARTS) * 5 * FLOAT + (len(_PARTS) + 1) * LONG),
    "coo": (lambda: torch.eye(10).to_sparse(), 2 * 10 * LONG + 10 * FLOAT),
    "csr": (
        lambda: torch.sparse_csr_tensor(torch.arange(11), torch.arange(10), torch.ones(10)),
        21 * LONG + 10 * FLOAT,
    ),
    "coo of inference": (_in_inference_mode, 2 * 4 * LONG + 4 * FLOAT),
    "bsc": (lambda: torch.eye(10).to_sparse_csr().to_sparse_bsc((2, 2)), 6 * LONG + 5 * LONG + 5 * 4 * FLOAT),
    "mkldnn": (lambda: torch.ones(4, 4).to_mkldnn(), 0),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(10, 10), 0.1, 0, torch.qint8), 100),
    "meta": (lambda: torch.empty(10, device="meta"), 0),
    "meta storage": (lambda: torch.empty(10, device="meta").untyped_storage(), 0),
    "empty": (lambda: torch.empty(3, 0), 0),
    "uninitialized": (lambda: nn.LazyLinear(3).weight, 0),
    "fake": (lambda: FakeTensorMode().from_tensor(torch.ones(10)), 0),
    "conjugate": (lambda: torch.ones(4, dtype=torch.cfloat).conj(), 4 * COMPLEX),
    "negative": (lambda: torch.ones(4, dtype=torch.cfloat).conj().imag, 4 * COMPLEX),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(10)), 10 * FLOAT),
    "wrapper": (lambda: Refuses(torch.ones(10)), 10 * FLOAT),
    "vmap": (lambda: _seen_by(torch.func.vmap), 15 * FLOAT),
    "grad": (lambda: _seen_by(torch.func.grad), 15 * FLOAT),
}


def _take() -> HeapSnapshot:
    watched: Watched = []
    snapshot = heap.take_heap_snapshot(1, "last", watched=watched)
    assert len(watched) == len(snapshot.heap.storages)
    assert sum(categories(snapshot.heap).values()) == snapshot.explained_bytes
    return snapshot


@pytest.mark.usefixtures("nothing_collected")
def test_the_memory_of_each_is_counted_once_and_a_look_at_all_of_them_loses_nothing_else() -> None:
    for make, _ in ODD.values():
        make()  # what torch makes at the first use of a kind stays
    before = _take().explained_bytes
    plain = torch.ones(12345)
    kept = [make() for make, _ in ODD.values()]
    seen = _take()
    assert seen.explained_bytes - before == sum(own for _, own in ODD.values()) + 4 * plain.numel()
    assert [seen.heap.strings[k] for k in seen.heap.label].count("Tensor float32[12345]") == 1
    assert len(kept) == len(ODD)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_what_a_sparse_tensor_was_made_of_is_held_by_it_alone(layout: str) -> None:
    def make() -> torch.Tensor:
        pointers, indexes, values = torch.arange(1012), torch.arange(1011).sort().values, torch.ones(1011)
        if layout == "coo":
            return torch.sparse_coo_tensor(torch.stack([indexes, indexes]), values, (1011, 1011))
        compressed = torch.sparse_csr_tensor if layout == "csr" else torch.sparse_csc_tensor
        return compressed(pointers, indexes, values, (1011, 1011))

    kept = [make()]
    graph = _take().heap
    (sparse,) = (k for k in range(len(graph)) if graph.object(k).label == "Tensor float32[1011, 1011]")
    sizes = {1012 * LONG, 1011 * LONG, 2 * 1011 * LONG, 1011 * FLOAT}
    parts = [int(storage) for storage in graph.storages if graph.bytes[storage] in sizes]
    assert len(parts) == (2 if layout == "coo" else 3) and len(kept) == 1
    freed = freed_without(graph, graph.into(sparse))
    assert all(freed[part] for part in parts)
