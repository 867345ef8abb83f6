"""Items of unnamed containers are written as in the source, with one line for each function."""

from __future__ import annotations

from dataclasses import replace

import pytest
from findings.source.traces import finding, kept
from support.heap_text import heap_from

from leakscope.findings.facts import FreedBy
from leakscope.findings.model import Cut, Finding
from leakscope.findings.naming import as_part_of_holder
from leakscope.findings.source.index import Sources
from leakscope.findings.source.lines import _with_one_line_each, with_lines

METADATA = """
    dict*1 -> ['out']
    tensor*2 float32[8] -> .grad_fn
    node*3 TanhBackward0 -> metadata
    dict*1
    tensor*2 float32[8] -> storage
    storage s
"""
WRITTEN = "out.grad_fn.metadata['out']"
STASH = """
    def forward(x):
        out = torch.tanh(x)
        out.grad_fn.metadata["out"] = out
        return out
"""


def named(found: Finding, text: str) -> tuple[str, str, str]:
    """(as it is written, its line, what the finding is about) with a source."""
    told = with_lines(found, Sources(kept(train=text)))
    assert told.cut is not None
    return told.cut.written, told.cut.where, told.subject


def of(trace: str, place: int, written: str, where: str = "") -> Finding:
    found = finding(trace, place, freed_by=FreedBy.NEVER, subject=written)
    assert found.cut is not None
    reference = replace(found.cut.references[0], written=written, where=where)
    return replace(found, cut=Cut((reference,), 1 << 20))


@pytest.mark.parametrize("written", ["['out'] of dict, 1 item", "metadata['out'] of TanhBackward0"])
def test_an_item_of_a_dict_is_told_as_its_line_has_it(written: str) -> None:
    assert named(of(METADATA, 0, written), STASH) == (WRITTEN, "train.py:3", WRITTEN)


def test_what_is_written_from_its_root_on_stays_so() -> None:
    assert named(of(METADATA, 0, "stash['out'] in main()"), STASH)[0] == "stash['out'] in main()"


def test_without_a_line_that_puts_it_there_it_is_told_by_its_holder() -> None:
    written = "['out'] of dict, 1 item"
    for text in (STASH.replace('"out"', '"other"'), STASH.replace("metadata", "x" * 60), "pass"):
        assert named(of(METADATA, 0, written), text)[0::2] == (written, written)


def test_a_finding_that_is_about_something_else_stays_about_that() -> None:
    found = replace(of(METADATA, 0, "['out'] of dict, 1 item"), subject="the dict")
    assert named(found, STASH)[2] == "the dict"


def test_no_function_has_two_lines_and_what_closes_a_cycle_has_that_of_its_first_place() -> None:
    trace = finding("""
        object*1 Pair train.py:9 -> .parent
        function*2 collect train.py:22 -> closure collect
        object*1 Pair train.py:5
        function*2 collect train.py:19 -> closure roots
        object*1 Pair train.py:7 -> .tensor
        function*3 other train.py:30 -> closure x
        storage s
    """, 1).trace  # fmt: skip
    told = _with_one_line_each(trace)
    assert [hop.where.rpartition(":")[2] for hop in told] == ["9", "22", "9", "22", "7", "30", ""]
    assert [replace(hop, where="") for hop in told] == [replace(hop, where="") for hop in trace]


@pytest.mark.parametrize(("text", "written"), [
    ("node Mul -> metadata -> dict d\ndict d -> ['out'] -> tensor t\n", "metadata['out'] of node Mul"),
    ("object Pair#1 -> .parts -> list d\nlist d -> [0] -> tensor t\n", ".parts[i] of object Pair"),
    ("object A -> .all -> list d\nobject B -> .all -> list d\nlist d -> [0] -> tensor t\n", "[i] of list, 3 items"),
    ("list e -> [0] -> list d\nlist d -> [0] -> tensor t\n", "[i] of list, 3 items"),
])  # fmt: skip
def test_an_item_of_a_container_is_told_with_the_one_object_that_holds_that(text: str, written: str) -> None:
    graph = heap_from(text)
    last = next(r for r in range(len(graph.held)) if graph.object(int(graph.held[r])).kind == "tensor")
    assert as_part_of_holder(graph, last) == written
