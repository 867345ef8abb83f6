"""Rule `worker-growth`: what workers of a data loader keep, from rows written by hand."""

from __future__ import annotations

import pytest

from leakscope.findings.model import Finding, Sighting
from leakscope.findings.rules.worker_growth import WorkerGrowthFacts, worker_growth_findings
from leakscope.run.model import Ended, Rank
from leakscope.run.rows import EndKind, GrowingInWorker, WorkerMemory, WorkerSnapshot, WorkersRead, WorkersStarted

KIB = 1024
BATCHES = (2, 4, 8, 12, 16, 20, 24)


def cache(items: int, gained: int, size: int = 0) -> GrowingInWorker:
    return GrowingInWorker(
        "self.cache", "Images", "train.py:12", "dict", "Tensor", items, gained, size or gained * 100 * KIB
    )


def found_in(
    *workers: list[GrowingInWorker], own: tuple[int, ...] = (0, 0), lives: int = 1, min_bytes: int = 64 * KIB
) -> list[Finding]:
    """What is found of workers with these containers at their looks, that have so much memory of their own at reads."""
    started = [WorkersStarted(0, 0, life, len(workers) or 2, "fork", "Images", "") for life in range(1, lives + 1)]
    count = len(workers) or 2
    reads = [
        WorkersRead(10 * at, 0, 1, tuple(WorkerMemory(k, 0, 0, size + k, 0) for k in range(count)))
        for at, size in enumerate(own)
    ]
    snapshots = [
        WorkerSnapshot(0, 1, k, batches, (row,) if row.gained else ())
        for k, rows in enumerate(workers)
        for batches, row in zip(BATCHES, rows, strict=True)
    ]
    rank = Rank(0, (), (), Ended(EndKind.FINISHED, 0, 90), loader_workers=(*started, *reads, *snapshots))
    return worker_growth_findings(rank, min_bytes)


def test_a_container_that_each_worker_fills() -> None:
    one, two = ([cache(each * n, each * n) for n in BATCHES] for each in (1, 3))
    (found,) = found_in(one, two, own=(0, 5 * KIB))
    assert (found.rule, found.severity, found.subject) == ("worker-growth", "leak", "self.cache of Images")
    assert (found.retained_bytes, found.bytes_per_step) == ((24 + 72) * 100 * KIB, 200 * KIB)
    assert found.facts == WorkerGrowthFacts(
        dataset="Images", workers=2, name="self.cache of Images", type="dict", item="Tensor", items=72,
        items_per_batch=2.0, own_bytes=10 * KIB, own_steps=(0, 10),
    )  # fmt: skip
    assert found.cut is not None and (found.cut.reference, found.cut.where) == (".cache", "train.py:12")
    assert found.trace[1].object == "dict, 72 items", "of the worker that keeps most"


@pytest.mark.parametrize(
    ("items", "gained", "kept"),
    [
        ([1, 2, 3, 4, 5, 6, 7], [2, 4, 6, 8, 10, 12, 14], 700),  # half of what was put in since has gone
        ([5, 2, 4, 8, 9, 10, 11], [5, 7, 9, 12, 13, 14, 15], None),  # emptied in between
        ([1, 2, 3, 4, 4, 4, 4], [1, 2, 3, 4, 4, 4, 4], None),  # full
        ([4] * 7, [4] * 7, None),
    ],
)
def test_what_is_taken_out_again(items: list[int], gained: list[int], kept: int | None) -> None:
    found = found_in([cache(*row) for row in zip(items, gained, strict=True)])
    assert [one.retained_bytes for one in found] == ([] if kept is None else [kept * KIB])


@pytest.mark.parametrize(
    ("lives", "min_bytes", "severity"),
    [(1, 100, "leak"), (2, 100, "avoidable"), (1, 101, "note"), (1, 1600, "note"), (1, 1601, "")],
)
def test_by_its_size_and_by_whether_workers_give_it_back(lives: int, min_bytes: int, severity: str) -> None:
    found = found_in([cache(n, n) for n in BATCHES], lives=lives, min_bytes=min_bytes * KIB)
    assert [str(one.severity) for one in found] == ([severity] if severity else [])
    assert all(one.facts.gives_back == (lives == 2) for one in found if isinstance(one.facts, WorkerGrowthFacts))


@pytest.mark.parametrize(
    ("own", "per_step"),
    [
        ((0, 100, 200, 300, 400), 2 * 10 * KIB),
        ((0, 100, 200, 300, 300), None),  # at rest
        ((0, 100), None),  # too few steps
        ((9, 9, 100, 200, 300, 400, 500, 600, 700), 2 * 10 * KIB),  # the first part may stand still
    ],
)
def test_memory_without_a_container(own: tuple[int, ...], per_step: int | None) -> None:
    found = found_in(own=tuple(size * KIB for size in own), min_bytes=KIB)
    assert [(one.bytes_per_step, one.trace, one.cut) for one in found] == ([(per_step, (), None)] if per_step else [])
    assert all(one.sightings == (Sighting(0, 10 * (len(own) - 1), one.retained_bytes),) for one in found)
