"""What of the items of one container, the names of one object and the nodes of one graph is one finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.heap_text import heap_from
from support.judging import MIB, items, judged, only, tensor

from leakscope.findings.model import Finding, Findings
from leakscope.findings.naming import mask_ids
from leakscope.findings.nontensor import _ARRAY
from leakscope.findings.rules.step_growth import GrowsIn, GrowthFacts
from leakscope.graph.model import KINDS, HeapGraph, ObjectKind

CYCLE = "network m#{k} -> .hook -> method hook#{k}\nmethod hook#{k} -> .__self__ -> network m#{k}\n"


MODULE = (
    "{holder} -> [{k}] -> network m#{k}\n"
    "network m#{k} -> .weight -> parameter w{k}\nparameter w{k} -> storage -> storage w{k} {small}\n"
    "network m#{k} -> .train_inputs -> list inputs{k}\nlist inputs{k} -> [0] -> tensor x{k}\n"
    "tensor x{k} -> storage -> storage x{k} {large}\n"
)


OPTIMIZER = (
    "{holder} -> [{k}] -> object adam#{k}\nobject adam#{k} -> .step -> method step#{k}\n"
    "method step#{k} -> .__self__ -> object adam#{k}\nobject adam#{k} -> .state -> dict state{k}\n"
    "dict state{k} -> [0] -> dict entry{k}\n"
    "dict entry{k} -> ['exp_avg'] -> tensor a{k}\ntensor a{k} -> storage -> storage a{k} {large}\n"
    "object adam#{k} -> .last -> tensor b{k}\ntensor b{k} -> storage -> storage b{k} {small}\n"
)


RECORD = (
    "{holder} -> [{k}] -> dict record{k}\n"
    "dict record{k} -> ['logits'] -> tensor x{k}\ntensor x{k} -> storage -> storage x{k} {large}\n"
    "dict record{k} -> ['more'] -> list more{k}\nlist more{k} -> [0] -> tensor y{k}\n"
    "tensor y{k} -> storage -> storage y{k} {small}\n"
)


def kept(item: str, holder: str = "", large: int = MIB, small: int = MIB // 4) -> Finding:
    """What is found of a list `kept` that gains such an item in each step; `holder` is what else the module has."""

    def heap(step: int) -> str:
        text = (holder or "module train -> .kept -> list kept {items}\n").format(items=step)
        return text + "".join(item.format(holder="list kept", k=k, large=large, small=small) for k in range(step))

    return max(judged(heap, run={"min_bytes": 64 << 10}).findings, key=lambda finding: finding.retained_bytes)


@pytest.mark.parametrize(
    ("item", "after_gc"),
    [(MODULE, False), (MODULE + CYCLE, True), (OPTIMIZER, True), (RECORD, False)],
    ids=["modules", "modules with hooks", "optimizers", "records"],
)
def test_all_that_items_bring_is_one_leak_of_their_container(item: str, after_gc: bool) -> None:
    finding = kept(item)
    assert finding.cut is not None and (finding.cut.written, finding.cut.after_gc) == ("train.kept", after_gc)
    assert finding.retained_bytes == finding.cut.frees_bytes == 9 * (MIB + MIB // 4)
    assert finding.bytes_per_step == MIB + MIB // 4


def test_the_container_is_cut_and_not_what_holds_it() -> None:
    holder = (
        "module train -> .trainer -> object trainer\nobject trainer -> .kept -> list kept {items}\n"
        "object trainer -> .net -> network net\nnetwork net -> .weight -> parameter p\n"
        f"parameter p -> storage -> storage p {100 * MIB}\n"
    )
    finding = kept(MODULE + CYCLE, holder)
    assert finding.cut is not None and finding.cut.written == "train.trainer.kept"


def test_a_cycle_that_gc_cannot_see_is_not_freed_by_it() -> None:
    hidden = "network m#{k} -> .seen -> tensor l{k}\ntensor l{k} -> .grad_fn -> node N{k}\nnode N{k} -> saved self -> "
    finding = kept(MODULE + hidden + "network m#{k}\n")
    assert finding.cut is None or not finding.cut.after_gc


@pytest.mark.parametrize(("small", "bound", "severity"), [(20, "", "leak"), (4, "", "note"), (20, "maxlen=20", "note")])
def test_small_storages_of_one_container_are_judged_by_their_sum(small: int, bound: str, severity: str) -> None:
    finding = kept(RECORD, f"module train -> .kept -> list kept {{items}} {bound}\n", 50 << 10, small << 10)
    assert (finding.severity, finding.bytes_per_step) == (severity, (50 + small) << 10)


def attributes(names: Callable[[int], Sequence[str]], more: str = "") -> Callable[[int], str]:
    """A module's `net` with tensors of these names after a step."""
    return lambda step: (
        "module train -> .net -> object net\nmodule train -> .groups -> list groups 9\n"
        + "".join(f"object net -> .{name} -> {tensor(name)}{more.format(name=name)}" for name in names(step))
    )


