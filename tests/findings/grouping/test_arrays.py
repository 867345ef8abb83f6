"""Numpy arrays, bytes and BytesIO that are kept leak as tensors do, and what is a tensor's already counts once."""

from __future__ import annotations

import collections
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import leakscope
from leakscope.findings.nontensor import array_bytes
from leakscope.heap.snapshot import look

SIZE = 1 << 19
_rows: list[Any] = []
_kept: dict[str, list[Any]] = collections.defaultdict(list)
_ring: collections.deque[Any] = collections.deque(maxlen=2)
_state: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    for kept in (_rows, _kept, _ring, _state):
        kept.clear()  # type: ignore[attr-defined]


def _array() -> np.ndarray[Any, Any]:
    return np.ones(SIZE, np.uint8)


ITEMS: dict[str, Callable[[], object]] = {
    "views": lambda: _array()[8:],
    "in dicts": lambda: {"out": _array()},
    "bytes in tuples": lambda: ("id", (7, bytes(SIZE))),
    "bytearray": lambda: bytearray(SIZE),
    "files": lambda: io.BytesIO(bytes(SIZE)),
    "tensors of arrays": lambda: torch.from_numpy(_array()),
    "arrays of tensors": lambda: torch.ones(SIZE, dtype=torch.uint8).numpy(),
    "with tensors": lambda: {"loss": torch.ones(SIZE, dtype=torch.uint8), "out": _array()},
}


def test_what_is_kept_is_named_and_counted_once() -> None:
    def step() -> None:
        for name, item in ITEMS.items():
            _kept[name].append(item())
        _state["all"] = np.concatenate([_state.get("all", _array()[:0]), _array()])
        _ring.append(_array())
        _state["last"] = bytes(SIZE)

    findings = leakscope.check(step, repeats=3, min_bytes="64 KiB")
    leaks = {f.cut.written: f for f in findings.findings if f.severity == "leak" and f.cut}
    assert leaks.keys() == {f"{__name__}._kept['{name}']" for name in ITEMS} | {f"{__name__}._state['all']"}
    for written, finding in leaks.items():
        assert finding.bytes_per_step == pytest.approx(SIZE, rel=0.01), written
        assert finding.cut is not None
        assert finding.cut.frees_bytes == pytest.approx(finding.retained_bytes + finding.before_bytes, rel=0.01)


def test_memory_that_a_tensor_has_as_well_is_the_tensors() -> None:
    before = array_bytes(look(1, "step"))
    _rows.extend([_array(), _array()])
    over = torch.from_numpy(_rows[0])
    assert array_bytes(look(1, "step")) - before == SIZE
    del over
    assert array_bytes(look(1, "step")) - before == 2 * SIZE, "and arrays of earlier snapshots are not counted"
