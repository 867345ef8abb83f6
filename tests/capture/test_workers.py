"""Is what a loader's workers take told as it is, measured from outside?"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import signal_handling

import leakscope
from leakscope.findings.kinds import RuleName
from leakscope.findings.workers.ledger import LoaderMemory, WorkerLineKind
from leakscope.verdict import Verdict

pytestmark = pytest.mark.process
COUNT = 300_000
WORKERS = 2
STEPS = 10
MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """A full collection in a worker writes to all that gc tracks: when it comes is chance."""
    gc.disable()
    handler = signal.getsignal(signal.SIGCHLD)
    yield
    gc.enable()
    signal.signal(signal.SIGCHLD, handler)  # torch's stays, and it sets it once
    signal_handling._SIGCHLD_handler_set = False


class Texts(Dataset[Any]):
    """Each item is read from a tenth of the texts."""

    def __init__(self, as_array: bool = False) -> None:
        texts = [f"images/{number:09d}/a_name_of_some_length.png" for number in range(COUNT)]
        self.samples: Any = np.array(texts, dtype="S") if as_array else texts

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        share = COUNT // STEPS
        return torch.tensor([float(sum(map(len, self.samples[index * share : (index + 1) * share])))])


def unique_of(loader_iterator: Any) -> list[int]:
    """USS of each worker, as psutil has it."""
    return [psutil.Process(worker.pid).memory_full_info().uss for worker in loader_iterator._workers]


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
                seen.append(unique_of(iterator))
            del iterator
    return profiler, seen


def loader_of(profiler: Any) -> LoaderMemory:
    ((loader,),) = profiler.findings.loaders.values()
    assert sum(line.bytes for line in loader.lines) == loader.unique_bytes
    for interval in loader.intervals:
        assert sum(line.bytes for line in interval.lines) == interval.unique_bytes
    return loader


def copied(loader: LoaderMemory) -> int:
    return sum(line.bytes for line in loader.lines if line.kind == WorkerLineKind.COPIES)


def test_objects_copied_as_they_are_read_are_told_with_what_the_workers_really_gain(tmp_path: Path) -> None:
    profiler, seen = recorded(DataLoader(Texts(), batch_size=None, num_workers=WORKERS), tmp_path / "list")
    without, least = recorded(
        DataLoader(Texts(True), batch_size=None, num_workers=WORKERS), tmp_path / "array", warmup=2
    )
    (finding,) = (f for f in profiler.findings.findings if f.rule == RuleName.WORKER_COPIES)
    assert finding.subject == "self.samples of Texts"
    assert finding.facts.items == COUNT and finding.facts.item == "str" and finding.facts.workers == WORKERS
    assert finding.facts.where.startswith("tests/capture/test_workers.py:")
    loader = loader_of(profiler)
    assert copied(loader) == finding.retained_bytes
    told, outside = finding.retained_bytes, sum(seen[-1]) - sum(least[-1])
    print("copies", told, outside)
    assert told == pytest.approx(outside, rel=0.2)
    assert loader.unique_bytes == pytest.approx(max(map(sum, seen)), rel=0.1)
    assert not [f for f in without.findings.findings if f.rule == RuleName.WORKER_COPIES]
    assert without.findings.verdict == Verdict.CLEAN and not copied(loader_of(without))