def clients(step: int) -> list[str]:
    return [f"client{k}" for k in range(step)]


@pytest.mark.parametrize(
    ("names", "more", "written", "also", "gained"),
    [
        (clients, "", "train.net.client{i}", (), 9),
        (clients, "list groups -> [{name}] -> tensor {name}\n", "train.net.client{i}", ("train.groups",), 9),
        # those that were there at the first look are not known to be of them
        (lambda step: ["weight", *[f"k{'x' * k}" for k in range(step)]], "", "train.net.{name}", (), 6),
    ],
    ids=["numbers", "held twice", "without a pattern"],
)
def test_attributes_under_new_names_are_one_leak(
    names: Callable[[int], Sequence[str]], more: str, written: str, also: tuple[str, ...], gained: int
) -> None:
    finding = only(attributes(names, more))
    assert finding.cut is not None and (finding.cut.written, finding.cut.also) == (written, also)
    assert (finding.bytes_per_step, finding.retained_bytes, finding.cut.frees_bytes) == (
        MIB,
        gained * MIB,
        gained * MIB,
    )


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
    found = judged(attributes(names))
    assert (found.verdict, found.findings) == ("clean", ())


def test_holders_that_gain_the_same_names_together_are_one_leak() -> None:
    def adapters(step: int) -> str:
        return "module train -> .net -> object net\n" + "".join(
            f"object net -> .{layer} -> object {layer}\n"
            + "".join(f"object {layer} -> .client{k} -> {tensor(f'{layer}{k}')}" for k in range(step))
            for layer in "ab"
        )

    finding = only(adapters)
    assert (finding.bytes_per_step, finding.retained_bytes) == (2 * MIB, 18 * MIB)
    assert finding.cut is not None and finding.cut.written == "train.net.a.client{i}"
    assert finding.cut.frees_bytes == 18 * MIB and len(finding.cut.references[0].indexes) == 18


Keys = Callable[[int], Sequence[str | int]]


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


def tensors(keys: Callable[[int], Sequence[str]], size: Callable[[int], int] = lambda _: MIB) -> Callable[[int], str]:
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
        (tensors(lambda _: ["h", "c"], lambda step: step * MIB), ["['c']", "['h']"]),
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
    finding = only(garbage(name))
    assert (finding.severity, finding.retained_bytes, finding.bytes_per_step) == ("leak", 9 * MIB, MIB)
    assert finding.cut is not None and "{i}" in finding.cut.written and name(8) not in finding.cut.written


def test_garbage_of_attributes_that_stay_is_told_apart() -> None:
    def heap(step: int) -> str:
        of_layer = (garbage(lambda _, n=n: f"layer{n}", lambda s, n=n: range(50 * n, 50 * n + s)) for n in (1, 2))
        return "".join(of_one(step) for of_one in of_layer)

    found = judged(heap)
    assert len(found.findings) == 2 and all("layer" in written for written in cuts(found))


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
    ("keys", "reported"),
    [
        (("weight", "bias"), ["train.history"]),
        (("rnn.weight_ih_l0", "rnn.bias_ih_l0", "scale"), ["train.history"]),
        (("weight", "loss"), ["train.history['loss']", "train.history['weight']"]),
        (("class_weight", "bias_error"), ["train.history['bias_error']", "train.history['class_weight']"]),
    ],
)
def test_the_names_of_a_modules_parameters_are_data(keys: Sequence[str], reported: list[str]) -> None:
    assert cuts(judged(tensors(lambda _: keys, lambda step: step * MIB))) == reported


