"""The memory of DataLoader workers is reported with its cause, as it is measured from outside."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import signal_handling

import leakscope
from leakscope.findings.facts import RuleName
from leakscope.findings.model import LoaderMemory
from leakscope.findings.workers import WorkerLineKind

pytestmark = pytest.mark.process
COUNT = 300_000
WORKERS = 2
STEPS = 10


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """A full collection in a worker writes to all that gc tracks: when it comes is chance."""
    gc.disable()
    handler = signal.getsignal(signal.SIGCHLD)
    yield
    gc.enable()
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # of a loader's queues that are closed
            thread.join(10)
    signal.signal(signal.SIGCHLD, handler)  # torch's stays, and it sets it once
    signal_handling._SIGCHLD_handler_set = False


class Texts(Dataset[Any]):
    """Each item is read from a tenth of the texts."""

    def __init__(self, reads: bool = True) -> None:
        texts = [f"images/{number:09d}/a_name_of_some_length.png" for number in range(COUNT)]
        self.samples = texts
        self.reads = reads

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        share = COUNT // STEPS if self.reads else 0
        return torch.tensor([float(sum(map(len, self.samples[index * share : (index + 1) * share])))])


def unique_of(loader_iterator: Any) -> list[int]:
    """USS of each worker, as psutil has it."""
    return [psutil.Process(worker.pid).memory_full_info().uss for worker in loader_iterator._workers]


def until_ahead(iterator: Any) -> None:
    """Waits until the workers have done all they were given: they are equally far ahead on a busy machine too."""
    until = time.monotonic() + 30
    while iterator._worker_result_queue.qsize() < iterator._tasks_outstanding:
        assert time.monotonic() < until


def recorded(loader: DataLoader[Any], folder: Path, epochs: int = 1, warmup: int = 50) -> tuple[Any, list[list[int]]]:
    """(the run's result, USS of the workers after each step)."""
    net = torch.nn.Linear(1, 1)
    seen = []
    with leakscope.Profiler(output=folder, budget=1.0, warmup=warmup) as profiler:
        for _ in range(epochs):
            iterator: Iterator[Any] = iter(loader)
            for batch in iterator:
                with profiler.step():
                    net(batch).square().mean().backward()
                until_ahead(iterator)
                seen.append(unique_of(iterator))
            del iterator
    if getattr(loader, "_iterator", None) is not None:
        loader._iterator._shutdown_workers()
    return profiler, seen


def loader_of(profiler: Any) -> LoaderMemory:
    ((loader,),) = profiler.findings.loaders.values()
    assert sum(line.bytes for line in loader.lines) == loader.unique_bytes
    for interval in loader.intervals:
        assert sum(line.bytes for line in interval.lines) == interval.unique_bytes
    return loader


def copied(loader: LoaderMemory) -> int:
    return sum(line.bytes for line in loader.lines if line.kind == WorkerLineKind.COPIES)


def test_objects_that_workers_copy_by_reading_are_reported(tmp_path: Path) -> None:
    recorded(
        DataLoader(Texts(reads=False), batch_size=None, num_workers=WORKERS), tmp_path / "first"
    )  # the heap grows of it
    profiler, seen = recorded(DataLoader(Texts(), batch_size=None, num_workers=WORKERS), tmp_path / "list")
    without, least = recorded(DataLoader(Texts(reads=False), batch_size=None, num_workers=WORKERS), tmp_path / "unread")
    (finding,) = (f for f in profiler.findings.findings if f.rule == RuleName.WORKER_COPIES)
    assert finding.subject == "self.samples of Texts"
    assert finding.facts.items == COUNT and finding.facts.item == "str" and finding.facts.workers == WORKERS
    assert finding.facts.where.startswith("tests/capture/test_workers.py:")
    loader = loader_of(profiler)
    assert copied(loader) == finding.retained_bytes
    reported, outside = finding.retained_bytes, sum(seen[-1]) - sum(least[-1])
    assert reported == pytest.approx(outside, rel=0.1)
    assert loader.unique_bytes == pytest.approx(max(map(sum, seen)), rel=0.1)
    assert not [f for f in without.findings.findings if f.rule == RuleName.WORKER_COPIES]
    assert copied(loader_of(without)) < reported / 10


class Caching(Dataset[Any]):
    """Keeps an image of 64 KiB for each item, and a text in a list of the module's."""

    def __init__(self, keeps: bool = True) -> None:
        self.keeps, self.cache = keeps, {}

    def __len__(self) -> int:
        return 20 * STEPS

    def __getitem__(self, index: int) -> Any:
        image = torch.full((128, 128), float(index))
        if self.keeps:
            self.cache[index] = image
            SEEN.append(f"image {index} " * 1000)
        return image.mean().reshape(1)


SEEN: list[str] = []


def test_a_cache_of_a_worker_is_reported(tmp_path: Path) -> None:
    loader = DataLoader(Caching(), batch_size=STEPS, num_workers=WORKERS, multiprocessing_context="fork")
    profiler, seen = recorded(loader, tmp_path / "run")
    named = {f.subject: f for f in profiler.findings.findings if f.rule == RuleName.WORKER_GROWTH}
    assert set(named) == {"self.cache of Caching", "SEEN"} and {f.severity for f in named.values()} == {"leak"}
    cache = named["self.cache of Caching"]
    assert cache.cut.where.startswith("tests/capture/test_workers.py:") and cache.facts.workers == WORKERS
    assert cache.facts.items_per_batch == STEPS and cache.facts.item == "Tensor"
    reported = sum(f.bytes_per_step for f in named.values())
    steps = slice(4, len(seen) - 6)  # workers are some batches ahead, and done before the last steps
    outside = [sum(each) for each in seen][steps]
    grown = (outside[-1] - outside[0]) / (len(outside) - 1)
    assert reported == pytest.approx(grown, rel=0.25)
    assert not SEEN, "it is the workers' alone"


class Random(Dataset[Any]):
    """Each item is drawn."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> Any:
        return torch.rand(1)


def drawn(step: Callable[[], object]) -> torch.Tensor:
    torch.manual_seed(7)
    batches = []
    for batch in DataLoader(Random(), batch_size=4, num_workers=WORKERS, shuffle=True):
        batches.append(batch)
        step()
    return torch.cat(batches)


def test_batches_are_as_without_leakscope(tmp_path: Path) -> None:
    plain = drawn(lambda: None)
    with leakscope.Profiler(output=tmp_path / "run", budget=1.0, warmup=50) as profiler:
        assert torch.equal(plain, drawn(profiler.step))
    assert len(profiler.findings.loaders[0]) == 1
