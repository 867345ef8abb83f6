"""`watch` attributes garbage correctly in decorators, async code, nested blocks and threads."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
import torch

import leakscope


def leave_a_cycle(count: int = 1024) -> None:
    outputs: list[Any] = [torch.ones(count)]
    outputs.append(outputs)


def left(findings: leakscope.Findings) -> list[tuple[str, int]]:
    return [(finding.rule, finding.retained_bytes) for finding in findings.findings]


CYCLE = [("tensor-cycle", 4096)]


def test_each_call_of_a_decorated_function_is_watched_and_what_it_returns_is_no_leak() -> None:
    watched = leakscope.watch()

    @watched
    def double(values: torch.Tensor, *, leaks: bool = False) -> torch.Tensor:
        """Twice the values."""
        if leaks:
            leave_a_cycle()
        return values * 2

    assert double.__doc__ == "Twice the values." and list(inspect.signature(double).parameters) == ["values", "leaks"]
    double(torch.ones(8))  # what is not known of the process, other tests' objects among it, is learnt after this one
    assert double(torch.ones(8)).sum() == 16
    assert watched.findings.verdict == "clean" and not watched.run.ranks[0].heap_snapshots, "it returns what is held"
    double(torch.ones(8), leaks=True)
    assert left(watched.findings) == CYCLE
    failing = leakscope.watch(fail=True)(leave_a_cycle)
    for _ in range(2):
        with pytest.raises(leakscope.LeaksFound, match=r"4.00 KiB retained"):
            failing()
    assert gc.isenabled()


def test_a_coroutine_function_is_watched_from_its_start_to_its_end_and_so_is_an_async_block() -> None:
    watched, block = leakscope.watch(), leakscope.watch()

    @watched
    async def step(number: int) -> int:
        await asyncio.sleep(0)
        leave_a_cycle()
        await asyncio.sleep(0)
        return number

    async def main() -> int:
        async with block:
            await asyncio.sleep(0)
        return await step(3)

    assert inspect.iscoroutinefunction(step)
    assert asyncio.run(main()) == 3
    assert left(watched.findings) == CYCLE and block.findings.verdict == "clean"


def generate() -> Generator[int, None, None]:
    yield 1


async def generate_later() -> AsyncGenerator[int, None]:
    yield 1


@pytest.mark.parametrize("function", [generate, generate_later, "leave_a_cycle", threading.Thread])
def test_what_cannot_be_watched_call_by_call_is_refused_where_it_is_decorated(function: Any) -> None:
    with pytest.raises(TypeError, match=r"leakscope.watch\(\) (cannot decorate a generator function|decorates)"):
        leakscope.watch()(function)


def test_one_watch_is_used_again_and_within_itself_and_the_outer_block_tells_all() -> None:
    block = leakscope.watch()
    with block:
        leave_a_cycle(2048)
        with block:
            leave_a_cycle()
        assert left(block.findings) == [("tensor-cycle", 4096)], "not what was there when it began"
        with leakscope.watch() as clean:
            pass
        assert clean.findings.verdict == "clean"
    assert left(block.findings) == [("tensor-cycle", 3 * 4096)]
    with block:
        pass
    assert block.findings.verdict == "clean" and gc.isenabled()


def test_what_an_inner_block_finds_uncollectable_is_the_outer_ones_too_and_nobodys_afterwards() -> None:
    def leave_what_nobody_frees() -> None:
        hidden = torch.ones(10, requires_grad=True) * 2
        hidden.register_hook(lambda grad, own=hidden: grad + own)

    with leakscope.watch() as outer:
        leave_what_nobody_frees()
        with leakscope.watch() as inner:
            pass
    assert inner.findings.verdict == "clean" and [rule for rule, _ in left(outer.findings)] == ["uncollectable-cycle"]
    with leakscope.watch() as after:
        leave_a_cycle()
    assert left(after.findings) == CYCLE


class Thread:
    """A thread that runs a function, then waits; `over` is told when it ends."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.ready, self.over = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._main, args=[run], daemon=True)
        self.thread.start()
        assert self.ready.wait(60)

    def _main(self, run: Callable[[], object]) -> None:
        held = run()
        del run
        self.ready.set()
        assert self.over.wait(60)
        del held

    def end(self) -> None:
        self.over.set()
        self.thread.join(60)


@pytest.mark.parametrize("ends", [True, False])
def test_garbage_of_a_thread_is_told_whether_it_has_ended_or_runs_on(ends: bool) -> None:
    with leakscope.watch() as block:
        thread = Thread(leave_a_cycle)
        if ends:
            thread.end()
    thread.end()
    assert left(block.findings) == CYCLE


def test_what_lives_in_other_threads_is_no_leak() -> None:
    before = Thread(lambda: [torch.ones(1 << 10)])
    with leakscope.watch() as block:
        own = Thread(lambda: [torch.ones(1 << 12)])
        own_cycle: list[Any] = []
        looping = Thread(lambda: own_cycle.extend([own_cycle, torch.ones(1 << 11)]))
        own_cycle.append(torch.ones(3))
    for thread in (before, own, looping):
        thread.end()
    assert block.findings.verdict == "clean" and block.findings.findings == ()


def test_what_a_library_closes_is_a_note_of_a_block_and_its_report_says_so() -> None:
    def raises() -> None:
        kept = torch.ones(1024)
        with pytest.raises(ValueError) as caught:
            raise ValueError(kept.shape)
        assert caught is not None

    with leakscope.watch(fail=True) as block:
        raises()
    found = block.findings
    assert left(found) == CYCLE and found.findings[0].origin == "library"
    assert (found.verdict, found.failed, found.leaks) == ("clean", False, ())
    assert "Leaks (" not in str(found) and "libraries retained 4.00 KiB" in str(found)
