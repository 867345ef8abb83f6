"""The API for Python code: a leaking block fails with its trace, a clean one passes."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch

import leakscope
from leakscope.graph.model import HeapGraph
from leakscope.recorder.accelerator import Counter
from leakscope.report.run_text import run_text


def leave_what_nobody_frees() -> None:
    hidden = torch.ones(10, requires_grad=True) * 2
    hidden.register_hook(lambda grad, own=hidden: grad + own)


def leave_a_cycle() -> None:
    kept = torch.ones(1000)

    def extract(depth: int) -> int:
        return extract(depth - 1) if depth else kept.numel()

    extract(1)


def test_a_block_that_leaves_a_cycle_fails_with_its_trace_and_gc_is_as_it_was() -> None:
    with pytest.raises(leakscope.LeaksFound) as caught, leakscope.watch(fail=True) as block:
        leave_a_cycle()
    assert "extract" in str(caught.value) and "3.91 KiB" in str(caught.value)
    assert caught.value.findings is block.findings and block.findings.verdict == "leaks"
    (finding,) = block.findings.findings
    assert (finding.rule, finding.bytes_per_step) == ("tensor-cycle", 0.0) and not block.findings.gc_advice
    assert gc.isenabled()


def test_a_clean_block_and_a_live_variable_pass_and_old_leaks_are_not_blamed() -> None:
    torch.set_num_threads(1)
    bag: list[torch.Tensor] = []
    leave_what_nobody_frees()
    with leakscope.watch(fail=True) as block:
        bag.append(torch.ones(1000))
        torch.nn.Linear(8, 8)(torch.ones(4, 8)).sum().backward()
    assert block.findings.verdict == "clean" and block.run.ranks


def test_the_allowance_and_the_blocks_own_error_win() -> None:
    with leakscope.watch(fail=True, allowance="1 MB") as block:
        leave_a_cycle()
    assert block.findings.verdict == "clean" and "3.91 KiB, within its allowance" in str(block.findings)
    with pytest.raises(ZeroDivisionError), leakscope.watch(fail=True):
        leave_a_cycle()
        print(1 / 0)


@pytest.mark.process
def test_a_profiler_finds_what_grows_and_leaves_nothing_installed(tmp_path: Path) -> None:
    losses, callbacks = [], list(gc.callbacks)

    def train_step() -> None:
        losses.append(torch.nn.Linear(256, 256)(torch.ones(64, 256)).sum())

    with leakscope.Profiler(output=tmp_path / "run", budget=1.0) as profiler:
        stepped = profiler.wrap(train_step)
        for _ in range(10):
            stepped()
    assert profiler.findings.verdict == "leaks"
    assert "losses" in str(profiler.findings.findings[0].trace)
    assert [step.number for step in profiler.run.ranks[0].steps] == list(range(1, 11))
    assert (tmp_path / "run" / "report.html").exists()
    assert gc.callbacks == callbacks
    with pytest.raises(RuntimeError), profiler.step():
        pass


def test_blocks_that_a_snapshot_leaves_in_a_threads_cache_are_no_growth() -> None:
    """Steps of several threads, as RPC has: glibc keeps small blocks for each thread that took a snapshot."""
    stepped, over = threading.Semaphore(0), threading.Event()
    with leakscope.Profiler(warmup=1, budget=1.0) as profiler:

        def one_step() -> None:
            with profiler.step():
                torch.ones(8).sum()
            stepped.release()
            over.wait(60)

        threads = [threading.Thread(target=one_step) for _ in range(9)]
        for thread in threads:
            thread.start()
            assert stepped.acquire(timeout=60)
        over.set()
        for thread in threads:
            thread.join()
    snapshots = profiler.run.ranks[0].heap_snapshots
    assert len(snapshots) >= 3
    rose = (snapshots[-1].counted_bytes or 0) - (snapshots[0].counted_bytes or 0)
    # a thread costs 47 KiB by itself, and 230 KiB with what a snapshot leaves
    assert rose < 100 * 1024 * (snapshots[-1].step - snapshots[0].step)
    assert profiler.findings.verdict == "clean"


def test_memory_that_others_free_during_a_snapshot_is_no_growth_afterwards() -> None:
    counter, kept = Counter(), [torch.ones(1 << 20)]
    with counter.ours():
        pass
    before = counter.read().bytes
    with counter.ours():
        kept.clear()
    after = counter.read().bytes
    assert before is not None and after is not None and before - after > 3 << 20
    with counter.ours():
        kept.append(torch.ones(1 << 20))
    again = counter.read().bytes
    assert again is not None and again - after > 3 << 20, "a snapshot leaves less than that: it is the program's"


def test_check_distinguishes_growth_from_constant_memory() -> None:
    kept: list[torch.Tensor] = []
    assert leakscope.check(lambda: torch.ones(1000), repeats=3).verdict == "clean"
    assert leakscope.check(lambda: kept.append(torch.ones(1 << 20)), repeats=3).verdict == "leaks"
    with pytest.raises(ValueError, match="repeats must be >= 3"):
        leakscope.check(lambda: None, repeats=2)
    with pytest.raises(TypeError, match="repeats must be an int"):
        leakscope.check(lambda: None, repeats="7")  # type: ignore[arg-type]
    for wrong in (-1, None):
        with pytest.raises(ValueError, match="as a size"):
            leakscope.check(lambda: None, min_bytes=wrong)  # type: ignore[arg-type]


def test_snapshots_of_check_are_no_growth_and_are_released() -> None:
    living = [{"tensor": torch.ones(3), "place": [k]} for k in range(5000)]
    graphs = sum(type(one) is HeapGraph for one in gc.get_objects())
    findings = leakscope.check(lambda: living.append({"tensor": torch.ones(1 << 18)}), repeats=4, min_bytes="64 KiB")
    assert [f.rule for f in findings.findings if f.severity == "leak"] == ["step-growth"]
    del findings  # which holds the run, for who judges it again
    gc.collect()
    assert sum(type(one) is HeapGraph for one in gc.get_objects()) <= graphs and len(living) > 5000


@pytest.mark.parametrize("every", [2, None])
def test_check_finds_a_cycle_whenever_gc_collects_and_blames_nothing_that_was_there(every: int | None) -> None:
    leave_what_nobody_frees()
    callbacks, thresholds, calls = list(gc.callbacks), gc.get_threshold(), iter(range(100))

    def step() -> None:
        if every is not None and next(calls) % every == 0:
            gc.collect()
        leave_a_cycle()

    gc.set_threshold(10, 1, 1)
    try:
        findings = leakscope.check(step, repeats=4)
    finally:
        gc.set_threshold(*thresholds)
    assert [finding.rule for finding in findings.findings if finding.severity == "leak"] == ["tensor-cycle"]
    assert gc.isenabled() and gc.callbacks == callbacks


def test_a_loop_that_runs_out_of_memory_reports_what_was_alive() -> None:
    kept = []
    profiler = leakscope.Profiler()
    with pytest.raises(RuntimeError, match="allocate"), profiler, profiler.step():
        kept.append(torch.ones(1 << 20))
        torch.empty(1 << 50)
    text = "\n".join(run_text(profiler.findings.out_of_memory))
    assert "Rank 0: out of memory in step 1" in text
    assert kept and "kept in test_a_loop_that_runs_out_of_memory_reports_what_was_alive()" in text


class Unspeakable(Exception):
    """An error of the program's whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no words")


def test_the_profiler_never_takes_the_place_of_an_error_under_way(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("leakscope.run.reader.read_run", fails)
    with pytest.raises(Unspeakable), leakscope.Profiler():
        raise Unspeakable
    with pytest.raises(RuntimeError, match="ours"), leakscope.Profiler():
        pass
    lines = capfd.readouterr().err.splitlines()
    assert any("recording ended" in line for line in lines) and any(
        "not judged: RuntimeError: ours" in line for line in lines
    )


def test_under_a_launcher_each_rank_judges_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, output in (("1", tmp_path / "run"), ("0", tmp_path / "run")):
        monkeypatch.setenv("RANK", rank)
        kept: list[torch.Tensor] = []
        with leakscope.Profiler(output, budget=1.0) as profiler:
            for _ in range(8):
                with profiler.step():
                    if rank == "1":
                        kept.append(torch.ones(100_000))
        assert [own.number for own in profiler.run.ranks] == [int(rank)]
        assert profiler.findings.verdict == ("leaks" if rank == "1" else "clean")
    assert len(leakscope.read_run(tmp_path / "run").ranks) == 2
