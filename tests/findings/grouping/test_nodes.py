"""Autograd nodes that accumulate behind a tensor are reported with it, with their count and bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.heap_text import heap_from

from leakscope.findings.judge import judge
from leakscope.findings.model import Findings
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

STEPS = (3, 5, 7, 9)
A_NODE = 500
WEIGHT = "module train -> .net -> tensor weight\ntensor weight -> storage -> storage weight 4096\n"
A_LOSS = "tensor {name} -> storage -> storage {name} 4\n"


def chain(tensor: str, first: int, count: int) -> str:
    """Grad nodes behind a tensor, the last of them that of the weight."""
    text = f"tensor {tensor} -> .grad_fn -> node N{first}\n"
    for k in range(first, first + count):
        after = f"node N{k + 1}" if k < first + count - 1 else "node accumulate"
        text += f"node N{k} -> .next_functions[0] -> {after}\n"
    return text + "node accumulate -> .variable -> tensor weight\n"


def judged(
    heap: Callable[[int], str], nodes: int, counts: bool = True, a_step: int | None = None, min_bytes: int | None = 4096
) -> Findings:
    """What is said of heaps in which each step adds so many nodes, and `a_step` bytes to what is counted at steps."""
    looks = tuple(
        HeapSnapshot(s, "step", heap_from(heap(s)), (1 << 20) + s * nodes * A_NODE if counts else None, 4100)
        for s in STEPS
    )
    steps = tuple(Step(n, 0.1, None if a_step is None else (1 << 20) + n * a_step, None) for n in range(1, 21))
    run = Run(
        ("train.py",), (Rank(0, steps, looks, Ended("finished", 0, 20)),), 1, "cpu", "2.13.0", "0", min_bytes=min_bytes
    )
    return judge(run)


def test_an_accumulator_carries_the_graph_of_every_step() -> None:
    def heap(step: int) -> str:
        return (
            WEIGHT
            + "module train -> .total -> tensor total\n"
            + A_LOSS.format(name="total")
            + chain("total", 0, 20 * step)
        )

    found = judged(heap, 20)
    (finding,) = found.findings
    assert (found.verdict, finding.rule, finding.keeps_graphs) == ("leaks", "retained-graph", True)
    assert finding.bytes_per_step == 20 * A_NODE == 10_000
    assert finding.cut is not None and (finding.cut.written, finding.cut.frees_bytes) == (
        "train.total",
        9 * 10_000 + A_NODE,
    )
    assert finding.storages == {0: ()} and finding.count == 0


@pytest.mark.parametrize(("a_step", "verdict"), [(20 * A_NODE, "leaks"), (100, "clean")])
def test_a_graph_that_is_larger_at_each_look_by_chance_is_no_growth(a_step: int, verdict: str) -> None:
    def heap(step: int) -> str:
        text = WEIGHT + "module train -> .loss -> tensor loss\n" + A_LOSS.format(name="loss")
        return text + chain("loss", 0, 20 * step)

    assert judged(heap, 0, counts=False, a_step=a_step).verdict == verdict


def test_nodes_that_no_counter_has_seen_are_told_too() -> None:
    def heap(step: int) -> str:
        return (
            WEIGHT
            + "module train -> .total -> tensor total\n"
            + A_LOSS.format(name="total")
            + chain("total", 0, 20 * step)
        )

    (finding,) = judged(heap, 20, counts=False).findings
    assert finding.severity == "leak" and finding.bytes_per_step == pytest.approx(8_000)


def test_the_graph_of_one_step_is_no_growth() -> None:
    def heap(_: int) -> str:
        return WEIGHT + "module train -> .loss -> tensor loss\n" + A_LOSS.format(name="loss") + chain("loss", 0, 20)

    assert judged(heap, 0).findings == ()


def losses(step: int, length: int) -> str:
    text = WEIGHT + f"module train -> .losses -> list losses {step}\n"
    for k in range(step):
        text += (
            f"list losses -> [{k}] -> tensor loss{k}\n"
            + A_LOSS.format(name=f"loss{k}")
            + chain(f"loss{k}", 100 * k, length)
        )
    return text


def test_kept_losses_are_told_with_their_graphs() -> None:
    (finding,) = judged(lambda step: losses(step, 30), 30).findings
    assert finding.severity == "leak" and finding.bytes_per_step == pytest.approx(30 * A_NODE + 4, rel=0.01)
    assert finding.cut is not None and finding.retained_bytes == finding.cut.frees_bytes
    assert finding.retained_bytes == pytest.approx(9 * (30 * A_NODE + 4), rel=0.01)
    assert finding.count == 9, "tensors' storages, not nodes"


def test_nodes_that_are_little_beside_what_the_tensors_hold_are_in_no_figure() -> None:
    def heap(step: int) -> str:
        return losses(step, 3).replace(" 4\n", " 1000000\n")

    (finding,) = judged(heap, 3, counts=False).findings
    assert not finding.keeps_graphs and finding.bytes_per_step == 1_000_000


def test_an_average_of_weights_is_one_leak_told_by_its_graphs() -> None:
    def heap(step: int) -> str:
        text = WEIGHT + "module train -> .shadow -> dict shadow 4\n"
        for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
            text += f"dict shadow -> ['{name}'] -> tensor {name}\ntensor {name} -> storage -> storage {name} 4096\n"
            text += f"tensor {name} -> .grad_fn -> node {name}0\n"
            for k in range(4 * step):
                text += f"node {name}{k} -> .next_functions[0] -> node {name}{k + 1}\n"
                text += f"node {name}{k} -> saved other -> tensor {name}of{k}\n"
                text += f"tensor {name}of{k} -> storage -> storage {name}of{k} 8\n"
        return text

    (finding,) = judged(heap, 16).findings
    assert (finding.rule, finding.severity, finding.subject) == ("retained-graph", "leak", "train.shadow")
    assert finding.bytes_per_step == pytest.approx(16 * (A_NODE + 8), rel=0.02)


def test_a_graph_makes_a_leak_of_tensors_that_are_too_little_for_one() -> None:
    def heap(step: int) -> str:
        tensors = WEIGHT + f"module train -> .outputs -> list outputs {step // 2}\n"
        for k in range(step // 2):
            tensors += f"list outputs -> [{k}] -> tensor o{k}\ntensor o{k} -> storage -> storage o{k} 2000\n"
            tensors += chain(f"o{k}", 10 * k, 1)
        return tensors

    (finding,) = judged(heap, 1, counts=False, min_bytes=None).findings
    assert (finding.subject, finding.severity, finding.keeps_graphs) == ("train.outputs", "leak", True)
