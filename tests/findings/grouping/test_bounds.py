"""What is no leak after all: what is bounded, what went no further, what too few snapshots saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.heap_text import heap_from
from support.judging import MIB, STEPS, Heap, growing, items, judged, only, rank_of, run_of, tensor

from leakscope.findings.cut import those_needed
from leakscope.findings.judge import judge
from leakscope.findings.model import Reason
from leakscope.graph.model import HeapGraph
from leakscope.run.model import Collection
from leakscope.run.rows import LifetimesUnjudged, MemoryThere

LAST = 80


def ring(bound: int) -> Heap:
    return lambda step: (
        f"module train -> .rows -> list rows {min(step, bound)} maxlen={bound}\n" + items("list rows", step)
    )


def test_a_bound_that_is_not_reached_is_a_note_and_one_that_is_passed_a_leak() -> None:
    for bound, severity, verdict in ((20, "note", "clean"), (1000, "note", "clean"), (7, "leak", "leaks")):
        found = judged(ring(bound), last=LAST)
        assert ([f.severity for f in found.findings], found.verdict) == ([severity], verdict)


@pytest.mark.parametrize(
    "item",
    [
        "network n#{k}\nnetwork n#{k} -> .weight -> tensor t{k}",
        "parameter p{k}\nparameter p{k} -> .data -> tensor t{k}",
        "tensor l{k}\ntensor l{k} -> .grad_fn -> node N{k}\nnode N{k} -> saved self -> tensor t{k}",
    ],
    ids=["modules", "parameters", "graphs"],
)
def test_a_bound_is_no_reason_to_keep_modules_parameters_or_graphs(item: str) -> None:
    def heap(step: int) -> str:
        return f"module train -> .rows -> list rows {step} maxlen=1000\n" + "".join(
            f"list rows -> [{k}] -> {item.format(k=k)}\n{tensor(f't{k}').partition(chr(10))[2]}" for k in range(step)
        )

    assert only(heap).severity == "leak"


@pytest.mark.parametrize(("there", "verdict"), [(2000, "leaks"), (5000, "clean"), (None, "clean")])
def test_a_bound_above_a_quarter_of_all_memory_is_none(there: int | None, verdict: str) -> None:
    memory = () if there is None else (MemoryThere("the machine's memory", there * MIB),)
    assert judge(run_of(rank_of(ring(1000), last=LAST, host_memory=memory))).verdict == verdict


@pytest.mark.parametrize(("a_step", "verdict"), [(0.01, "clean"), (1.0, "leaks")])
def test_sizes_that_rise_by_chance_at_three_snapshots_are_no_growth(a_step: float, verdict: str) -> None:
    def heap(step: int) -> str:
        return f"module train -> .batch -> tensor t\ntensor t -> storage -> storage s {step * MIB}\n"

    assert judged(heap, at=STEPS[:3], last=12, counted=lambda step: round(a_step * step * MIB)).verdict == verdict


def test_a_list_that_grows_in_a_bounded_container_is_a_leak() -> None:
    finding = only(
        lambda step: (
            f"module train -> .all -> list all 1 maxlen=10\nlist all -> [0] -> list rows {step}\n"
            + items("list rows", step)
        )
    )
    assert (finding.severity, finding.cut and finding.cut.written) == ("leak", "train.all[0]")


def test_ever_more_bounded_containers_are_not_bounded() -> None:
    def heap(step: int) -> str:
        return f"module train -> .all -> dict all {step // 2}\n" + "".join(
            f"dict all -> [{k}] -> list rows{k} {step} maxlen=64\n{items(f'list rows{k}', 2)}" for k in range(step // 2)
        )

    assert judged(heap).verdict == "leaks"


def mib(counted: Callable[[int], float | None]) -> Callable[[int], int | None]:
    """Bytes of so many MiB."""
    return lambda step: None if (size := counted(step)) is None else round(size * MIB)


@pytest.mark.parametrize(
    ("counted", "verdict"),
    [
        (lambda step: 100 + step, "leaks"),  # it went on
        (lambda step: 100 + min(step, 20), "clean"),  # full at step 20
        (lambda step: 100 + step % 12, "clean"),  # emptied every 12 steps
        (lambda step: 400 + step - 300 * (step > 40), "leaks"),  # something larger was let go of
        (lambda step: 400 + step - 45 * (step > 60), "leaks"),  # something smaller was
        (lambda step: 400 + step - 60 * (step > 60), "clean"),  # as much as it held by then
        (lambda step: 400 + step - 22 * (step > 20), "leaks"),  # what fell at 20 was not all: it came far higher since
        (lambda step: 400 + min(step, 9) + max(step - 9, 0) / 3, "inconclusive"),  # more slowly, or beside a release
        (lambda step: 400 + min(step, 9) + max(step - 9, 0) / 2, "leaks"),
        (lambda step: 100, "leaks"),  # memory that is not counted, as shared memory is
        (lambda step: None, "leaks"),
    ],
)
def test_counted_bytes_that_went_no_further_speak_against_a_leak(
    counted: Callable[[int], float | None], verdict: str
) -> None:
    found = judged(growing(), last=LAST, counted=mib(counted))
    assert (found.verdict, len(found.findings)) == (verdict, 1)


@pytest.mark.parametrize(
    ("counted", "verdict"),
    [
        (lambda step: 100 + min(step, 12) / 8, "clean"),  # full, and still for fourteen steps
        (lambda step: 100 + step / 8, "leaks"),
        (lambda step: 100 + step // 2 / 4, "leaks"),  # by twice as much at every second step
        (lambda step: 100 + (min(step, 12) + 40 * (step > 20)) / 8, "clean"),  # something else came meanwhile
    ],
)
def test_little_memory_that_plateaued_is_no_leak(counted: Callable[[int], float], verdict: str) -> None:
    heap = growing(size=MIB // 8)
    assert judged(heap, at=(*STEPS, 11, 12), last=26, counted=mib(counted)).verdict == verdict


@pytest.mark.parametrize(("ours", "verdict"), [("", "clean"), ("watched", "leaks"), ("collected", "leaks")])
def test_a_fall_that_is_our_own_or_of_the_garbage_of_the_start_acquits_nothing(ours: str, verdict: str) -> None:
    """As much falls at step 61 as was held by then."""
    rank = rank_of(growing(), last=LAST, counted=mib(lambda step: 400 + step - 60 * (step > 60)))
    if ours == "collected":
        full = Collection(2, 0.01, 9, 60 * MIB)
        rank = replace(rank, steps=tuple(replace(s, collections=(full,)) if s.number == 61 else s for s in rank.steps))
    elif ours:
        rank = replace(rank, lifetimes=(LifetimesUnjudged(60, "no tensor was made"),))
    assert judge(run_of(rank)).verdict == verdict


def test_what_is_in_host_memory_is_not_acquitted_by_what_the_device_counts() -> None:
    def heap(step: int) -> HeapGraph:
        graph = heap_from(f"module train -> .w -> {tensor('w', 8)}{growing()(step)}")
        (weight,) = (int(s) for s in graph.storages if graph.bytes[s] == 8)
        return replace(graph, device={weight: "cuda:0"})

    rank = rank_of(heap, last=LAST, counted=(at_rest := lambda step: min(step, 9) * MIB), seen=at_rest)
    snapshots = tuple(replace(snapshot, counted_on="cuda", explained_bytes=8) for snapshot in rank.heap_snapshots)
    rank = replace(rank, heap_snapshots=snapshots, steps=tuple(replace(step, counted_on="cuda") for step in rank.steps))
    assert judge(run_of(rank)).verdict == "leaks"


def test_a_finding_is_a_leak_where_one_rank_leaks() -> None:
    """Rank 0 holds more and has plateaued, rank 1 leaks."""
    still = rank_of(lambda step: growing()(2 * step), 0, last=LAST, counted=mib(lambda step: 2 * min(step, 9)))
    leaks = rank_of(growing(), 1, last=LAST, counted=mib(lambda step: step))
    (finding,) = judge(run_of(still, leaks)).findings
    assert finding.severity == "leak" and not finding.settled


@pytest.mark.parametrize(
    ("counted", "verdict"),
    [
        (lambda step: 100 + 3 * step, "leaks"),
        (lambda step: 100 + 3 * (step % 10), "clean"),  # both emptied every 10 steps
        (lambda step: 100 + step + 2 * (step % 10), "leaks"),  # the larger one alone is
        (lambda step: 100 + 3 * step - 10 * (step == 12), "leaks"),  # something else is put away for one step
        (lambda step: 100 + 3 * step - 90 * (step > 12), "leaks"),  # something larger is let go of
    ],
)
def test_two_lists_that_are_emptied_together_are_no_leaks(counted: Callable[[int], int], verdict: str) -> None:
    found = judged(lambda step: growing()(step) + growing("wide")(2 * step), last=LAST, counted=mib(counted))
    assert found.verdict == verdict and len(found.findings) == 2


def test_growth_that_too_few_snapshots_saw_is_inconclusive() -> None:
    found = judged(lambda step: growing()((step + 3) // 4))
    assert (found.verdict, found.exit_status) == ("inconclusive", 0)
    assert (found.why.reason, found.why.detail) == (Reason.TOO_FEW_SNAPSHOTS, "train.kept")


def test_what_one_cut_frees_is_one_finding() -> None:
    def heap(step: int) -> str:
        keys = "".join(f"dict cache -> key {k} -> {tensor(f'key{k}', MIB // 2)}" for k in range(step))
        return f"module train -> .cache -> dict cache {step}\n{items('dict cache', step)}{keys}"

    finding = only(heap)
    assert finding.cut is not None and (finding.cut.written, finding.count) == ("train.cache", 18)
    assert finding.cut.frees_bytes == finding.sightings[-1].bytes == 9 * MIB * 3 // 2
    assert finding.bytes_per_step == MIB * 3 / 2


@pytest.mark.parametrize(
    ("cuts", "enough", "needed"), [((5, 6, 7), {7}, [2]), ((5, 6, 7), {5, 7}, [0, 2]), ((5, 6), {5, 6}, [0, 1])]
)
def test_what_must_be_cut_together_is_no_more_than_is_enough(
    cuts: tuple[int, ...], enough: set[int], needed: list[int]
) -> None:
    assert those_needed(cuts, lambda some: enough <= set(some)) == needed
