"""What collecting was seen to free, or to leave, decides over what was worked out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.judging import MIB, rank_of, run_of

from leakscope.findings.facts import FreedBy, RuleName
from leakscope.findings.judge import judge
from leakscope.findings.model import Finding, LineKind, by_kind, grown_of
from leakscope.run.model import Collection, GcDiff, Rank
from leakscope.run.rows import Occasion


def rank_with(kind: str, freed: str = "") -> Rank:
    """A rank whose heap gains a cycle each step, or a tensor that native code holds."""
    memory = f"freed={freed}" if freed else ""
    cycle = "object C#{k} {memory} -> .me -> object C#{k}\nobject C#{k} -> .kept -> tensor t{k}\n"
    lines = (cycle if kind == "cycle" else "") + "{kind} t{k} {memory} -> storage -> storage s{k} {size} {memory}\n"
    kind = "native" if kind == "native" else "tensor"

    def heap(step: int) -> str:
        return "".join(lines.format(k=k, kind=kind, memory=memory, size=MIB) for k in range(step))

    rank = rank_of(heap, last=9)
    return replace(
        rank, heap_snapshots=(*rank.heap_snapshots[:-1], replace(rank.heap_snapshots[-1], occasion=Occasion.LAST))
    )


def only(rank: Rank) -> Finding:
    (finding,) = judge(run_of(rank)).findings
    return finding


def measured(rank: Rank, frees: bool) -> Rank:
    heap = rank.heap_snapshots[-1].heap
    gone = tuple(heap.storages.tolist()) if frees else ()
    size = len(gone) * MIB
    return replace(rank, gc_diff=GcDiff((0, 0, size, 0), int(frees), (0.0,) * 4, 9 * MIB, Occasion.LAST, gone))


@pytest.mark.parametrize(
    ("kind", "freed", "frees", "expected"),
    [
        ("cycle", "1", True, FreedBy.GC),
        ("cycle", "1", False, FreedBy.NEVER),
        ("cycle", "never", True, FreedBy.GC),
        ("cycle", "never", False, FreedBy.NEVER),
        ("native", "", True, FreedBy.GC),
        ("native", "", False, FreedBy.PROGRAM),
    ],
)
def test_the_measured_diff_decides(kind: str, freed: str, frees: bool, expected: FreedBy) -> None:
    finding = only(measured(rank_with(kind, freed), frees))
    assert finding.freed_by == expected and finding.severity == "leak"
    assert finding.collections == (1 if expected == FreedBy.GC else None)
    assert finding.fingerprint == only(rank_with(kind, freed)).fingerprint, "the same leak, tried or not"


def test_a_diff_after_another_look_says_nothing_of_the_last_judged_one() -> None:
    rank = measured(rank_with("cycle", "1"), frees=False)
    assert rank.gc_diff is not None
    later = replace(rank, gc_diff=replace(rank.gc_diff, after=Occasion.END))
    assert only(later).freed_by == FreedBy.GC


@pytest.mark.parametrize(
    ("generation", "freed_bytes", "expected"),
    [
        (2, 0, RuleName.UNCOLLECTABLE_CYCLE),
        (2, MIB // 4, RuleName.UNCOLLECTABLE_CYCLE),
        (2, 5 * MIB, RuleName.TENSOR_CYCLE),
        (2, None, RuleName.TENSOR_CYCLE),
        (1, 0, RuleName.TENSOR_CYCLE),
    ],
    ids=["freed nothing", "freed little", "freed it", "not counted", "young"],
)
def test_garbage_that_full_collections_leave_is_never_freed(
    generation: int, freed_bytes: int | None, expected: RuleName
) -> None:
    rank = rank_with("cycle", "1")
    collection = Collection(generation, 0.1, 100, freed_bytes)
    steps = tuple(replace(step, collections=(collection,) if step.number == 6 else ()) for step in rank.steps)
    assert only(replace(rank, steps=steps)).rule == expected


def test_memory_that_has_become_less_is_told_as_freed() -> None:
    rank = rank_with("native")
    counted = {3: 104, 5: 105, 7: 107, 9: 109}
    snapshots = tuple(replace(snapshot, counted_bytes=counted[snapshot.step] * MIB) for snapshot in rank.heap_snapshots)
    grown = grown_of(0, judge(run_of(replace(rank, heap_snapshots=snapshots))).ledgers[0])
    assert grown is not None and by_kind(grown.lines)[LineKind.UNATTRIBUTED] == -MIB
