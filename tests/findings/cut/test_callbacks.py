"""The cut of what native code keeps by a function: the function, not what it holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.heap_text import heap_from

from leakscope.findings.judge import judge
from leakscope.findings.rules.step_growth import GrowsIn, GrowthFacts
from leakscope.graph.model import KINDS, ROOTS, HeapGraph, ObjectKind, RootKind
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step
from leakscope.run.rows import EndKind, Occasion

STEPS = (3, 5, 7, 9)
SIZE = 1 << 20
SOURCE = """import atexit
class Server:
    def __init__(self):
        self.table = make()
        atexit.register(self.close)
    def close(self):
        pass
"""


def kept_at_exit(step: int) -> HeapGraph:
    graph = heap_from(
        "".join(
            f"method Server.close#{k} where=train.py:6 -> .__self__ -> object Server#{k}\n"
            f"object Server#{k} -> .table -> tensor t{k}\ntensor t{k} -> storage -> storage t{k} {SIZE}\n"
            for k in range(step)
        )
    )
    methods = graph.kind == KINDS.index(ObjectKind.METHOD)
    return replace(graph, root=np.where(methods, ROOTS.index(RootKind.NATIVE), graph.root))


def test_the_exit_handler_is_to_cut_where_it_is_registered() -> None:
    looks = tuple(HeapSnapshot(step, Occasion.STEP, kept_at_exit(step), None, 0) for step in STEPS)
    steps = tuple(Step(number, 0.1, None, None) for number in range(1, STEPS[-1] + 1))
    rank = Rank(0, steps, looks, Ended(EndKind.FINISHED, 0, STEPS[-1]))
    run = Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0", sources={"train.py": tuple(SOURCE.splitlines())})
    (finding,) = judge(run).findings
    assert isinstance(finding.facts, GrowthFacts) and finding.facts.grows_in == GrowsIn.CALLBACK
    assert finding.cut is not None
    (cut,) = finding.cut.references
    assert (cut.name, cut.written, cut.added_at) == (".__self__", "method Server.close", ("train.py:5",))
    assert finding.cut.frees_bytes == STEPS[-1] * SIZE
    assert finding.suggestion is None
