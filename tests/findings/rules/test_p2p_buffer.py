"""Rule `p2p-buffer` reports send and receive buffers kept past their step."""

from __future__ import annotations

from dataclasses import replace

from support.heap_text import heap_from

from leakscope.findings.judge import judge
from leakscope.findings.model import Finding
from leakscope.findings.rules.p2p_buffer import BufferFacts, BufferHolder
from leakscope.graph.model import CommUse
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

MIB = 1024 * 1024
LOOKS = (3, 5, 7, 9)


def look_at(step: int, heap: str, *crossed_in: int) -> HeapSnapshot:
    """A look at a heap whose storages crossed in these steps, in their order."""
    graph = heap_from(heap)
    uses = {
        s: CommUse("recv", 0, 0, number, 0, "train.py:9 go", True)
        for s, number in zip(graph.storages.tolist(), crossed_in, strict=True)
    }
    return HeapSnapshot(step, "step", replace(graph, comm_uses=uses), None, 0)


def of_one(step: int, crossed_in: int) -> HeapSnapshot:
    return look_at(step, f"module train -> .x -> tensor x\ntensor x -> storage -> storage x {step * MIB}", crossed_in)


def of_many(step: int) -> HeapSnapshot:
    each = [
        f"list kept -> [{n}] -> tensor t{n}\ntensor t{n} -> storage -> storage s{n} {MIB}" for n in range(1, step + 1)
    ]
    return look_at(step, "\n".join(["module train -> .kept -> list kept", *each]), *range(1, step + 1))


def judged(*looks: HeapSnapshot) -> Finding:
    steps = tuple(Step(n, 0.1, None, None, ()) for n in range(1, 11))
    (found,) = judge(
        Run(("train.py",), (Rank(0, steps, looks, Ended("finished", 0, 10)),), 1, "cpu", "2.13.0", "0")
    ).findings
    return found


def test_a_buffer_made_anew_in_each_step_is_none_that_is_kept() -> None:
    assert judged(*(of_one(step, crossed_in=step) for step in LOOKS)).rule == "step-growth"


def test_buffers_of_earlier_steps_are_kept_by_their_list() -> None:
    found = judged(*map(of_many, LOOKS))
    assert isinstance(found.facts, BufferFacts)
    assert (found.rule, found.subject, found.facts.held_by) == ("p2p-buffer", "train.kept", BufferHolder.PROGRAM)
    assert found.facts.container == "list"


def test_a_buffer_of_the_step_before_that_is_in_no_list_is_kept_as_well() -> None:
    found = judged(*(of_one(step, crossed_in=step - 1) for step in LOOKS))
    assert isinstance(found.facts, BufferFacts)
    assert (found.rule, found.subject, found.facts.container) == ("p2p-buffer", "train.x", "")
