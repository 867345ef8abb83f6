"""What no operation of the watched steps touched: told where only variables that nobody reads again hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from support.pipelining_heaps import KIB, Heap, peak_rank, storages

from leakscope.findings.facts import Severity
from leakscope.findings.model import Cut, CutReference, Finding
from leakscope.findings.rules.idle_memory import UntouchedFacts, idle_findings
from leakscope.run.model import Rank
from leakscope.run.rows import UntouchedStorage, WatchedStep

BIG = 1024 * KIB


def main_with(*variables: str) -> Heap:
    """main() with variables that each hold a tensor of their own."""
    heap = Heap()
    heap.add("main", "frame", root="frame", where="train.py:10")
    for name in variables:
        heap.refer("main", f"local {name}", heap.tensor(name, BIG, crossed=False), "local")
    return heap


def rank_of(heap: Heap, untouched: Sequence[str], unread: Sequence[tuple[str, str]] = (), **changes: Any) -> Rank:
    """The rank whose watched step touched all but these tensors; `unread` are (holder, reference)."""
    graph = heap.graph()
    rank = peak_rank(graph, ())
    step = next(row for row in rank.lifetimes if isinstance(row, WatchedStep))
    reported = tuple((heap.objects[holder].index, name) for holder, name in unread)
    rows = tuple(UntouchedStorage(storage) for storage in storages(heap, *untouched))
    watched: Rank = replace(rank, lifetimes=(replace(step, unread=reported, **changes), *rows))
    return watched


def found(heap: Heap, untouched: Sequence[str], unread: Sequence[tuple[str, str]] = (), **more: Any) -> list[Finding]:
    return idle_findings(rank_of(heap, untouched, unread, **more), 64 * KIB)


def test_a_checkpoint_left_in_a_variable_is_told_with_what_to_delete() -> None:
    (finding,) = found(main_with("ckpt", "val"), ["ckpt", "val"], [("main", "local ckpt")])
    assert (finding.rule, finding.severity, finding.bytes_per_step) == ("idle-memory", "avoidable", 0.0)
    assert finding.cut is not None and finding.cut.frees_bytes == finding.retained_bytes == BIG


def test_its_title_has_what_is_gained_on_the_device_and_on_the_host() -> None:
    (finding,) = found(main_with("ckpt"), ["ckpt"], [("main", "local ckpt")])
    assert isinstance(finding.facts, UntouchedFacts)
    title = replace(finding.facts, bytes=3 * BIG, host_bytes=BIG).title_for(finding)
    assert "2.00 MiB" in title and "1.00 MiB" in title


def test_what_is_read_later_or_was_touched_is_not_told() -> None:
    assert found(main_with("val"), ["val"]) == []
    assert found(main_with("batch"), [], [("main", "local batch")]) == []
    heap = main_with("ckpt")
    heap.add("trainer", "instance", "train.Trainer", root="native")
    heap.refer("trainer", ".start", "ckpt")
    assert found(heap, ["ckpt"], [("main", "local ckpt")]) == [], "somebody else may need it"


def test_variables_that_hold_the_same_go_together_and_others_apart() -> None:
    heap = main_with("ckpt", "other")
    heap.add("state", "container", "dict")
    heap.refer("main", "local state", "state", "local")
    heap.refer("state", "['weight']", "ckpt", "item")
    names = ("ckpt", "other", "state")
    both, other = found(heap, ["ckpt", "other"], [("main", f"local {name}") for name in names])
    assert {both.cut.written, other.cut.written} == {"ckpt and state in main()", "other in main()"}  # type: ignore[union-attr]


def traceback_heap(handled: str = "") -> Heap:
    """`sys.last_value`, and its traceback that `sys.last_traceback` has too: an attempt that has failed."""
    heap = Heap()
    heap.add("sys", "namespace", root="module")
    heap.add("error", "exception", "ValueError", root=handled)
    heap.add("traceback", "traceback")
    heap.add("attempt", "frame", where="train.py:30")
    heap.refer("sys", ".last_value", "error")
    heap.refer("sys", ".last_traceback", "traceback")
    heap.refer("error", ".__traceback__", "traceback")
    heap.refer("traceback", ".tb_frame", "attempt")
    heap.refer("attempt", "local hidden", heap.tensor("hidden", BIG, crossed=False), "local")
    return heap


def test_a_stored_traceback_is_told_by_what_stores_it_and_whose_variables_it_keeps() -> None:
    (finding,) = found(traceback_heap(), ["hidden"])
    assert finding.cut is not None and finding.cut.written == "sys.last_value and sys.last_traceback"


def test_locals_of_a_generator_that_may_go_on_are_nobodys_to_delete() -> None:
    heap = traceback_heap()
    heap.add("loader", "generator")
    heap.refer("sys", ".loader", "loader")
    heap.refer("loader", ".gi_frame", "attempt")
    assert found(heap, ["hidden"]) == []


def test_an_error_that_a_handler_is_busy_with_is_not_told() -> None:
    assert found(traceback_heap(handled="native"), ["hidden"]) == []


def test_a_list_of_errors_that_nobody_reads_is_one_holder() -> None:
    heap = main_with()
    heap.add("errors", "container", "list")
    heap.refer("main", "local errors", "errors", "local")
    for number in range(3):
        heap.add(f"error {number}", "exception", "ValueError")
        heap.add(f"attempt {number}", "frame", where="train.py:30")
        heap.refer("errors", f"[{number}]", f"error {number}", "item")
        heap.refer(f"error {number}", ".frame", f"attempt {number}")
        heap.refer(f"attempt {number}", "local x", heap.tensor(f"x {number}", BIG, crossed=False), "local")
    tensors = [f"x {number}" for number in range(3)]
    (one,) = found(heap, tensors, [("main", "local errors")])
    assert one.cut is not None and one.cut.written == "errors in main()" and one.retained_bytes == 3 * BIG
    (items,) = found(heap, tensors)
    assert items.cut is not None and items.cut.written == "errors[i] in main()" and items.retained_bytes == 3 * BIG


def test_what_grows_is_told_as_a_leak_alone() -> None:
    rank = rank_of(traceback_heap(), ["hidden"])
    (finding,) = idle_findings(rank, 0)
    first = CutReference(".last_value", written="sys.last_value", trace=0)
    leak = replace(finding, severity=Severity.LEAK, cut=Cut((first,), BIG))
    assert idle_findings(rank, 0, [leak]) == []
    elsewhere = replace(leak, trace=(replace(finding.trace[0], object="module train"), *finding.trace[1:]))
    assert idle_findings(rank, 0, [elsewhere]) == [finding]


def test_where_no_step_was_watched_nothing_is_said() -> None:
    rank = rank_of(main_with("ckpt"), ["ckpt"], [("main", "local ckpt")])
    assert idle_findings(replace(rank, lifetimes=()), 0) == idle_findings(replace(rank, heap_snapshots=()), 0) == []
