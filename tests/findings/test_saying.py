"""Is the reference to cut told as the user would write it, from the root on?"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import leakscope


class Tracker:
    def __init__(self) -> None:
        self.metrics: dict[str, list[Any]] = defaultdict(list)


class Batch:
    def __init__(self) -> None:
        self.data = torch.ones(1 << 16)


_tracker = Tracker()
_notes: weakref.WeakKeyDictionary[Batch, Any] = weakref.WeakKeyDictionary()
_sparse: list[torch.Tensor] = []
_numbers = itertools.count()


_views: list[torch.Tensor] = []
_jagged: list[torch.Tensor] = []
_calls: list[Any] = []
_objects: list[Any] = []


@functools.cache
def _features(number: int) -> torch.Tensor:
    return torch.full((1 << 16,), number)


def _log() -> None:
    _tracker.metrics["loss"].append(torch.ones(1 << 16))


def _note() -> None:
    batch = Batch()
    _notes[batch] = {"of": batch}


def _keep_sparse() -> None:
    _sparse.append(torch.eye(1 << 13).to_sparse())


def _keep_views() -> None:
    """Each is made again by functions that hold its base once more, and those in between."""
    pairs = torch.ones(1 << 15, 2)
    _views.extend([torch.view_as_complex(pairs.view(-1, 2)).conj().imag, torch.ones(1 << 15, dtype=torch.complex64).conj().real[4:]])


def _keep_jagged() -> None:
    _jagged.append(torch.nested.nested_tensor([torch.ones(300, 128), torch.ones(500, 128)], layout=torch.jagged))


def _keep_calls() -> None:
    _calls.append(functools.partial(print, end=torch.ones(1 << 16)))


def _finalize() -> None:
    batch = Batch()
    weakref.finalize(batch, lambda held: None, torch.ones(1 << 16)).atexit = False
    batch.data = torch.empty(0)
    _objects.append(batch)


CASES: dict[str, tuple[Callable[[], Any], Callable[[], None], str, str]] = {
    "item": (_log, _tracker.metrics.clear, "{here}._tracker.metrics['loss']", "Empty {here}._tracker.metrics['loss']"),
    "lru_cache": (lambda: _features(next(_numbers)), _features.cache_clear, "the cache of _features()", "Call _features.cache_clear()"),
    "weak keys": (_note, _notes.clear, "{here}._notes", "An entry of {here}._notes goes when nothing else holds its key"),
    "replayed views": (_keep_views, _views.clear, "{here}._views", "Clone what you keep in {here}._views"),
    "jagged": (_keep_jagged, _jagged.clear, "{here}._jagged", "Empty {here}._jagged"),
    "partials": (_keep_calls, _calls.clear, "{here}._calls", "Empty {here}._calls"),
    "finalizers": (_finalize, _objects.clear, "weakref.finalize._registry", "What a weakref.finalize is given lives until"),
    "sparse": (_keep_sparse, _sparse.clear, "{here}._sparse", "Empty {here}._sparse"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cut_is_written_from_its_root_on(name: str) -> None:
    step, clear, written, advice = CASES[name]
    try:
        findings = leakscope.check(step, repeats=6)
    finally:
        clear()
    (finding,) = [f for f in findings.findings if f.severity == "leak"]
    assert finding.cut is not None
    assert finding.cut.written == written.format(here=__name__)
    assert finding.cut.written in finding.title
    assert finding.cut.frees_bytes >= 0.8 * finding.retained_bytes
    assert finding.advice.startswith(advice.format(here=__name__))
