"""Runs from the text of their heaps, and what is found in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leakscope.findings.judge import judge
from leakscope.findings.model import Finding, Findings
from leakscope.graph.model import HeapGraph
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step
from leakscope.run.rows import EndKind, Occasion
from support.heap_text import heap_from

STEPS = (3, 5, 7, 9)
MIB = 1 << 20
Heap = Callable[[int], "str | HeapGraph"]
"""What a snapshot after a step sees."""


def rank_of(
    heap: Heap,
    number: int = 0,
    at: Sequence[int] = STEPS,
    last: int = 20,
    counted: Any = None,
    seen: Any = None,
    **more: Any,
) -> Rank:
    """A rank of so many steps; `counted` gives the bytes counted at each, `seen` those counted at a snapshot."""
    none = lambda _: None  # noqa: E731
    counted, seen = counted or none, seen or none

    def snapshot(step: int) -> HeapSnapshot:
        graph = heap(step)
        return HeapSnapshot(step, Occasion.STEP, heap_from(graph) if isinstance(graph, str) else graph, seen(step), 0)

    steps = tuple(Step(k, 0.1, counted(k), None) for k in range(1, last + 1))
    return Rank(number, steps, tuple(map(snapshot, at)), Ended(EndKind.FINISHED, 0, last), **more)


def run_of(*ranks: Rank, **more: Any) -> Run:
    """A run of these ranks."""
    return Run(("train.py",), ranks, len(ranks), "cpu", "2.13.0", "0", **more)


def judged(heap: Heap, *, run: Any = None, **more: Any) -> Findings:
    """What is found in a run of one rank; `run` has the options of the run."""
    return judge(run_of(rank_of(heap, **more), **(run or {})))


def only(heap: Heap, **more: Any) -> Finding:
    """The one finding of a run of one rank."""
    (finding,) = judged(heap, **more).findings
    return finding


def tensor(name: str, size: int = MIB, freed: str = "") -> str:
    """Lines that follow `holder -> name -> `: a tensor and its storage."""
    return f"tensor {name} {freed}\ntensor {name} -> storage -> storage {name} {size} {freed}\n"


def items(holder: str, count: int, size: int = MIB) -> str:
    """Tensors in a list or dict."""
    name = holder.partition(" ")[2]
    return "".join(f"{holder} -> [{k}] -> {tensor(f'{name}.{k}', size)}" for k in range(count))


def growing(name: str = "kept", size: int = MIB, more: str = "") -> Heap:
    """A list of a module that has gained a tensor at each step."""
    return lambda step: f"module train -> .{name} -> list {name} {step} {more}\n{items(f'list {name}', step, size)}"
