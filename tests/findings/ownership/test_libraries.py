"""What libraries hold, close and leak is theirs; names of the user take precedence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.examples import growth_finding as leak
from support.heap_text import heap_from
from support.judging import only
from support.pipelining_heaps import KIB, Heap, peak_rank, storages

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import HopStatus, Origin
from leakscope.findings.grouping import group_storages
from leakscope.findings.growth import series
from leakscope.findings.known_leaks import PACKAGE_ADVICE, known_leak, package_advice_for, passed
from leakscope.findings.library import origin_of
from leakscope.findings.model import Finding, Hop
from leakscope.findings.naming import as_expression, line_of
from leakscope.findings.rules.late_release import late_release_findings
from leakscope.graph.model import HeapGraph, ObjectKind
from leakscope.graph.paths import paths_from_roots

BIG = 2048 * KIB


def loop(held_by_it: str = "lib.Results", where: str = "") -> Heap:
    """`trainer.results.batch[0]` of the user's main(), where a call of the library's runs with the trainer."""
    heap = Heap()
    heap.add("main", "frame", root="frame", where="train.py:10")
    heap.add("fit", "frame", root="frame", where="<lib/trainer.py>:7")
    heap.add("trainer", "instance", "lib.Trainer")
    heap.add("results", "instance", held_by_it, where=where)
    heap.add("batch", "container", "list")
    heap.refer("main", "local trainer", "trainer", "local")
    heap.refer("fit", "local self", "trainer", "local")
    heap.refer("trainer", ".results", "results")
    heap.refer("results", ".batch", "batch")
    heap.refer("batch", "[0]", heap.tensor("input", BIG), "item")
    return heap


def found_in(heap: Heap, names: Sequence[str]) -> list[Finding]:
    graph = heap.graph()
    return late_release_findings(peak_rank(graph, storages(heap, *names)), 1)


@pytest.mark.parametrize(("type", "where"), [("train.Loop", "train.py:3"), ("__main__.Loop", "")])
def test_what_the_users_object_holds_inside_a_librarys_is_the_users(type: str, where: str) -> None:
    (finding,) = found_in(loop(type, where), ["input"])
    assert (finding.origin, finding.severity) == ("application", "avoidable")
    assert finding.cut is not None and finding.cut.frees_bytes == BIG


@pytest.mark.parametrize(
    "type", ["queue.Queue", "functools.partial", "torch.nn.modules.container.Sequential", "collections.deque"]
)
def test_what_both_build_with_is_whose_it_is_in(type: str) -> None:
    heap = loop(type)
    assert found_in(heap, ["input"]) == []
    heap.refer("main", "local results", "results", "local")
    (of_user,) = found_in(heap, ["input"])
    assert (of_user.origin, of_user.severity) == ("application", "avoidable")


def outputs(type: str, needed: int) -> Heap:
    """`out.logits` and `out['logits']` in the user's main(), and `out.loss`, which is still needed."""
    heap = Heap()
    heap.add("main", "frame", root="frame", where="train.py:10")
    heap.add("out", "container", type)
    heap.refer("main", "local out", "out", "local")
    heap.tensor("logits", BIG)
    heap.tensor("hidden", BIG)
    heap.refer("out", ".logits", "logits")
    heap.refer("out", "['logits']", "logits", "item")
    heap.refer("out", ".hidden", "hidden")
    heap.refer("out", ".loss", heap.tensor("loss", needed))
    return heap


def test_a_librarys_object_that_was_used_up_is_let_go_of_as_a_whole() -> None:
    (finding,) = found_in(outputs("lib.Output", KIB), ["logits", "hidden"])
    assert finding.cut is not None
    assert (finding.cut.reference, finding.cut.written, finding.cut.frees_bytes) == (
        "local out",
        "out in main()",
        2 * BIG,
    )


def test_a_librarys_object_that_holds_mostly_what_is_needed_is_not_let_go_of() -> None:
    assert found_in(outputs("lib.Model", 16 * BIG), ["logits", "hidden"]) == []


def private(outer: str, root: str = "") -> tuple[str, str]:
    """What is written for `trainer._strategy.net.metric.seen`, and its line."""
    heap = Heap()
    heap.add("main", "frame", root="frame", where="train.py:10")
    heap.add("trainer", "instance", outer, where="train.py:1" if outer.startswith("train") else "")
    heap.add("strategy", "instance", "lib.Strategy")
    heap.add("net", "nn.Module", "train.Net", root=root, where="train.py:3")
    heap.add("metric", "nn.Module", "lib.Metric")
    heap.add("seen", "container", "list")
    heap.refer("main", "local trainer", "trainer", "local")
    heap.refer("trainer", "._strategy", "strategy")
    heap.refer("strategy", ".net", "net")
    heap.refer("net", ".metric", "metric", where="train.py:5")
    heap.refer("metric", ".seen", "seen")
    heap.refer("seen", "[0]", heap.tensor("input"), "item")
    graph = heap.graph()
    way = paths_from_roots(graph).path_to(graph, heap.objects["seen"].index)
    return as_expression(graph, way, way[-1]), line_of(graph, way, way[-1])


