"""`check` counts only what its calls add and rejects invalid calls before making any."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import examples

import leakscope
from leakscope.findings.model import Finding, Sighting
from leakscope.profiler.repeats import only_added
from leakscope.run.model import Collection, Step

KEPT: list[torch.Tensor] = []


class Trainer:
    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []

    def step(self, batch: torch.Tensor, scale: int = 1) -> torch.Tensor:
        self.losses.append(batch * scale)
        return batch

    async def later(self, batch: torch.Tensor) -> None:
        await asyncio.sleep(0)
        self.step(batch)


def add_a_kib() -> None:
    KEPT.append(torch.ones(256))


def leave_a_cycle() -> None:
    outputs: list[Any] = [torch.ones(1024)]
    outputs.append(outputs)


@pytest.mark.parametrize("warmup", [0, 2])
def test_what_the_list_held_before_is_not_counted(warmup: int) -> None:
    KEPT[:] = [torch.ones(1 << 20)]
    try:
        with pytest.raises(leakscope.LeaksFound, match=r"1 tensor leak, 3.00 KiB retained") as caught:
            leakscope.check(add_a_kib, repeats=3, warmup=warmup, fail=True, allowance=3 * 1024 - 1)
    finally:
        KEPT.clear()
    (finding,) = caught.value.findings.findings
    assert (finding.retained_bytes, finding.bytes_per_step) == (3 * 1024, 1024)
    assert finding.before_bytes == 4 * (1 << 20) + warmup * 1024
    assert "added by the calls" in str(caught.value) and "retained before" in str(caught.value)
    assert "1 leak: 3.00 KiB added, growing by 1.00 KiB per step" in str(caught.value.findings)
    if warmup or "torch._dynamo" not in sys.modules:
        assert finding.made_at == ("tests/profiler/test_check.py:39 add_a_kib (aten::ones)",)


def test_garbage_of_before_is_not_counted_and_an_allowance_is_kept() -> None:
    gc.disable()
    try:
        for _ in range(3):
            leave_a_cycle()
        found = leakscope.check(leave_a_cycle, repeats=3, fail=True, allowance="12 KiB")
    finally:
        gc.enable()
    assert [(one.rule, one.retained_bytes) for one in found.findings] == [("tensor-cycle", 3 * 4096)]


def test_a_method_is_called_with_its_arguments_and_nothing_of_ours_is_told_to_hold_it() -> None:
    found = leakscope.check(Trainer().step, repeats=3, args=[torch.ones(256)], kwargs={"scale": 2})
    (finding,) = found.findings
    assert (finding.rule, finding.retained_bytes) == ("step-growth", 3 * 1024)
    assert finding.trace[0].object.startswith("bound method") and ".step" in finding.trace[0].object


def test_a_coroutine_function_is_run_to_its_end() -> None:
    trainer = Trainer()
    found = leakscope.check(trainer.later, repeats=3, warmup=1, args=[torch.ones(256)])
    assert found.verdict == "leaks" and len(trainer.losses) == 4
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_where_a_loop_runs_a_coroutine_function_is_refused_with_what_to_write() -> None:
    trainer = Trainer()

    async def main(*steps: Callable[[], object]) -> None:
        for step in steps:
            with pytest.raises(RuntimeError, match=r"await asyncio.to_thread\(leakscope.check, train_step\)"):
                leakscope.check(step, repeats=3)

    later = functools.partial(trainer.later, torch.ones(256))
    asyncio.run(main(later, lambda: later()))  # noqa: PLW0108 - which is no coroutine function
    assert trainer.losses == []

    async def as_reported() -> leakscope.Result:
        return await asyncio.to_thread(leakscope.check, trainer.later, 3, args=[torch.ones(256)])

    assert asyncio.run(as_reported()).verdict == "leaks"


def generate() -> Generator[int, None, None]:
    yield 1


def test_what_no_call_would_run_is_refused_before_anything_is_called() -> None:
    with pytest.raises(TypeError, match="generate is a generator function"):
        leakscope.check(generate)
    with pytest.raises(TypeError, match="generator function"):
        leakscope.check(lambda: generate())  # noqa: PLW0108 - which is no generator function
    with pytest.raises(TypeError, match="got int"):
        leakscope.check(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Trainer\.step: missing a required argument: 'batch'"):
        leakscope.check(Trainer().step)
    with pytest.raises(ValueError, match="as a size"):
        leakscope.check(add_a_kib, allowance="lots")
    assert KEPT == []


def finding(freed_by: str, *sizes: int, **changes: Any) -> Finding:
    sightings = tuple(Sighting(0, step, size) for step, size in enumerate(sizes, 2) if size)
    seen = replace(examples.growth_finding(), freed_by=freed_by, sightings=sightings)
    return replace(seen, **{"retained_bytes": sizes[-1], **changes})


@pytest.mark.parametrize(
    ("freed_by", "sizes", "collected", "added"),
    [
        ("program", (100, 110, 120, 130), False, 30),
        ("program", (0, 10, 20, 30), False, 30),
        ("program", (100, 10, 20, 30), False, 20),
        ("never", (100, 110, 120, 130), True, 30),
        ("gc", (100, 110, 120, 130), False, 30),
        ("gc", (100, 110, 10, 20), True, 20),
        ("program", (100, 100, 100, 100), False, 100),
    ],
)
def test_only_what_came_after_the_look_before_is_added(
    freed_by: str, sizes: tuple[int, ...], collected: bool, added: int
) -> None:
    findings = examples.leaking()[1]
    steps = [Step(3, 0.1, None, None, (Collection(2 if collected else 1, 0.0, 0, None),))]
    changed = only_added(replace(findings, findings=(finding(freed_by, *sizes),)), 2, steps)
    assert changed.findings[0].retained_bytes == added
