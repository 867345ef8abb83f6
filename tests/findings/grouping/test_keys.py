"""Which keys of dicts and which numbers in names tell findings apart, and which are data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from support.heap_text import heap_from

from leakscope.findings.judge import judge
from leakscope.findings.model import Finding, Findings
from leakscope.findings.naming import mask_ids
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

STEPS = (3, 5, 7, 9)
TENSOR = 1 << 20

Keys = Callable[[int], Sequence[str | int]]


def judged(heap: Callable[[int], str], looked_at: Sequence[int] = STEPS) -> Findings:
    looks = tuple(HeapSnapshot(step, "step", heap_from(heap(step)), None, 0) for step in looked_at)
    steps = tuple(Step(n, 0.1, None, None) for n in range(1, 21))
    return judge(Run(("train.py",), (Rank(0, steps, looks, Ended("finished", 0, 20)),), 1, "cpu", "2.13.0", "0"))


def tensor(name: str, size: int = TENSOR, freed: str = "") -> str:
    return f"tensor {name} {freed}\ntensor {name} -> storage -> storage {name} {size} {freed}\n"


def lists(keys: Keys, container: str = "dict", items: Callable[[int], int] = lambda step: step) -> Callable[[int], str]:
    """A container `history` of lists under these keys, with so many tensors each after a step."""

    def heap(step: int) -> str:
        text = f"module train -> .history -> {container} h {len(keys(step))}\n"
        for key in keys(step):
            text += f"{container} h -> [{key!r}] -> list of-{key} {items(step)}\n"
            for k in range(items(step)):
                text += f"list of-{key} -> [{k}] -> {tensor(f'{key}{k}')}"
        return text

    return heap


def tensors(
    keys: Callable[[int], Sequence[str]], size: Callable[[int], int] = lambda _: TENSOR
) -> Callable[[int], str]:
    """A dict `history` of tensors."""

    def heap(step: int) -> str:
        named = keys(step)
        text = f"module train -> .history -> dict h {len(named)}\n"
        return text + "".join(f"dict h -> [{key!r}] -> {tensor(key, size(step))}" for key in named)

    return heap


def cuts(found: Findings) -> list[str]:
    return sorted(finding.cut.written for finding in found.findings if finding.cut)


def coming(step: int) -> list[str]:
    return [f"user-{'x' * k}" for k in range(1, step)]


@pytest.mark.parametrize(
    ("heap", "expected"),
    [
        (lists(lambda _: ["a", "b"]), ["['a']", "['b']"]),
        (lists(lambda step: ["train", "val"] if step > 3 else ["train"]), ["['train']", "['val']"]),
        (tensors(lambda _: ["h", "c"], lambda step: step * TENSOR), ["['c']", "['h']"]),
        (lists(lambda _: [f"layer-{'x' * k}" for k in range(20)]), ["[...]"]),
        (lists(lambda _: [0, 1, 2], "list"), ["[i]"]),
        (lists(coming, items=lambda _: 1), [""]),
        (lists(coming), [""]),
        (tensors(coming), [""]),
        (tensors(lambda step: [f"step-{k}" for k in range(step)]), [""]),
    ],
    ids=[
        "two lists", "a second list later", "two running tensors", "too many to be written out", "positions",
        "one list a key", "keys and items", "cache", "step numbers",
    ],
)  # fmt: skip
def test_what_is_cut_of_a_dict(heap: Callable[[int], str], expected: list[str]) -> None:
    found = judged(heap)
    assert cuts(found) == [f"train.history{key}" for key in expected]
    held = sum(finding.retained_bytes for finding in found.findings)
    assert sum(finding.cut.frees_bytes for finding in found.findings if finding.cut) == held
    assert len({finding.fingerprint for finding in found.findings}) == len(expected)


def test_a_second_list_is_new_to_a_baseline_of_the_first() -> None:
    alone = judged(lists(lambda _: ["a"])).findings
    both = {finding.fingerprint for finding in judged(lists(lambda _: ["a", "b"])).findings}
    assert len(both) == 2 and {finding.fingerprint for finding in alone} < both


@pytest.mark.parametrize("keys", [lambda _: ["x", "y"], lambda step: [f"k{n}" for n in range(step, step + 3)]])
def test_a_dict_that_does_not_grow_is_clean(keys: Callable[[int], Sequence[str]]) -> None:
    assert judged(tensors(keys)).verdict == "clean"


def garbage(name: Callable[[int], str], numbers: Callable[[int], Sequence[int]] = range) -> Callable[[int], str]:
    """Objects that hold themselves through a function that each has under a name."""

    def heap(step: int) -> str:
        text = ""
        for k in numbers(step):
            own, function = f"object Tracer#{k}", f"function {name(k)}"
            text += f"{own} freed=1 -> .{name(k)} -> {function} freed=1\n{function} -> closure self -> {own}\n"
            text += f"{own} -> .kept -> {tensor(f't{k}', freed='freed=1')}"
        return text

    return heap


def only(found: Findings) -> Finding:
    (finding,) = found.findings
    return finding


@pytest.mark.parametrize(
    "name",
    [
        lambda k: f"__tracer_{140234981277328 + 48 * k}",
        lambda k: f"__tracer_{(k + 1) * 0x9E3779B97F4A7C15 % (1 << 64):016x}",
        lambda k: f"tracer_{k}",
    ],
    ids=["address", "hash", "count"],
)
def test_garbage_whose_names_carry_a_number_is_one_leak(name: Callable[[int], str]) -> None:
    finding = only(judged(garbage(name)))
    assert (finding.severity, finding.retained_bytes, finding.bytes_per_step) == ("leak", 9 * TENSOR, TENSOR)
    assert finding.cut is not None and "{i}" in finding.cut.written and name(8) not in finding.cut.written


def test_garbage_of_attributes_that_stay_is_told_apart() -> None:
    def heap(step: int) -> str:
        of_layer = (garbage(lambda _, n=n: f"layer{n}", lambda s, n=n: range(50 * n, 50 * n + s)) for n in (1, 2))
        return "".join(of_one(step) for of_one in of_layer)

    found = judged(heap)
    assert len(found.findings) == 2 and all("layer" in written for written in cuts(found))


def test_classes_made_by_each_step_are_one_leak_of_what_collects_them() -> None:
    def heap(step: int) -> str:
        text = f"module train -> .describe -> dict cache {step}\n"
        for k in range(step):
            text += f"dict cache -> key <type> -> class train.Head{k}\n"
            text += f"class train.Head{k} -> .table -> {tensor(f't{k}')}"
        return text

    finding = only(judged(heap))
    assert finding.cut is not None and finding.cut.written == "train.describe"
    assert (finding.severity, finding.retained_bytes) == ("leak", 9 * TENSOR)


@pytest.mark.parametrize(
    ("name", "masked"),
    [
        ("run_140234981277328", "run_{i}"),
        ("at 0x7f3a2c", "at {i}"),
        ("fn_0a1b2c3d4e5f", "fn_{i}"),
        ("c9bf9e57-1685-4c89-bafb-ff5af830be8a", "{i}"),
        ("layer1", "layer1"),
        ("fc2048", "fc2048"),
        ("decoder_cafe", "decoder_cafe"),
    ],
)
def test_what_is_a_names_in_one_run_alone_is_masked(name: str, masked: str) -> None:
    assert mask_ids(name) == masked


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (("weight", "bias"), ["train.history"]),
        (("rnn.weight_ih_l0", "rnn.bias_ih_l0", "scale"), ["train.history"]),
        (("weight", "loss"), ["train.history['loss']", "train.history['weight']"]),
        (("class_weight", "bias_error"), ["train.history['bias_error']", "train.history['class_weight']"]),
    ],
)
def test_the_names_of_a_modules_parameters_are_data(keys: Sequence[str], told: list[str]) -> None:
    assert cuts(judged(tensors(lambda _: keys, lambda step: step * TENSOR))) == told