def test_past_a_librarys_private_attribute_the_users_class_says_self() -> None:
    assert private("lib.Trainer") == ("self.metric.seen in Net", "train.py:5")
    assert private("lib.Trainer", "native") == ("self.metric.seen in Net", "train.py:5")
    assert private("train.Trainer") == ("trainer._strategy.net.metric.seen in main()", "")


STAGE = "torch.distributed.pipelining.stage."
CHUNKS = [(STAGE + "PipelineStage", "._forward_chunk_states"), ("dict", "[i]")]


@pytest.mark.parametrize(
    ("hops", "holder"),
    [
        ([(STAGE + "PipelineStage", ".fwd_cache[i]"), ("tuple", "[0]")], "PipelineStage.fwd_cache"),
        ([*CHUNKS, (STAGE + "_ForwardChunkState", ".live_outputs")],
         "PipelineStage._forward_chunk_states[i].live_outputs"),
        ([*CHUNKS, (STAGE + "_ForwardChunkState", ".input_values")], "PipelineStage._forward_chunk_states"),
        ([("train.PipelineStage", "._forward_chunk_states")], ""),
    ],
    ids=["2.13", "2.15, an output", "2.15, an input", "a script's own"],
)  # fmt: skip
def test_what_a_stage_keeps_of_a_microbatch_is_known(hops: list[tuple[str, str]], holder: str) -> None:
    trace = [Hop("", kind, ObjectKind.INSTANCE, "", HopStatus.EXPECTED, reference) for kind, reference in hops]
    found = known_leak(trace)
    assert (found.holder if found else "") == holder


HOOK = """
network test.Net where=test.py:3 freed=1 -> ._hooks -> dict d freed=1
dict d -> [0] -> object torch.Hook freed=1
object torch.Hook -> .__wrapped__ -> method Base.clear where=<lib/base.py>:7 freed=1
method Base.clear -> .__self__ -> network test.Net
network test.Net -> .weight -> tensor t freed=1
tensor t -> storage -> storage s 400 freed=1
"""
STRATEGY = """
network test.Net where=test.py:3 freed=1 -> .strategy -> object lib.Strategy freed=1
object lib.Strategy -> .model -> network test.Net
network test.Net -> .weight -> tensor t freed=1
tensor t -> storage -> storage s 400 freed=1
"""
CLASS = """
class {} freed=1 -> .__mro__ -> class {}
class {} -> .called_with -> tensor t freed=1
tensor t -> storage -> storage s 400 freed=1
"""


def candidate(text: str, set_by: dict[str, str]) -> Candidate:
    """The garbage of a heap; `set_by` by the name of an attribute."""
    graph = heap_from(text)
    names = [graph.reference(index).name for index in range(len(graph.holder))]
    graph = replace(graph, type=graph.name, set_by={k: set_by[name] for k, name in enumerate(names) if name in set_by})
    (group,) = group_storages(graph)
    return Candidate(0, 1, graph, group, series([1], {1: group.bytes}), 0.0, False)


@pytest.mark.parametrize(
    ("text", "set_by", "whose_it_is"),
    [
        (HOOK, {"._hooks": "torch"}, ("library", "lib")),
        (HOOK, {}, ("application", "")),
        (HOOK.replace("<lib/base.py>:7", "test.py:9"), {"._hooks": "torch"}, ("application", "")),
        (HOOK.replace("<lib/base.py>:7", "<torch/nn.py>:7"), {"._hooks": "torch"}, ("application", "")),
        (STRATEGY, {".strategy": "lib", ".model": "lib"}, ("library", "lib")),
        (STRATEGY, {".strategy": "lib"}, ("application", "")),
        (STRATEGY, {".model": "lib"}, ("application", "")),
        (STRATEGY.replace(".model", "._model"), {".strategy": "lib"}, ("library", "lib")),
        (STRATEGY, {".strategy": "torch", ".model": "torch"}, ("application", "")),
        (CLASS.replace("{}", "unittest.mock.MagicMock"), {}, ("library", "unittest")),
        (CLASS.replace("{}", "test.Made"), {}, ("application", "")),
        (CLASS.replace("{}", "types.Made"), {}, ("application", "")),
    ],
)
def test_a_cycle_is_of_whoever_closes_it(text: str, set_by: dict[str, str], whose_it_is: tuple[str, str]) -> None:
    assert origin_of(candidate(text, set_by)) == whose_it_is


def test_what_the_user_closes_beside_it_is_the_users_to_cut() -> None:
    found = candidate(STRATEGY + "network test.Net -> .mine -> network test.Net", {".strategy": "lib", ".model": "lib"})
    names = [found.graph.reference(index).name for index in range(len(found.graph.holder))]
    assert origin_of(found, [names.index(".mine")]) == ("application", "")


