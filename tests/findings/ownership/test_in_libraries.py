"""Memory held only by library objects is attributed to the library; user names take precedence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.pipelining_heaps import KIB, Heap, peak_rank, storages

from leakscope.findings.model import Finding
from leakscope.findings.naming import as_expression, line_of
from leakscope.findings.rules.late_release import late_release_findings
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
