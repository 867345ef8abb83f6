"""The verdict names the first cut, what it frees and what it fixes besides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.examples import clean, cycle_finding, growth_finding

from leakscope.findings.facts import Bounded, Plateaued, Severity
from leakscope.findings.model import Cut, CutReference, Finding, HeapId
from leakscope.findings.rules.tensor_cycle import Closing, CycleFacts, InLibrary
from leakscope.report.finding_text import line_to_edit
from leakscope.report.verdict_text import first_cut, growing_text, headline
from leakscope.verdict import Verdict

PYTREE = "<torch/utils/_pytree.py>:1471"
FLATTEN = InLibrary("torch", "tree_flatten", "function step.<locals>.<lambda>", "train.py:28", "batch")


@pytest.mark.parametrize(
    ("library", "places", "is_cut"),
    [(FLATTEN, [PYTREE], False), (FLATTEN, [PYTREE, "train.py:28"], True), (None, [PYTREE], True)],
)
def test_a_cycle_that_a_library_closes_is_not_to_be_cut_there(
    library: InLibrary | None, places: list[str], is_cut: bool
) -> None:
    cut = Cut(tuple(CutReference("closure helper", place, "closure helper") for place in places), 1 << 20)
    finding = replace(cycle_finding(), facts=CycleFacts(Closing.RECURSION, library=library), cut=cut)
    assert first_cut((finding,)).startswith("Cut `closure helper`") is is_cut
    if not is_cut:
        assert line_to_edit(finding) == FLATTEN.where


def test_leaks_added_at_the_same_line_are_counted() -> None:
    def leak(index: int, *added: str) -> Finding:
        reference = CutReference("seen", f"train.py:{index}", "seen", indexes=(index,), added_at=added)
        return replace(growth_finding(), cut=Cut((reference,), 1 << 20))

    first, same, other = leak(1, "train.py:20"), leak(2, "train.py:20"), leak(3, "train.py:30")
    assert "(added at the same line)" in first_cut((first, same))
    assert "(1 at the same line)" in first_cut((first, same, other))
    assert "same line" not in first_cut((first, other)) + first_cut((leak(1), leak(2)))


def test_leaks_that_the_first_cut_fixes_are_counted() -> None:
    def leak(size: int, *indexes: int) -> Finding:
        names = {1: "context.inputs", 2: "context.outputs", 3: "log"}
        references = (CutReference(names[k], "train.py:9", names[k], indexes=(k, k + 10)) for k in indexes)
        cut_in = frozenset((HeapId(0, 9), at) for k in indexes for at in (k, k + 10))
        return replace(growth_finding(), cut=Cut(tuple(references), size << 20), cut_in=cut_in)

    both, inner, other = leak(36, 1, 2), leak(18, 2), leak(7, 3)
    elsewhere = replace(inner, cut_in=frozenset((HeapId(1, 9), at) for _, at in inner.cut_in))
    for found, freed, fixes in (
        ((both, inner), 54, "both leaks"),
        ((both, inner, other), 54, "both leaks"),
        ((both, inner, leak(2, 1)), 56, "3 leaks"),
        ((both, other), 36, ""),
        ((inner, both), 18, ""),
        ((both, elsewhere), 36, ""),  # indexes are of one snapshot of one rank
    ):
        message = first_cut(found)
        assert f"frees {freed}.00 MiB" in message and (
            f"fixes {fixes}" in message if fixes else "fixes" not in message
        ), message


def test_a_clean_verdict_names_what_keeps_growing() -> None:
    run, findings = clean()
    small = replace(growth_finding(), severity=Severity.NOTE, bytes_per_step=24.0)
    for shown, grows in (
        ((small,), True),
        ((replace(small, settled_by=Bounded(3, 10, 1000)),), True),
        ((replace(small, settled_by=Plateaued(9)),), False),
        ((), False),
    ):
        found = replace(findings, findings=shown)
        text = growing_text(run, found)
        assert bool(text) == grows and text in headline(run, found)
    assert growing_text(run, replace(findings, findings=(small,), verdict=Verdict.INCONCLUSIVE)) == ""