A_NODE = 500
WEIGHT = "module train -> .net -> tensor weight\ntensor weight -> storage -> storage weight 4096\n"


def chain(name: str, count: int, first: int = 0, size: int = 4) -> str:
    """A tensor with so many grad nodes behind it, the last of them that of the weight."""
    text = f"tensor {name} -> storage -> storage {name} {size}\ntensor {name} -> .grad_fn -> node N{first}\n"
    for k in range(first, first + count):
        after = f"node N{k + 1}" if k < first + count - 1 else "node accumulate"
        text += f"node N{k} -> .next_functions[0] -> {after}\n"
    return text + "node accumulate -> .variable -> tensor weight\n"


def total(step: int) -> str:
    return f"{WEIGHT}module train -> .total -> tensor total\n{chain('total', 20 * step)}"


def losses(length: int, size: int = 4) -> Callable[[int], str]:
    return lambda step: (
        f"{WEIGHT}module train -> .losses -> list losses {step}\n"
        + "".join(
            f"list losses -> [{k}] -> tensor loss{k}\n{chain(f'loss{k}', length, 100 * k, size)}" for k in range(step)
        )
    )


def counted(a_step: int) -> Callable[[int], int]:
    return lambda step: (1 << 20) + step * a_step


def test_an_accumulator_keeps_the_graph_of_every_step() -> None:
    finding = only(total, seen=counted(20 * A_NODE))
    assert (finding.rule, finding.severity, finding.keeps_graphs) == ("retained-graph", "leak", True)
    assert (finding.bytes_per_step, finding.storages, finding.count) == (20 * A_NODE, {0: ()}, 0)
    assert finding.cut is not None
    assert (finding.cut.written, finding.cut.frees_bytes) == ("train.total", 9 * 20 * A_NODE + A_NODE)
    assert only(total).bytes_per_step == pytest.approx(8_000), "of nodes that no counter has seen"


def test_a_graph_that_is_larger_at_each_snapshot_by_chance_is_no_growth() -> None:
    assert judged(total, counted=counted(100)).verdict == "clean"
    assert judged(lambda _: total(1)).findings == ()


def test_losses_are_counted_with_their_graphs() -> None:
    finding = only(losses(30), seen=counted(30 * A_NODE))
    assert finding.severity == "leak" and finding.bytes_per_step == pytest.approx(30 * A_NODE + 4, rel=0.01)
    assert finding.cut is not None and finding.retained_bytes == finding.cut.frees_bytes
    assert finding.retained_bytes == pytest.approx(9 * (30 * A_NODE + 4), rel=0.01)
    assert finding.count == 9, "tensors' storages, not nodes"


def test_nodes_that_are_little_beside_their_tensors_are_not_counted() -> None:
    finding = only(losses(3, size=1_000_000))
    assert not finding.keeps_graphs and finding.bytes_per_step == 1_000_000


def test_a_graph_makes_a_leak_of_tensors_that_are_too_little_for_one() -> None:
    finding = only(lambda step: losses(1, size=2000)(step // 2))
    assert (finding.subject, finding.severity, finding.keeps_graphs) == ("train.losses", "leak", True)


def test_arrays_are_memory_as_tensors_are() -> None:
    def heap(step: int) -> HeapGraph:
        rows = "".join(f"list rows -> [{k}] -> object array{k} {MIB}\n" for k in range(step))
        graph = heap_from(f"module train -> .rows -> list rows {step}\n{rows}")
        return replace(graph, kind=np.where(graph.kind == KINDS.index(ObjectKind.INSTANCE), _ARRAY, graph.kind))

    finding = only(heap)
    assert (finding.subject, finding.severity, finding.noun) == ("train.rows", "leak", "object object")
    assert finding.retained_bytes == 9 * MIB


def test_a_list_that_is_a_default_argument_grows_in_it() -> None:
    keep = "module train -> .keep -> function keep\nfunction keep -> .__defaults__ -> list all 1\n"
    finding = only(lambda step: f"{keep}list all -> [0] -> list rows {step}\n{items('list rows', step)}")
    assert isinstance(finding.facts, GrowthFacts) and finding.facts.grows_in == GrowsIn.DEFAULT_ARGUMENT
