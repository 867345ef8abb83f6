"""Findings of a run in which an allocation failed on one rank of two."""

from __future__ import annotations

from typing import Any

from support import examples
from support.heap_text import heap_from

from leakscope.findings import judge
from leakscope.findings.oom import largest_holder
from leakscope.graph.model import KINDS
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run
from leakscope.run.rows import AllocationFailure

MIB = examples.MIB


def heap(cache: int, weight: int = 2) -> Any:
    """`net`, whose weight is the model, and a list of tensors of 8 MiB each."""
    text = f"""frame main -> local net -> object Linear
        object Linear -> .weight -> tensor weight
        tensor weight -> storage -> storage weight {weight * MIB}
        object Linear -> .bias -> tensor bias
        tensor bias -> storage -> storage bias 1024
        frame main -> local cache -> list cache
    """
    for k in range(cache):
        text += f"list cache -> [{k}] -> tensor t{k}\ntensor t{k} -> storage -> storage s{k} {8 * MIB}\n"
    found = heap_from(text)
    labels = [found.strings[label] for label in found.label]
    model = [k for k, label in enumerate(labels) if label in ("tensor weight", "tensor bias")]
    found.kind[model] = KINDS.index("parameter")
    return found


def heap_snapshot(step: int, occasion: str, cache: int, weight: int = 2) -> HeapSnapshot:
    graph = heap(cache, weight)
    return HeapSnapshot(step, occasion, graph, None, int(graph.bytes.sum()))


def run_out(weight: int = 2, cache: int = 7) -> Run:
    """Rank 1 fails to allocate in its seventh step, and rank 0 of the peer that is gone."""
    ended = Ended("raised", 1, 6, error="RuntimeError: can't allocate memory")
    failed = AllocationFailure(step=6, time=5.0, error="No.", wanted_bytes=512 * MIB, at="train.py:9 main")
    ranks = (
        Rank(
            0,
            examples.steps(7, MIB, 0),
            (heap_snapshot(3, "step", 0), heap_snapshot(5, "step", 0)),
            Ended("raised", 1, 7),
        ),
        Rank(
            1,
            examples.steps(6, MIB, 0),
            (
                heap_snapshot(3, "step", 3, weight),
                heap_snapshot(5, "step", 5, weight),
                heap_snapshot(6, "memory", cache, weight),
            ),
            ended,
            allocation_failures=(failed,),
        ),
    )
    return examples.run(*ranks)


def test_a_skew_is_measured_at_one_moment() -> None:
    (skew,) = [f for f in judge(run_out()).findings if f.rule == "rank-skew"]
    assert skew.retained_bytes == 40 * MIB and skew.cut is not None and skew.cut.frees_bytes == 40 * MIB
    assert [(s.rank, s.step) for s in skew.sightings] == [(1, 5)]


def test_the_largest_holder_of_the_rank_that_failed() -> None:
    run = run_out()
    holder = largest_holder(run.ranks[1])
    assert holder is not None and (holder.name, holder.bytes) == ("cache in main()", 56 * MIB)
