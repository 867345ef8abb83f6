"""What this process holds is named as in its code and counted once."""

from __future__ import annotations

import collections
import functools
import io
import itertools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.judging import run_of

import leakscope
from leakscope.findings.judge import judge
from leakscope.findings.model import Finding
from leakscope.findings.nontensor import array_bytes
from leakscope.heap import snapshot as heap
from leakscope.run.model import Ended, Rank, Step


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


def _note() -> None:
    batch = Batch()
    _notes[batch] = {"of": batch}


def _keep_views() -> None:
    """Each is made again by functions that hold its base once more, and those in between."""
    pairs = torch.ones(1 << 15, 2)
    _views.append(torch.view_as_complex(pairs.view(-1, 2)).conj().imag)
    _views.append(torch.ones(1 << 15, dtype=torch.complex64).conj().real[4:])


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


def _by_default(kept: list[torch.Tensor] = []) -> None:  # noqa: B006
    kept.append(torch.ones(1 << 16))


def _by_keyword(*, kept: list[torch.Tensor] = []) -> None:  # noqa: B006
    kept.append(torch.ones(1 << 16))


_of_thread = threading.local()
_of_thread.rows = []


class Store:
    """One list for all its objects."""

    kept: list[torch.Tensor] = []  # noqa: RUF012


GROWS: dict[str, Callable[[], object]] = {
    "{here}._tracker.metrics['loss']": lambda: _tracker.metrics["loss"].append(torch.ones(1 << 16)),
    "the cache of _features()": lambda: _features(next(_numbers)),
    "{here}._notes": _note,
    "{here}._views": _keep_views,
    "{here}._jagged": lambda: _jagged.append(
        torch.nested.nested_tensor([torch.ones(300, 128), torch.ones(500, 128)], layout=torch.jagged)
    ),
    "{here}._calls": lambda: _calls.append(functools.partial(print, end=torch.ones(1 << 16))),
    "weakref.finalize._registry": _finalize,
    "{here}._one[2].seen": lambda: _one(torch.ones(1 << 16)),
    "{here}._each[i].seen": lambda: _each(torch.ones(1 << 16)),
    "{here}._by_default.__defaults__[0]": lambda: _by_default(),  # noqa: PLW0108 - called by itself, the step would be the function that keeps
    "{here}._by_keyword.__kwdefaults__['kept']": lambda: _by_keyword(),  # noqa: PLW0108 - as above
    "{here}._of_thread.rows": lambda: _of_thread.rows.append(torch.ones(1 << 16)),
    "{here}._sparse": lambda: _sparse.append(torch.eye(1 << 13).to_sparse()),
    "{here}.Store.kept": lambda: Store.kept.append(torch.ones(1 << 16)),
}


def _clear() -> None:
    lists = [_views, _jagged, _calls, _objects, _sparse, _of_thread.rows, Store.kept, _tracker.metrics, _notes]
    lists += [_by_default.__defaults__[0], _by_keyword.__kwdefaults__["kept"]]  # type: ignore[index]
    for kept in [*lists, *(block.seen for model in (_one, _each) for block in model)]:
        kept.clear()
    _features.cache_clear()


