"""The suggested next step is one that the user can carry out in the script."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.examples import clean, cycle_finding, growth_finding

from leakscope.findings.facts import Bounded, Plateaued, Severity
from leakscope.findings.model import Cut, CutReference, Finding, HeapId
from leakscope.findings.rules.tensor_cycle import Closing, CycleFacts, InLibrary
from leakscope.report.finding_text import line_to_edit
from leakscope.report.rendering import laid_out
from leakscope.report.text.page import verdict_lines
from leakscope.report.verdict_text import first_cut, growing_text, headline
from leakscope.verdict import Verdict

PYTREE = "<torch/utils/_pytree.py>:1471"
FLATTEN = InLibrary("torch", "tree_flatten", "function step.<locals>.<lambda>", "train.py:28", "batch")
INSTEAD = "Pass torch's tree_flatten() a function that does not capture `batch` instead of the one at train.py:28"


@pytest.mark.parametrize(
    ("library", "places", "said"),
    [
        (
            FLATTEN,
            [PYTREE],
            INSTEAD,
        ),
        (
            replace(FLATTEN, captured=""),
            [PYTREE],
            "Do not pass function step.<locals>.<lambda> (train.py:28) to torch's tree_flatten(), "
            "or run gc every few steps",
        ),
        (
            replace(FLATTEN, yours="", captured=""),
            [PYTREE],
            "Run gc every few steps, or avoid torch's tree_flatten() in the training step",
        ),
        (FLATTEN, [PYTREE, "train.py:28"], "Cut `closure helper` at"),
        (None, [PYTREE], "Cut `closure helper` at"),
    ],
)
def test_nobody_is_told_to_cut_what_a_library_closes(library: InLibrary | None, places: list[str], said: str) -> None:
    cut = Cut(tuple(CutReference("closure helper", place, "closure helper") for place in places), 1 << 20)
    finding = replace(cycle_finding(), facts=CycleFacts(Closing.RECURSION, library=library), cut=cut)
    assert first_cut((finding,)).startswith(said)
    if said.startswith("Cut"):
        return
    assert first_cut((finding, finding)) == f"{said} (1.50 MiB awaiting gc), then the other leak"
    assert line_to_edit(finding) == (library.where if library is not None else "")


def test_a_line_that_adds_to_the_other_leaks_too_is_said_to() -> None:
    def leak(index: int, *added: str) -> Finding:
        reference = CutReference("seen", f"train.py:{index}", "seen", indexes=(index,), added_at=added)
        return replace(growth_finding(), cut=Cut((reference,), 1 << 20))

    first, same, other = leak(1, "train.py:20"), leak(2, "train.py:20"), leak(3, "train.py:30")
    said = "Cut `seen` at train.py:20: frees 1.00 MiB, then the other "
    assert first_cut((first, same)) == f"{said}leak (added at the same line)"
    assert first_cut((first, same, leak(4, "train.py:20"))) == f"{said}2 leaks (added at the same line)"
    assert first_cut((first, same, other)) == f"{said}2 leaks (1 at the same line)"
    assert first_cut((first, other)) == f"{said}leak"
    assert first_cut((leak(1), leak(2))).endswith("then the other leak"), "no line is known to add"


def test_a_clean_verdict_names_what_goes_on_growing_in_its_own_line() -> None:
    run, findings = clean()
    small = replace(growth_finding(), severity=Severity.NOTE, bytes_per_step=24.0)
    for shown, grows in (
        ((small,), True),
        ((replace(small, settled_by=Bounded(3, 10, 1000)),), True),
        ((replace(small, settled_by=Plateaued(9)),), False),
        ((), False),
    ):
        found = replace(findings, findings=shown)
        said = growing_text(run, found)
        assert bool(said) == grows
        (verdict, *_) = [line for line in laid_out(verdict_lines(run, found), 1000) if line.startswith("Verdict")]
        assert said[:40] in verdict and said in headline(run, found)
    assert growing_text(run, replace(findings, findings=(small,), verdict=Verdict.INCONCLUSIVE)) == ""


def test_what_the_first_cut_mends_as_well_is_no_other_leak() -> None:
    def leak(size: int, *indexes: int) -> Finding:
        names = {1: "context.inputs", 2: "context.outputs", 3: "log"}
        references = (CutReference(names[k], "train.py:9", names[k], indexes=(k, k + 10)) for k in indexes)
        cut_in = frozenset((HeapId(0, 9), at) for k in indexes for at in (k, k + 10))
        return replace(growth_finding(), cut=Cut(tuple(references), size << 20), cut_in=cut_in)

    both, inner, other = leak(36, 1, 2), leak(18, 2), leak(7, 3)
    said = "Cut `context.inputs` at train.py:9 together with `context.outputs`: "
    assert first_cut((both, inner)) == f"{said}frees 54.00 MiB, fixes both leaks"
    assert first_cut((both, inner, other)) == f"{said}frees 54.00 MiB, fixes both leaks, then the other leak"
    assert first_cut((both, inner, leak(2, 1))) == f"{said}frees 56.00 MiB, fixes 3 leaks"
    assert first_cut((both, other)) == f"{said}frees 36.00 MiB, then the other leak"
    assert first_cut((inner, both)).endswith("frees 18.00 MiB, then the other leak"), "it takes both"
    elsewhere = replace(inner, cut_in=frozenset((HeapId(1, 9), at) for _, at in inner.cut_in))
    assert first_cut((both, elsewhere)).endswith("then the other leak"), "numbers are of one look at one rank"
    unknown = replace(both, cut=replace(both.cut, is_told=False))
    assert first_cut((unknown, inner)).endswith("all C++ references, fixes both leaks")