_LIGHTNING = "train.Net<lightning.pytorch.core.module.LightningModule>"
CASES = {
    "curve": ("torchmetrics.classification.auroc.BinaryAUROC .preds, list [i], torch.Tensor storage", "thresholds=100"),
    "values": ("torchmetrics.aggregation.CatMetric .value, list [i], torch.Tensor storage", "MeanMetric"),
    "list state": (
        "torchmetrics.regression.spearman.SpearmanCorrCoef .target, list [i], torch.Tensor storage",
        "reset()",
    ),
    "own metric": ("train.Seen<torchmetrics.metric.Metric> .seen, list [i], torch.Tensor storage", "reset()"),
    "own list": (f"{_LIGHTNING} .kept, list [i], torch.Tensor .grad_fn, MulBackward0 saved self", "on_epoch=True"),
    "list of dicts": (f"{_LIGHTNING} .outputs, list [i], dict ['loss'], torch.Tensor storage", "on_epoch=True"),
    "older lightning": (
        "train.Net<pytorch_lightning.core.module.LightningModule> .kept, list [i], torch.Tensor storage",
        "on_epoch=True",
    ),
    "adapters": (
        "peft.tuners.lora.layer.Linear .lora_A, torch.nn.modules.container.ModuleDict ['task{i}'], "
        "torch.nn.modules.linear.Linear .weight",
        "delete_adapter",
    ),
    "outputs": ("list [i], transformers.cache_utils.DynamicCache .layers, list [i], torch.Tensor storage", "use_cache"),
    "one cache": ("transformers.cache_utils.DynamicCache .layers, list [0], torch.Tensor storage", "StaticCache"),
    "prepared": (
        "accelerate.accelerator.Accelerator ._models, list [i], torch.nn.modules.linear.Linear .weight",
        "free_memory",
    ),
}
OTHERS = (
    "train.AUROC .preds, list [i], torch.Tensor storage",
    "module .torchmetrics, list [i], torch.Tensor storage",
    f"{_LIGHTNING} .blocks, list [i], torch.nn.modules.linear.Linear .weight, torch.nn.parameter.Parameter storage",
    f"{_LIGHTNING} .last, torch.Tensor storage",
    "train.DynamicCache .layers, list [0], torch.Tensor storage",
    "torchmetrics.classification.auroc.BinaryAUROC .confmat, torch.Tensor storage",
)


def trace_of(text: str) -> tuple[Hop, ...]:
    hops = []
    for part in ("frame local it, " + text).split(", "):
        words, reference = part.split(maxsplit=1)
        type_, _, base = words.removesuffix(">").partition("<")
        hops.append(Hop("an object", type_, ObjectKind.INSTANCE, "", HopStatus.LEAKED, reference, base=base))
    return tuple(hops)


@pytest.mark.parametrize("case", CASES)
def test_a_package_says_what_to_write_instead(case: str) -> None:
    text, word = CASES[case]
    finding = replace(leak(), trace=trace_of(text))
    saying = package_advice_for(finding)
    assert saying is not None and word in saying.cure, passed(finding.trace)
    assert package_advice_for(replace(finding, origin=Origin.LIBRARY)) is None


@pytest.mark.parametrize("text", OTHERS)
def test_names_of_the_user_s_own_say_nothing(text: str) -> None:
    assert package_advice_for(replace(leak(), trace=trace_of(text))) is None


def test_every_saying_is_tried_and_says_where_it_is_from() -> None:
    messages: Sequence[object] = [
        package_advice_for(replace(leak(), trace=trace_of(text))) for text, _ in CASES.values()
    ]
    assert {id(saying) for saying in messages} == {id(saying) for saying in PACKAGE_ADVICE}
    assert all(
        saying.source and saying.cure.endswith(".") and not saying.what.endswith(".") for saying in PACKAGE_ADVICE
    )


@pytest.mark.parametrize(
    ("type", "where", "severity"), [("torch.optim.lbfgs.LBFGS", "", "note"), ("train.Mine", "train.py:3", "leak")]
)
def test_a_history_is_bounded_by_the_options_of_a_librarys_optimizer(type: str, where: str, severity: str) -> None:
    def heap(step: int) -> HeapGraph:
        heap = Heap()
        heap.add("main", "frame", root="frame", where="train.py:10")
        heap.add("optimizer", "optimizer", type, where=where)
        for name, kind in (("state", "collections.defaultdict"), ("of one", "dict"), ("old", "list")):
            heap.add(name, "container", kind)
        heap.refer("main", "local optimizer", "optimizer", "local")
        heap.refer("optimizer", ".state", "state")
        heap.refer("state", "[0]", "of one", "item")
        heap.refer("of one", "['old']", "old", "item")
        for k in range(step):
            heap.refer("old", f"[{k}]", heap.tensor(f"t{k}", BIG, crossed=False), "item")
        return heap.graph()

    assert only(heap).severity == severity
