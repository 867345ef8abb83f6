"""What a user's type checker has to make of the public API; it is checked, never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, assert_type

import leakscope
from leakscope.backward import stage_backward_input


@leakscope.watch(fail=True, allowance="1 MB")
def train_step(batch: int, *, scale: float = 1.0) -> float:
    return batch * scale


@leakscope.watch()
async def train_later(batch: int) -> str:
    async with leakscope.watch() as block:
        train_step(batch)
    return str(block.findings)


@leakscope.Profiler(output="run", warmup=3, min_bytes="64 KiB")
def train(epochs: int) -> list[float]:
    with leakscope.Profiler(Path("run")) as profiler:
        stepped = profiler.wrap(train_step)
        losses = [stepped(epoch, scale=2.0) for epoch in range(epochs)]
        with profiler.step():
            losses.append(train_step(1))
        profiler.step()
    return losses


class Trainer:
    @leakscope.watch()
    def step(self, batch: int) -> int:
        return batch


def over_cells() -> leakscope.Result:
    profiler = leakscope.Profiler().start()
    profiler.step()
    return profiler.stop()


def results(folder: Path) -> None:
    found = leakscope.check(train_step, repeats=3, args=[1], kwargs={"scale": 2.0}, warmup=1, fail=True, allowance=0)
    assert_type(found, leakscope.Result)
    assert_type(leakscope.check(train_later, args=(1,)).to_json(), str)
    assert_type(found.report(folder / "leaks.html"), Path)
    assert_type(found.run, leakscope.Run)
    assert_type(found.findings[0], leakscope.Finding)
    assert_type(found.findings[0].retained_bytes, int)
    assert_type(leakscope.judge(leakscope.read_run(folder), suppress=["tensor-cycle"]), leakscope.Result)
    assert_type(leakscope.title(found.findings[0]), str)
    plain: leakscope.Findings = found
    try:
        assert_type(train_step(1), float)
    except leakscope.LeaksFound as error:
        assert_type(error.findings, leakscope.Result)
    except leakscope.LeakscopeError:
        print(plain.verdict.value)


async def signatures_stay() -> None:
    stays: Callable[[int], Coroutine[Any, Any, str]] = train_later
    assert_type(await stays(1), str)
    assert_type(train(3), list[float])
    assert_type(Trainer().step(3), int)
    train_step("1")  # type: ignore[arg-type]
    train_step(1, scales=2.0)  # type: ignore[call-arg]
    Trainer().step("3")  # type: ignore[arg-type]
    leakscope.check(train_step, repeats="7")  # type: ignore[arg-type]
    leakscope.watch(fail=True)(3)  # type: ignore[arg-type]
    stage_backward_input(1, 2, 3, 4)  # type: ignore
