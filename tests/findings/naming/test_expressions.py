"""Cuts are written as user code, starting at the GC root."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import leakscope
from leakscope.report.finding_text import advice, title


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
    _views.extend(
        [
            torch.view_as_complex(pairs.view(-1, 2)).conj().imag,
            torch.ones(1 << 15, dtype=torch.complex64).conj().real[4:],
        ]
    )


def _keep_jagged() -> None:
    _jagged.append(torch.nested.nested_tensor([torch.ones(300, 128), torch.ones(500, 128)], layout=torch.jagged))


def _keep_calls() -> None:
    _calls.append(functools.partial(print, end=torch.ones(1 << 16)))


def _finalize() -> None:
    batch = Batch()
    weakref.finalize(batch, lambda held: None, torch.ones(1 << 16)).atexit = False
    batch.data = torch.empty(0)
    _objects.append(batch)


class Block(torch.nn.Module):
    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.keeps, self.seen = keeps, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.keeps:
            self.seen.append(x + 1)
        return x


_one = torch.nn.Sequential(*(Block(number == 2) for number in range(4)))
_each = torch.nn.Sequential(*(Block(True) for _ in range(4)))


def _forget(model: torch.nn.Module) -> None:
    for block in model.children():
        block.seen.clear()


def _by_default(kept: list[torch.Tensor] = []) -> None:  # noqa: B006
    kept.append(torch.ones(1 << 16))


def _by_keyword(*, kept: list[torch.Tensor] = []) -> None:  # noqa: B006
    kept.append(torch.ones(1 << 16))


_of_thread = threading.local()
_of_thread.rows = []


CASES: dict[str, tuple[Callable[[], Any], Callable[[], None], str, str]] = {
    "item": (_log, _tracker.metrics.clear, "{here}._tracker.metrics['loss']", "Clear {here}._tracker.metrics['loss']"),
    "lru_cache": (
        lambda: _features(next(_numbers)),
        _features.cache_clear,
        "the cache of _features()",
        "Call _features.cache_clear()",
    ),
    "weak keys": (
        _note,
        _notes.clear,
        "{here}._notes",
        "An entry of {here}._notes is removed when nothing else references its key",
    ),
    "replayed views": (_keep_views, _views.clear, "{here}._views", "Store clones in {here}._views"),
    "jagged": (_keep_jagged, _jagged.clear, "{here}._jagged", "Clear {here}._jagged"),
    "partials": (_keep_calls, _calls.clear, "{here}._calls", "Clear {here}._calls"),
    "finalizers": (
        _finalize,
        _objects.clear,
        "weakref.finalize._registry",
        "The arguments of weakref.finalize live as long as",
    ),
    "one of many": (
        lambda: _one(torch.ones(1 << 16)),
        lambda: _forget(_one),
        "{here}._one[2].seen",
        "Clear {here}._one[2].seen",
    ),
    "each of many": (
        lambda: _each(torch.ones(1 << 16)),
        lambda: _forget(_each),
        "{here}._each[i].seen",
        "Clear {here}._each[i].seen",
    ),
    "default": (
        lambda: _by_default(),  # noqa: PLW0108 - called by itself, the step would be the function that keeps
        lambda: (_by_default.__defaults__ or ((),))[0].clear(),  # noqa: PLW0108 - a bound method would hold the list
        "{here}._by_default.__defaults__[0]",
        "A default",
    ),
    "keyword": (
        lambda: _by_keyword(),  # noqa: PLW0108 - as above
        lambda: _by_keyword.__kwdefaults__["kept"].clear(),  # noqa: PLW0108 - a bound method would hold the list
        "{here}._by_keyword.__kwdefaults__['kept']",
        "A default",
    ),
    "of a thread": (
        lambda: _of_thread.rows.append(torch.ones(1 << 16)),
        lambda: _of_thread.rows.clear(),  # noqa: PLW0108 - a bound method would hold the list
        "{here}._of_thread.rows",
        "Clear {here}._of_thread.rows",
    ),
    "sparse": (_keep_sparse, _sparse.clear, "{here}._sparse", "Clear {here}._sparse"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cut_is_written_from_its_root_on(name: str) -> None:
    step, clear, written, told = CASES[name]
    try:
        findings = leakscope.check(step, repeats=3)
    finally:
        clear()
    leaks = [f for f in findings.findings if f.severity == "leak"]
    assert len(leaks) == 1, [(f.rule, title(f), f.bytes_per_step) for f in leaks]
    (finding,) = leaks
    assert finding.cut is not None
    assert finding.cut.written == written.format(here=__name__)
    assert finding.cut.written in title(finding)
    assert finding.cut.frees_bytes >= 0.8 * finding.retained_bytes
    assert advice(finding).startswith(told.format(here=__name__))


class KeepsItsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.out = x.exp()
        return ctx.out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * ctx.out  # type: ignore[no-any-return]


class Store:
    """One list for all its objects."""

    kept: list[torch.Tensor] = []  # noqa: RUF012


def _stored() -> None:
    Store.kept.append(torch.ones(1 << 16))


def line_of(text: str) -> int:
    """The line of this file that begins with this text."""
    return next(
        number
        for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
        if line.strip().startswith(text)
    )


def test_an_attribute_of_a_class_has_the_line_of_its_body_that_binds_it() -> None:
    try:
        findings = leakscope.check(_stored, repeats=3)
    finally:
        Store.kept.clear()
    (finding,) = [f for f in findings.findings if f.severity == "leak"]
    assert finding.cut is not None and finding.cut.written == f"{__name__}.Store.kept"
    assert finding.cut.where.endswith(f"test_expressions.py:{line_of('kept: list[torch.Tensor]')}")


class Scaled:
    def __init__(self, batch: torch.Tensor) -> None:
        self.batch = batch
        self.apply = lambda: self.batch * 2


def _stored_by_the_maker(batch: torch.Tensor) -> None:
    rows = [batch]
    rows.append(_closing_over(rows))  # type: ignore[arg-type]


def _closing_over(rows: list[torch.Tensor]) -> Callable[[], int]:
    return lambda: len(rows)


def _recursive(batch: torch.Tensor) -> None:
    def walk(depth: int) -> torch.Tensor:
        return walk(depth - 1) if depth else batch

    walk(2)


@pytest.mark.parametrize(
    ("make", "cut", "line", "told"),
    [
        (
            Scaled,
            ".apply of Scaled object",
            "self.apply = lambda",
            "Do not store on an object a function that refers to it",
        ),
        (
            _stored_by_the_maker,
            "closure rows of _closing_over.<locals>.<lambda>()",
            "return lambda: len(rows)",
            "Do not store on an object",
        ),
        (
            _recursive,
            "closure walk over itself in _recursive()",
            "def walk(",
            "Avoid an inner function that refers to itself",
        ),
    ],
)
def test_a_function_that_refers_to_what_keeps_it_is_told_from_one_that_calls_itself(
    make: Callable[[torch.Tensor], Any], cut: str, line: str, told: str
) -> None:
    def step() -> None:
        make(torch.ones(1 << 16))

    findings = leakscope.check(step, repeats=3)
    (finding,) = [f for f in findings.findings if f.severity == "leak"]
    assert (finding.rule, finding.cut and finding.cut.written) == ("tensor-cycle", cut)
    assert finding.cut is not None and finding.cut.where.endswith(f"test_expressions.py:{line_of(line)}")
    assert advice(finding).startswith(told) and finding.see is None


def test_an_attribute_of_ctx_has_the_line_that_sets_it() -> None:
    findings = leakscope.check(lambda: KeepsItsOutput.apply(torch.ones(1 << 16, requires_grad=True)), repeats=3)
    (finding,) = [f for f in findings.findings if f.severity == "leak"]
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.strip() == "ctx.out = x.exp()"
    )
    assert finding.cut is not None and finding.cut.reference == ".out"
    assert finding.cut.where.endswith(f"test_expressions.py:{line}")


def test_a_hook_that_leads_back_to_its_node_is_to_be_removed() -> None:
    def capture(group: dict[str, Any]) -> Callable[[Any], None]:
        def hook(grads: Any) -> None:
            group["grads"] = grads

        return hook

    def step() -> None:
        group = {"node": (torch.ones(1 << 16, requires_grad=True) * 2).grad_fn, "kept": torch.ones(1 << 16)}
        group["node"].register_prehook(capture(group))  # type: ignore[union-attr]

    findings = leakscope.check(step, repeats=3)
    (finding,) = [f for f in findings.findings if f.severity == "leak"]
    assert finding.rule == "tensor-cycle" and advice(finding).startswith(
        "Remove the hook after it has run (handle.remove())"
    )
    assert finding.see is None