def line_of(text: str) -> int:
    """The line of this file that begins with this text."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def test_cuts_of_what_grows_are_written_from_their_roots_on() -> None:
    def step() -> None:
        for grow in GROWS.values():
            grow()

    try:
        findings = leakscope.check(step, repeats=3)
    finally:
        _clear()
    cuts = [f.cut for f in findings.findings if f.severity == "leak"]
    assert {cut and cut.written for cut in cuts} == {written.format(here=__name__) for written in GROWS}
    assert len(cuts) == len(GROWS)
    for finding in findings.findings:
        assert finding.cut is not None and finding.cut.frees_bytes >= 0.8 * finding.retained_bytes, finding.subject
    (stored,) = [cut for cut in cuts if cut and cut.written.endswith(".Store.kept")]
    assert stored.where.endswith(f"test_live_heap.py:{line_of('kept: list[torch.Tensor] = []  # noqa: RUF012')}")


class KeepsItsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.out = x.exp()
        return ctx.out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * ctx.out  # type: ignore[no-any-return]


class Scaled:
    def __init__(self, batch: torch.Tensor) -> None:
        self.batch = batch
        self.apply = lambda: self.batch * 2


def _stored_by_the_maker() -> None:
    rows = [torch.ones(1 << 16)]
    rows.append(_closing_over(rows))  # type: ignore[arg-type]


def _closing_over(rows: list[torch.Tensor]) -> Callable[[], int]:
    return lambda: len(rows)


def _recursive(batch: torch.Tensor) -> None:
    def walk(depth: int) -> torch.Tensor:
        return walk(depth - 1) if depth else batch

    walk(2)


def _hooked() -> None:
    def capture(group: dict[str, Any]) -> Callable[[Any], None]:
        def hook(grads: Any) -> None:
            group["grads"] = grads

        return hook

    group = {"node": (torch.ones(1 << 16, requires_grad=True) * 2).grad_fn, "kept": torch.ones(1 << 16)}
    group["node"].register_prehook(capture(group))  # type: ignore[union-attr]


def test_cuts_of_cycles_are_written_with_the_lines_that_close_them() -> None:
    def step() -> None:
        KeepsItsOutput.apply(torch.ones(1 << 16, requires_grad=True))
        Scaled(torch.ones(1 << 16))
        _stored_by_the_maker()
        _recursive(torch.ones(1 << 16))
        _hooked()

    findings = leakscope.check(step, repeats=3)
    leaks = [f for f in findings.findings if f.severity == "leak"]
    assert {f.rule for f in leaks} == {"tensor-cycle"} and all(f.see is None for f in leaks)
    lines = {f.cut.written: int(f.cut.where.rpartition(":")[2] or 0) for f in leaks if f.cut}
    cut = lines.pop(next(written for written in lines if ".out" in written))
    assert cut == line_of("ctx.out = x.exp()")
    assert {
        ".apply of Scaled object": line_of("self.apply = lambda"),
        "closure rows of _closing_over.<locals>.<lambda>()": line_of("return lambda: len(rows)"),
        "closure walk over itself in _recursive()": line_of("def walk("),
    }.items() <= lines.items()
    assert len(leaks) == 5


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
    before = array_bytes(heap.take_heap_snapshot(1, "step"))
    _rows.extend([_array(), _array()])
    over = torch.from_numpy(_rows[0])
    assert array_bytes(heap.take_heap_snapshot(1, "step")) - before == SIZE
    del over
    assert array_bytes(heap.take_heap_snapshot(1, "step")) - before == 2 * SIZE, (
        "and arrays of earlier snapshots are not counted"
    )


class Collecting(torch.optim.LBFGS):
    """An optimizer of the user's own: nothing is known to bound what it keeps."""


def descend(kind: type[torch.optim.LBFGS], floats: int) -> Callable[[], Any]:
    """A step of an optimizer whose parameter has so many elements, as nothing else in the process has."""
    weight = torch.nn.Parameter(torch.zeros(floats))
    optimizer = kind([weight], lr=1e-3, max_iter=1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight * torch.linspace(0.5, 1.5, floats)).exp().sum()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


def test_a_known_history_is_a_note_and_what_else_an_optimizer_collects_is_a_leak() -> None:
    acts = [descend(torch.optim.LBFGS, 4099), descend(Collecting, 4111)]
    of_groups = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    acts.append(lambda: of_groups.add_param_group({"params": [torch.nn.Parameter(torch.zeros(4127))]}))
    kept: list[Callable[[], Any]] = []

    def pile_up() -> None:
        kept.append(descend(torch.optim.LBFGS, 4129))
        for _ in range(3):
            kept[-1]()

    snapshots = []
    for step in range(1, 6 + 1):
        for act in (*acts, pile_up):
            act()
        if step >= 6 - 2:
            snapshots.append(heap.take_heap_snapshot(step, "step"))
    steps = tuple(Step(k, 0.01, None, None) for k in range(1, 7))
    rank = Rank(0, steps, tuple(snapshots), Ended("finished", 0, 6))
    found = judge(run_of(rank, min_bytes=256)).findings
    sizes = snapshots[-1].heap.bytes

    def about(floats: int) -> list[Finding]:
        return [f for f in found if any(sizes[s] == 4 * floats for s in f.storages.get(0, ()))]

    (history,), (own,), (groups,) = about(4099), about(4111), about(4127)
    assert [(f.rule, f.severity) for f in (history, own)] == [("step-growth", "note"), ("step-growth", "leak")]
    assert groups.severity == "leak" and groups.cut is not None and ".param_groups" in groups.cut.written
    assert {f.severity for f in about(4129)} == {"leak"}
