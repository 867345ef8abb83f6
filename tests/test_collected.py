"""Parameters and marks of collected tests hold no tensors, arrays, modules or large byte strings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from leakscope.heap._sweep_fallback import LARGE


def _leads_to_memory(value: Any) -> Iterator[str]:
    if isinstance(value, (torch.Tensor, np.ndarray, torch.nn.Module)) or (
        isinstance(value, (bytes, bytearray)) and len(value) >= LARGE
    ):
        yield type(value).__name__
    elif isinstance(value, dict):
        for one in value.values():
            yield from _leads_to_memory(one)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            yield from _leads_to_memory(one)


def test_no_case_is_given_memory_of_its_own(request: pytest.FixtureRequest) -> None:
    """Give it the name or the index of what it needs: what a mark is given is held by its item, and that by all."""
    given: dict[str, list[str]] = {}
    for item in request.session.items:
        for mark in item.iter_markers():
            given.setdefault(item.nodeid.partition("[")[0], []).extend(_leads_to_memory([*mark.args, mark.kwargs]))
        spec = getattr(item, "callspec", None)
        if spec is not None:
            given[item.nodeid.partition("[")[0]].extend(_leads_to_memory(spec.params))
    assert {test: sorted(set(found)) for test, found in given.items() if found} == {}
