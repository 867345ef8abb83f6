"""Two holders of the same tensors: both reference paths, and one cut of both."""

from __future__ import annotations

import pytest
from support.heap_text import heap_from

from leakscope.findings.facts import HopStatus
from leakscope.findings.judge import judge
from leakscope.findings.model import Finding
from leakscope.graph.model import ObjectKind
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

STEPS = (3, 5, 7, 9)
TENSOR = 1 << 20

HELD = (
    "object log -> .errors -> list errors {count}\nlist errors -> [{k}] -> exception error#{k}\n"
    "exception error#{k} -> .__traceback__ -> object traceback#{k}\nobject traceback#{k} -> local x -> tensor t{k}\n"
    "object log -> .losses -> list losses {count}\nlist losses -> [{k}] -> tensor loss{k}\n"
    "tensor loss{k} -> .grad_fn -> node Mul{k}\nnode Mul{k} -> .next_functions[0] -> node Norm{k}\n"
    "tensor t{k} -> storage -> storage t{k} {size}\n"
)
BY_ATTRIBUTE = "node Norm{k} -> .y -> tensor t{k}\ntensor t{k} -> .grad_fn -> node Norm{k}\n"
SAVED = "node Norm{k} -> saved result -> tensor t{k}\n"
SAVED_BY_ITSELF = SAVED + "tensor t{k} -> .grad_fn -> node Norm{k}\n"


def found(more: str) -> Finding:
    def heap(step: int) -> str:
        text = "frame main -> local log -> object log\n"
        lines = [line for k in range(step) for line in (HELD + more).format(k=k, count=step, size=TENSOR).splitlines()]
        return text + "\n".join(dict.fromkeys(lines))

    looks = tuple(HeapSnapshot(step, "step", heap_from(heap(step)), None, 0) for step in STEPS)
    steps = tuple(Step(n, 0.1, None, None) for n in range(1, 21))
    run = Run(("train.py",), (Rank(0, steps, looks, Ended("finished", 0, 20)),), 1, "cpu", "2.13.0", "0")
    return max(judge(run).findings, key=lambda finding: finding.retained_bytes)


@pytest.mark.parametrize("more", [SAVED, BY_ATTRIBUTE], ids=["saved", "attribute of its own node"])
def test_both_are_cut_and_each_has_its_path(more: str) -> None:
    finding = found(more)
    assert finding.cut is not None and finding.cut.frees_bytes == finding.retained_bytes == 9 * TENSOR
    first, second = finding.cut.references
    assert {first.name, second.name} == {".errors", ".losses"}
    assert first.path == () and first.trace is not None, "the trace leads over it"
    other = [hop for hop in second.path if set(hop.references) & set(second.indexes)]
    assert [hop.reference for hop in other] == [second.name]
    assert second.path[-1].kind == finding.trace[-1].kind == ObjectKind.STORAGE
    statuses = [hop.status for hop in second.path]
    assert statuses == sorted(statuses) and statuses[2] == HopStatus.LEAKED


def test_a_list_that_leaks_is_not_drawn_as_expected_where_no_cut_is_known() -> None:
    finding = found(SAVED_BY_ITSELF)  # gc does not see that cycle
    assert finding.cut is None
    held = {hop.object.partition(",")[0]: hop.status for hop in finding.trace}
    assert held["list"] == HopStatus.LEAKED
