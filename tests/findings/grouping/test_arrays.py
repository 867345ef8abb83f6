"""Numpy arrays, bytes and BytesIO that are kept leak as tensors do, and what is a tensor's already counts once."""

from __future__ import annotations

import collections
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import leakscope
from leakscope.findings.nontensor import array_bytes
from leakscope.heap.snapshot import look
from leakscope.report.finding_text import advice, title

SIZE = 1 << 19
_rows: list[Any] = []
_ring: collections.deque[Any] = collections.deque(maxlen=2)
_state: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    for kept in (_rows, _ring, _state):
        kept.clear()  # type: ignore[attr-defined]


def _array() -> np.ndarray[Any, Any]:
    return np.ones(SIZE, np.uint8)


def _grow() -> None:
    _state["all"] = np.concatenate([_state.get("all", _array()[:0]), _array()])


_FILES = "bytes" if sys.version_info >= (3, 12) else "BytesIO"
"""What a BytesIO's memory belongs to: since Python 3.12 gc shows the bytes object in it."""
CASES: dict[str, tuple[Callable[[], object], str, str]] = {
    "arrays": (lambda: _rows.append(_array()), "_rows", "gains numpy arrays every step and is never emptied"),
    "views": (lambda: _rows.append(_array()[8:]), "_rows", "gains numpy arrays every step and is never emptied"),
    "in dicts": (
        lambda: _rows.append({"out": _array()}),
        "_rows",
        "gains numpy arrays every step and is never emptied",
    ),
    "one that grows": (_grow, "_state['all']", "The numpy array in {name} is larger at each snapshot"),
    "bytes": (lambda: _rows.append(bytes(SIZE)), "_rows", "gains bytes objects every step and is never emptied"),
    "bytes in dicts": (
        lambda: _rows.append({"image": bytes(SIZE)}),
        "_rows",
        "gains bytes objects every step and is never emptied",
    ),
    "bytes in tuples": (
        lambda: _rows.append(("id", (7, bytes(SIZE)))),
        "_rows",
        "gains bytes objects every step and is never emptied",
    ),
    "bytearray": (
        lambda: _rows.append(bytearray(SIZE)),
        "_rows",
        "gains bytearray objects every step and is never emptied",
    ),
    "files": (
        lambda: _rows.append(io.BytesIO(bytes(SIZE))),
        "_rows",
        f"gains {_FILES} objects every step and is never emptied",
    ),
    "tensors of arrays": (
        lambda: _rows.append(torch.from_numpy(_array())),
        "_rows",
        "gains tensors every step and is never emptied",
    ),
    "arrays of tensors": (
        lambda: _rows.append(torch.ones(SIZE).numpy()),
        "_rows",
        "gains tensors every step and is never emptied",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_kept_is_named_and_counted_once(case: str) -> None:
    step, name, expected = CASES[case]
    findings = leakscope.check(step, repeats=3, min_bytes="64 KiB")
    (finding,) = [f for f in findings.findings if f.severity == "leak"]
    written = f"{__name__}.{name}"
    assert finding.cut is not None and finding.cut.written == written
    assert title(finding) == (expected.format(name=written) if "{name}" in expected else f"{written} {expected}")
    tensor = 4 if case == "arrays of tensors" else 1
    assert finding.bytes_per_step == pytest.approx(tensor * SIZE, rel=0.01)
    assert finding.cut.frees_bytes == pytest.approx(finding.retained_bytes + finding.before_bytes, rel=0.01)


def test_arrays_are_told_without_an_allowance_as_well() -> None:
    findings = leakscope.check(lambda: _rows.append(_array()), repeats=3)
    (finding,) = [f for f in findings.findings if f.severity == "leak"]
    assert (finding.cut and finding.cut.written, finding.bytes_per_step) == (f"{__name__}._rows", SIZE)


def test_what_goes_again_is_no_leak() -> None:
    def step() -> None:
        _ring.append(_array())
        _state["last"] = bytes(SIZE)

    assert leakscope.check(step, repeats=3, min_bytes="64 KiB").verdict == "clean"


def test_arrays_beside_tensors_are_told_with_them() -> None:
    findings = leakscope.check(
        lambda: _rows.append({"loss": torch.ones(SIZE), "out": _array()}), repeats=3, min_bytes="64 KiB"
    )
    (finding,) = [f for f in findings.findings if f.severity == "leak"]
    assert title(finding).endswith("gains tensors every step and is never emptied")
    assert advice(finding).endswith(
        "This also frees 2.50 MiB of numpy arrays."
    )  # of the two calls before the first look as well


def test_memory_that_a_tensor_has_as_well_is_the_tensors() -> None:
    before = array_bytes(look(1, "step"))
    _rows.extend([_array(), _array()])
    over = torch.from_numpy(_rows[0])
    assert array_bytes(look(1, "step")) - before == SIZE
    del over
    assert array_bytes(look(1, "step")) - before == 2 * SIZE


def test_earlier_looks_are_not_seen() -> None:
    """A look is made of arrays itself, and `check` keeps its looks."""
    _rows.extend(torch.ones(8) for _ in range(1000))
    looks = [look(step, "step") for step in range(4)]
    assert [array_bytes(one) for one in looks] == [array_bytes(looks[0])] * 4
    assert looks[0].heap.bytes.nbytes > 4096
