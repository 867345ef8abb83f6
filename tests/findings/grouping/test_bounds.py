"""What is no leak after all: what is bounded, what went no further, what too few looks saw; one cut is one finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from support.heap_text import heap_from

from leakscope.findings.cut import those_needed
from leakscope.findings.growth import series
from leakscope.findings.judge import judge
from leakscope.findings.model import Findings, Reason
from leakscope.run.model import Collection, Ended, HeapSnapshot, Rank, Run, Step
from leakscope.run.rows import LifetimesUnjudged, MemoryThere

STEPS = (3, 5, 7, 9)
LAST = 80
TENSOR = 1 << 20


def run_of(
    heap: Callable[[int], str],
    counted: Callable[[int], float | None] = lambda step: None,
    steps: Sequence[int] = STEPS,
    end: int = LAST,
) -> Run:
    """`heap` is what each look sees, `counted` the MiB counted at each step until the run's end."""
    looks = tuple(HeapSnapshot(s, "step", heap_from(heap(s)), None, 0) for s in steps)
    sizes = [(n, counted(n)) for n in range(1, end + 1)]
    done = tuple(Step(n, 0.1, None if size is None else round(size * TENSOR), None) for n, size in sizes)
    return Run(("train.py",), (Rank(0, done, looks, Ended("finished", 0, end)),), 1, "cpu", "2.13.0", "0")


def judged(
    heap: Callable[[int], str], counted: Callable[[int], int | None] = lambda step: None, steps: Sequence[int] = STEPS
) -> Findings:
    return judge(run_of(heap, counted, steps))


def rows(holder: str, count: int) -> str:
    text = ""
    for k in range(count):
        text += f"{holder} -> [{k}] -> tensor t{k}\ntensor t{k} -> storage -> storage s{k} {TENSOR}\n"
    return text


def ring(bound: int) -> Callable[[int], str]:
    return lambda step: (
        f"module train -> .rows -> list rows {min(step, bound)} maxlen={bound}\n" + rows("list rows", step)
    )


@pytest.mark.parametrize("bound", [20, 1000])
def test_a_bound_that_is_not_reached_is_a_note_that_says_what_it_would_hold(bound: int) -> None:
    found = judged(ring(bound))
    (finding,) = found.findings
    assert (found.verdict, finding.severity) == ("clean", "note")


LARGE = "train.rows gains tensors every step, 9 of at most 1000 so far"


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("network n#{k}\nnetwork n#{k} -> .weight -> tensor t{k}", "each item keeps a module"),
        ("parameter p{k}\nparameter p{k} -> .data -> tensor t{k}", "each item keeps parameters"),
        (
            "tensor l{k}\ntensor l{k} -> .grad_fn -> node N{k}\nnode N{k} -> saved self -> tensor t{k}",
            "keeps an autograd graph",
        ),
    ],
    ids=["modules", "parameters", "graphs"],
)
def test_a_bound_is_no_reason_to_keep_modules_parameters_or_graphs(item: str, said: str) -> None:
    def heap(step: int) -> str:
        text = rows("list rows", step)
        for k in range(step):
            text = text.replace(f"[{k}] -> tensor t{k}\n", f"[{k}] -> {item.format(k=k)}\n")
        return f"module train -> .rows -> list rows {step} maxlen=1000\n" + text

    found = judged(heap)
    (finding,) = found.findings
    assert (found.verdict, finding.severity) == ("leaks", "leak")


@pytest.mark.parametrize(("there", "verdict"), [(2000, "leaks"), (5000, "clean"), (None, "clean")])
def test_a_bound_above_a_quarter_of_all_memory_is_none(there: int | None, verdict: str) -> None:
    run = run_of(ring(1000))
    memory = () if there is None else (MemoryThere("the machine's memory", there * TENSOR),)
    found = judge(replace(run, ranks=(replace(run.ranks[0], host_memory=memory),)))
    assert found.verdict == verdict
    if there == 2000:
        pass


