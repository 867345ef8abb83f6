"""Attributes added under ever new names are one growth of their holder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from support.heap_text import heap_from

from leakscope.findings.grouping import growing_names, shared
from leakscope.findings.judge import judge
from leakscope.findings.model import Findings
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

STEPS = (3, 5, 7, 9)
TENSOR = 1 << 20


def judged(names: Callable[[int], Sequence[str]], more: str = "") -> Findings:
    """What is said of a module's `net` that has tensors of these names when it is looked at after a step."""

    def heap(step: int) -> str:
        text = "module train -> .net -> object net\nmodule train -> .groups -> list groups 9\n"
        for name in names(step):
            text += f"object net -> .{name} -> tensor {name}\ntensor {name} -> storage -> storage {name} {TENSOR}\n"
            text += more.format(name=name)
        return text

    return judged_of(heap)


def judged_of(heap: Callable[[int], str]) -> Findings:
    """What is said of a module that the text tells of after each of the steps that are looked at."""
    looks = tuple(HeapSnapshot(s, "step", heap_from(heap(s)), None, 0) for s in STEPS)
    steps = tuple(Step(n, 0.1, None, None) for n in range(1, 21))
    return judge(Run(("train.py",), (Rank(0, steps, looks, Ended("finished", 0, 20)),), 1, "cpu", "2.13.0", "0"))


def test_names_that_differ_by_a_number_are_one_leak_of_their_holder() -> None:
    found = judged(lambda step: [f"client{k}" for k in range(step)])
    (finding,) = found.findings
    assert found.exit_status == 23
    assert finding.cut is not None and finding.cut.written == "train.net.client{i}"
    assert (finding.bytes_per_step, finding.retained_bytes, finding.cut.frees_bytes) == (TENSOR, 9 * TENSOR, 9 * TENSOR)


def test_names_without_a_pattern_are_one_leak_where_they_come_at_each_look() -> None:
    found = judged(lambda step: ["weight", *[f"k{'x' * k}" for k in range(step)]])
    (finding,) = found.findings
    assert finding.cut is not None and finding.cut.written == "train.net.{name}"
    assert finding.retained_bytes == 6 * TENSOR, "those that were there at the first look are not known to be of them"


@pytest.mark.parametrize(
    "names",
    [
        lambda step: [f"client{k}" for k in range(step - 3, step)],
        lambda step: [f"conv{k}" for k in range(8)],
        lambda step: ["first", "second"][: step // 2 - 1],
        lambda step: [f"conv{k}" for k in range(min(step, 4))],
    ],
    ids=["window", "layers", "made when first used", "came to rest"],
)
def test_names_that_are_no_more_at_the_end_are_no_leak(names: Callable[[int], Sequence[str]]) -> None:
    found = judged(names)
    assert (found.verdict, found.findings) == ("clean", ())


def test_what_else_holds_them_is_cut_together_with_all_of_them() -> None:
    groups = "list groups -> [{name}] -> tensor {name}\n"
    (finding,) = judged(lambda step: [f"client{k}" for k in range(step)], groups).findings
    assert finding.cut is not None and finding.cut.frees_bytes == 9 * TENSOR
    assert (finding.cut.written, finding.cut.also) == ("train.net.client{i}", ("train.groups",))


def test_layers_keep_their_names_where_what_grows_is_inside_of_them() -> None:
    keys = [{("root", f".layer{k} Layer", f".seen{n} tensor") for k in range(2) for n in range(step)} for step in STEPS]
    growing = growing_names(keys)
    assert shared(("root", ".layer1 Layer", ".seen12 tensor"), growing) == (
        ("root", ".layer1 Layer", ".seen{i} tensor"),
        2,
        ".seen{i}",
    )
    weight = ("root", ".layer1 Layer", ".weight tensor")
    assert shared(weight, growing) == (weight, -1, "")


def test_holders_that_gain_the_same_names_at_the_same_looks_are_one_leak() -> None:
    def adapters(step: int) -> str:
        text = "module train -> .net -> object net\n"
        for layer in "ab":
            text += f"object net -> .{layer} -> object {layer}\n"
            for k in range(step):
                text += f"object {layer} -> .client{k} -> tensor {layer}{k}\n"
                text += f"tensor {layer}{k} -> storage -> storage {layer}{k} {TENSOR}\n"
        return text

    (finding,) = judged_of(adapters).findings
    assert finding.bytes_per_step == 2 * TENSOR and finding.retained_bytes == 18 * TENSOR
    assert finding.cut is not None and finding.cut.written == "train.net.a.client{i}"
    assert finding.cut.frees_bytes == 18 * TENSOR and len(finding.cut.references[0].indexes) == 18
