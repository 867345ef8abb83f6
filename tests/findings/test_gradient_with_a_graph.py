"""A gradient made by `backward(create_graph=True)` that nothing zeroes is told as what it is."""

from __future__ import annotations

from support.heap_text import heap_from

from leakscope.findings.judge import judge
from leakscope.report.finding_text import advice, title
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

MIB = 1 << 20


def heap(step: int) -> str:
    text = "module train -> .bias -> tensor bias\ntensor bias -> storage -> storage own 64\n"
    text += "tensor bias -> .grad -> tensor grad\n"
    text += "tensor grad -> .grad_fn -> node last\n"
    for k in range(step):
        text += f"node last -> saved self -> tensor s{k}\ntensor s{k} -> storage -> storage s{k} {MIB}\n"
    return text


def test_the_gradient_is_named_and_set_to_none() -> None:
    looks = tuple(HeapSnapshot(s, "step", heap_from(heap(s)), None, 0) for s in (3, 5, 7))
    steps = tuple(Step(k, 0.1, None, None) for k in range(1, 8))
    run = Run(("train.py",), (Rank(0, steps, looks, Ended("finished", 0, 7)),), 1, "cpu", "2.13.0", "0")
    (finding,) = judge(run).findings
    assert (finding.rule, finding.severity) == ("retained-graph", "leak")
    assert (
        title(finding)
        == "The .grad of train.bias has a grad_fn and retains its autograd graph and the saved activations"
    )
    assert advice(finding).startswith("Set the .grad of train.bias")