@pytest.mark.parametrize(("a_step", "verdict"), [(0.01, "clean"), (1.0, "leaks")])
def test_sizes_that_rise_by_chance_at_three_looks_are_no_growth(a_step: float, verdict: str) -> None:
    def heap(step: int) -> str:
        return f"module train -> .batch -> tensor t\ntensor t -> storage -> storage s {step * TENSOR}\n"

    assert judge(run_of(heap, lambda step: a_step * step, STEPS[:3], 12)).verdict == verdict


def test_what_grows_on_in_a_full_container_is_not_bounded_by_it() -> None:
    assert judged(ring(7)).verdict == "leaks"


def test_a_list_that_grows_in_a_bounded_container_is_a_leak() -> None:
    found = judged(
        lambda step: (
            f"module train -> .episodes -> list episodes 1 maxlen=10\nlist episodes -> [0] -> list rows {step}\n"
            + rows("list rows", step)
        )
    )
    (finding,) = found.findings
    assert (found.verdict, finding.cut and finding.cut.written) == ("leaks", "train.episodes[0]")


def test_ever_more_bounded_containers_are_not_bounded() -> None:
    def heap(step: int) -> str:
        text = f"module train -> .episodes -> dict episodes {step // 2}\n"
        for k in range(step // 2):
            text += f"dict episodes -> [{k}] -> list rows{k} {step} maxlen=64\n" + rows(f"list rows{k}", 2).replace(
                "tensor t", f"tensor t{k}x"
            ).replace("storage s", f"storage s{k}x")
        return text

    assert judged(heap).verdict == "leaks"


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
    counted: Callable[[int], int | None], verdict: str
) -> None:
    found = judged(lambda step: f"module train -> .rows -> list rows {step}\n" + rows("list rows", step), counted)
    (_finding,) = found.findings
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("counted", "verdict"),
    [
        (lambda step: 100 + min(step, 12) / 8, "clean"),  # full, and still for fourteen steps
        (lambda step: 100 + step / 8, "leaks"),
        (lambda step: 100 + step // 2 / 4, "leaks"),  # by twice as much at every second step
        (lambda step: 100 + (min(step, 12) + 40 * (step > 20)) / 8, "clean"),  # something else came meanwhile
    ],
)
def test_little_memory_that_came_to_rest_is_no_leak(counted: Callable[[int], float], verdict: str) -> None:
    def heap(step: int) -> str:
        return f"module train -> .rows -> list rows {step}\n" + rows("list rows", step).replace(
            str(TENSOR), str(TENSOR // 8)
        )

    assert judge(run_of(heap, counted, steps=(3, 5, 7, 9, 11, 12), end=26)).verdict == verdict


@pytest.mark.parametrize(("ours", "verdict"), [("", "clean"), ("watched", "leaks"), ("collected", "leaks")])
def test_a_fall_that_is_our_own_or_of_the_garbage_of_the_start_acquits_nothing(ours: str, verdict: str) -> None:
    """As much falls at step 61 as was held by then."""
    run = run_of(
        lambda step: f"module train -> .rows -> list rows {step}\n" + rows("list rows", step),
        lambda step: 400 + step - 60 * (step > 60),
    )
    (rank,) = run.ranks
    if ours == "collected":
        full = Collection(2, 0.01, 9, 60 * TENSOR)
        rank = replace(rank, steps=tuple(replace(s, collections=(full,)) if s.number == 61 else s for s in rank.steps))
    elif ours:
        rank = replace(rank, lifetimes=(LifetimesUnjudged(60, "no tensor was made"),))
    assert judge(replace(run, ranks=(rank,))).verdict == verdict


def test_what_is_in_host_memory_is_not_acquitted_by_what_the_device_counts() -> None:
    looks = []
    for step in STEPS:
        heap = heap_from(
            "module train -> .w -> tensor w\ntensor w -> storage -> storage w 8\n"
            f"module train -> .rows -> list rows {step}\n" + rows("list rows", step)
        )
        weight = next(int(s) for s in heap.storages if heap.bytes[s] == 8)
        looks.append(
            HeapSnapshot(
                step, "step", replace(heap, device={weight: "cuda:0"}), min(step, 9) * TENSOR, 8, counted_on="cuda"
            )
        )
    done = tuple(Step(n, 0.1, min(n, 9) * TENSOR, None, (), "cuda") for n in range(1, LAST + 1))
    found = judge(
        Run(("train.py",), (Rank(0, done, tuple(looks), Ended("finished", 0, LAST)),), 1, "cuda", "2.13.0", "0")
    )
    assert found.verdict == "leaks"


def test_where_one_rank_leaks_the_finding_is_told_in_a_leaks_words() -> None:
    """Rank 0 holds more and has come to rest, rank 1 leaks."""

    def of_rank(number: int, many: int, counted: Callable[[int], float]) -> Rank:
        (one,) = run_of(
            lambda step: f"module train -> .rows -> list rows {many * step}\n" + rows("list rows", many * step), counted
        ).ranks
        return replace(one, number=number)

    ranks = (of_rank(0, 2, lambda step: 2 * min(step, 9)), of_rank(1, 1, lambda step: step))
    (finding,) = judge(Run(("train.py",), ranks, 2, "cpu", "2.13.0", "0")).findings
    assert finding.severity == "leak" and (not finding.settled)


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
    def heap(step: int) -> str:
        wide = rows("list wide", 2 * step).replace("tensor t", "tensor w").replace("storage s", "storage w")
        narrow = f"module train -> .rows -> list rows {step}\n{rows('list rows', step)}"
        return f"{narrow}module train -> .wide -> list wide {2 * step}\n{wide}"

    found = judged(heap, counted)
    assert found.verdict == verdict and len(found.findings) == 2


@pytest.mark.parametrize(("period", "first", "a_step"), [(4, 4, 1 / 4), (3, 3, 1 / 3), (4, 5, 1 / 4), (2, 3, 1 / 2)])
def test_what_comes_every_few_steps_has_its_rate(period: int, first: int, a_step: float) -> None:
    steps = (3, 5, 7, 9, 11, 12)
    line = series(steps, {step: (step - first) // period + 2 for step in steps})
    assert line.grows and line.per_step == pytest.approx(a_step, rel=0.15)


def test_too_few_looks_that_saw_it_grow_are_inconclusive() -> None:
    def heap(step: int) -> str:
        return f"module train -> .rows -> list rows {(step + 3) // 4}\n" + rows("list rows", (step + 3) // 4)

    found = judged(heap)
    assert (found.verdict, found.exit_status) == ("inconclusive", 0)
    assert found.why.reason == Reason.TOO_FEW_LOOKS and found.why.detail == "train.rows"


def test_what_one_cut_frees_is_one_finding() -> None:
    def heap(step: int) -> str:
        text = f"module train -> .cache -> dict cache {step}\n" + rows("dict cache", step)
        for k in range(step):
            text += f"dict cache -> key {k} -> tensor k{k}\ntensor k{k} -> storage -> storage key{k} {TENSOR // 2}\n"
        return text

    found = judged(heap)
    (finding,) = found.findings
    assert finding.cut is not None and (finding.cut.written, finding.cut.frees_bytes) == (
        "train.cache",
        9 * TENSOR * 3 // 2,
    )
    assert (finding.count, finding.bytes_per_step, finding.sightings[-1].bytes) == (
        18,
        TENSOR * 3 / 2,
        9 * TENSOR * 3 // 2,
    )


@pytest.mark.parametrize(
    ("cuts", "enough", "needed"), [((5, 6, 7), {7}, [2]), ((5, 6, 7), {5, 7}, [0, 2]), ((5, 6), {5, 6}, [0, 1])]
)
def test_what_must_be_cut_together_is_no_more_than_is_enough(
    cuts: tuple[int, ...], enough: set[int], needed: list[int]
) -> None:
    assert those_needed(cuts, lambda some: enough <= set(some)) == needed
