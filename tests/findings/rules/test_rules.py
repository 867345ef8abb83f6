"""Rules that judge growth by what it is: objects, buffers, cycles through autograd, one rank beside its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from support.comm_examples import rank_with
from support.heap_text import heap_from
from support.judging import MIB, STEPS, Heap, items, only, rank_of, run_of, tensor

from leakscope.findings.facts import StaticText
from leakscope.findings.judge import judge
from leakscope.findings.model import Finding, Findings, LineKind, RankSummary, Sighting, by_kind
from leakscope.findings.rules.object_growth import Collects, ObjectFacts
from leakscope.findings.rules.p2p_buffer import BufferFacts, BufferHolder
from leakscope.findings.rules.rank_skew import held_at_last, skew_findings
from leakscope.findings.rules.retained_graph import GraphFacts
from leakscope.findings.rules.uncollectable_cycle import ClosedBy, UncollectableFacts
from leakscope.graph.model import CommUse, HeapGraph
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run
from leakscope.run.rows import GainingContainer

KIB = 1024
IN_A_LIST = "frame main -> local log -> list log {items}"
EVEN = (0, 400, 800, 1200, 1600)


def gained(sizes: Sequence[float], heap: str = IN_A_LIST, counted: float | None = 1.0) -> Findings:
    """What is found of a container that has gained so many KiB at each snapshot, an item each 100."""
    at = (*STEPS, 11)[-len(sizes) :]
    of = dict(zip(at, sizes, strict=True))
    rank = rank_of(lambda step: heap.format(items=int(of[step] // 100)), at=at, last=11)

    def rows(step: int) -> tuple[GainingContainer, ...]:
        count, size = int(of[step] // 100), of[step] * KIB
        return (GainingContainer(1, count, count, round(size), round(size * (counted or 0)), "str"),) if size else ()

    snapshots = tuple(
        replace(
            snapshot, containers=rows(snapshot.step),
            counted_bytes=None if counted is None else (50 << 20) + round(of[snapshot.step] * KIB * counted),
        )
        for snapshot in rank.heap_snapshots
    )  # fmt: skip
    return judge(run_of(replace(rank, heap_snapshots=snapshots), warmup=2))


@pytest.mark.parametrize(
    ("heap", "subject", "collects"),
    [
        (IN_A_LIST, "log in main()", Collects.LIST),
        ("frame main -> local agent -> object Agent {items}", "agent in main()", Collects.ATTRIBUTES),
    ],
)
def test_objects_that_are_gained_each_step_are_a_leak(heap: str, subject: str, collects: Collects) -> None:
    found = gained(EVEN, heap)
    (finding,) = found.findings
    assert (finding.rule, finding.severity, finding.bytes_per_step) == ("object-growth", "leak", 200 * KIB)
    assert isinstance(finding.facts, ObjectFacts)
    assert (finding.facts.items_per_step, finding.facts.item, finding.facts.collects) == (2.0, "str", collects)
    assert finding.cut is not None and (finding.cut.written, finding.cut.frees_bytes) == (subject, 1600 * KIB)


@pytest.mark.parametrize(("counted", "leaks", "unattributed"), [(0.5, 800, 0), (None, 1600, 0), (0.0, 0, 0)])
def test_what_was_counted_of_objects_stands_on_their_line(counted: float, leaks: int, unattributed: int) -> None:
    found = gained(EVEN, counted=counted)
    lines = by_kind(line for interval in found.ledgers[0] for line in interval.lines)
    assert found.verdict == "leaks"
    assert (lines[LineKind.LEAKS], lines[LineKind.UNATTRIBUTED]) == (leaks * KIB, unattributed * KIB)


@pytest.mark.parametrize(
    ("sizes", "bound", "severities"),
    [
        ((0, 0.1, 0.2, 0.3, 0.4), "", []),
        ((0, 600, 600, 600, 600), "", []),
        ((0, 900, 0, 700, 100), "", []),
        ((0, 6, 12, 18, 24), "", ["note"]),
        ((0, 1200, 1202), "", ["note"]),  # a cache that filled at once and gains a trickle
        (EVEN, " maxlen=100", ["note"]),
    ],
)
def test_objects_that_plateau_or_are_few_or_bounded_are_no_leak(
    sizes: tuple[float, ...], bound: str, severities: list[str]
) -> None:
    found = gained(sizes, IN_A_LIST + bound)
    assert (found.verdict, [finding.severity for finding in found.findings]) == ("clean", severities)
    assert all((finding.settled_by is not None) == bool(bound) for finding in found.findings)


def test_objects_that_the_cut_of_tensors_frees_are_reported_with_them() -> None:
    tensors = (f"list log -> [{k}] -> tensor {k}\ntensor {k} -> storage -> storage {k} {{items}}00000" for k in (0, 1))
    (finding,) = gained(EVEN, "\n".join((IN_A_LIST, *tensors))).findings
    assert finding.rule == "step-growth" and [beside.bytes for beside in finding.beside] == [1600 * KIB]


def crossed(heap: Heap, in_steps: Callable[[int], Sequence[int]]) -> Heap:
    """The heap, its storages with the steps in which they crossed, in their order."""

    def graph(step: int) -> HeapGraph:
        seen = heap_from(heap(step))  # type: ignore[arg-type]
        crossings = zip(seen.storages.tolist(), in_steps(step), strict=True)
        uses = {s: CommUse("recv", 0, 0, number, 0, "train.py:9 go", True) for s, number in crossings}
        return replace(seen, comm_uses=uses)

    return graph


@pytest.mark.parametrize(("ago", "rule"), [(0, "step-growth"), (1, "p2p-buffer")])
def test_one_buffer_is_kept_where_it_is_of_an_earlier_step(ago: int, rule: str) -> None:
    of_one = lambda step: f"module train -> .x -> {tensor('x', step * MIB)}"  # noqa: E731
    finding = only(crossed(of_one, lambda step: [step - ago]), last=10)
    assert (finding.rule, finding.subject) == (rule, "train.x")


def test_buffers_of_earlier_steps_are_kept_by_their_list() -> None:
    of_many = lambda step: f"module train -> .kept -> list kept\n{items('list kept', step)}"  # noqa: E731
    finding = only(crossed(of_many, lambda step: range(1, step + 1)), last=10)
    assert isinstance(finding.facts, BufferFacts)
    assert (finding.rule, finding.subject, finding.facts.container) == ("p2p-buffer", "train.kept", "list")
    assert finding.facts.held_by == BufferHolder.PROGRAM


def each(one: str) -> Heap:
    """One of these in each step; `#` is its number."""
    return lambda step: "".join(one.replace("#", f"#{k}") for k in range(step))


SAVED = """
tensor t# freed=never -> .grad_fn -> node N# freed=never
node N# -> saved result -> tensor t#
tensor t# -> storage -> storage s# 1048576 freed=never
"""
KEPT_ON_CTX = """
tensor t# freed=never -> .grad_fn -> node N# freed=never
node N# -> .owner -> object S# freed=never
object S# -> .last -> node M# freed=never
node M# -> saved result -> tensor t#
tensor t# -> storage -> storage s# 1048576 freed=never
"""
PACKED = "node M# -> unpack hook of saved result -> function unpack#\n"
HOOKED = KEPT_ON_CTX.replace(".owner", "hook clear")


@pytest.mark.parametrize(
    ("cycle", "closed_by"),
    [
        (SAVED, ClosedBy.PACK_HOOK),
        (KEPT_ON_CTX + PACKED, ClosedBy.PACK_HOOK),
        (KEPT_ON_CTX, ClosedBy.OTHER),
        (HOOKED, ClosedBy.HOOK),
    ],
    ids=["autograd alone", "with an unpack hook", "an attribute", "a hook"],
)
def test_a_pack_hook_closes_a_cycle_where_nothing_else_can_or_the_node_has_one(cycle: str, closed_by: ClosedBy) -> None:
    facts = only(each(cycle), last=9).facts
    assert isinstance(facts, UncollectableFacts) and facts.closed_by == closed_by


CACHE = "functools._lru_cache_wrapper size"
KEPT = """
object h# -> .y -> tensor y#
tensor y# -> .grad_fn -> node N#
node N# -> saved self -> tensor t#
tensor t# -> storage -> storage s# 1048576
"""


@pytest.mark.parametrize(
    ("by", "by_arguments"),
    [
        (f"{CACHE} -> cached arguments -> list k#\nlist k# -> [0] -> object h#\n", True),
        (f"{CACHE} -> cached result -> dict of\ndict of -> key (...) -> list k#\nlist k# -> [0] -> object h#\n", True),
        (f"{CACHE} -> cached result -> object h#\n", False),
        (f"{CACHE} -> cached result -> dict of\ndict of -> [#] -> object h#\n", False),
    ],
)
def test_a_graph_that_the_key_of_a_cache_holds_is_no_result(by: str, by_arguments: bool) -> None:
    facts = only(each(f"module train -> .size -> {CACHE}\n{by}{KEPT}"), last=9).facts
    assert isinstance(facts, GraphFacts) and facts.by_arguments is by_arguments


@pytest.mark.parametrize(("freed", "never"), [("never", 1 << 20), ("1", 0)])
def test_what_gc_never_frees_is_told_from_garbage_where_no_step_was_seen(freed: str, never: int) -> None:
    heap = heap_from(SAVED.replace("freed=never", f"freed={freed}"))
    rank = Rank(0, (), (HeapSnapshot(0, "end", heap, None, 0),), Ended("finished", 0, 0))
    (alive,) = judge(run_of(rank)).listed
    assert (alive.categories["leaked"], alive.uncollectable_bytes) == (1 << 20, never)


def _summary(model: int, beside: int) -> RankSummary:
    return RankSummary(categories={"parameter": model, "held by a named root": beside})


def _held(run: Run) -> dict[int, dict[int, int] | None]:
    return {rank.number: held_at_last(rank) for rank in run.ranks}


def test_a_larger_stage_may_hold_more_and_what_is_named_is_no_skew() -> None:
    run = run_of(rank_with(0), rank_with(1))
    assert skew_findings(run, {0: _summary(50 * MIB, 20 * MIB), 1: _summary(200 * MIB, 80 * MIB)}, (), {}) == []
    seen = (Sighting(1, 3, 70 * MIB),)
    named = Finding("step-growth", StaticText("", ""), "1", "leak", "program", 70 * MIB, 0.0, (), None, sightings=seen)
    summaries = {0: _summary(100 * MIB, 20 * MIB), 1: _summary(100 * MIB, 90 * MIB)}
    assert skew_findings(run, summaries, (), _held(run)) and skew_findings(run, summaries, (named,), {}) == []
