"""Source excerpts mark the cut and the lines that add to it; long reference paths are folded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import examples

from leakscope.findings.model import Cut, CutReference, Finding, Suggestion
from leakscope.report.excerpt import Excerpt, LineMark, excerpts, folded_trace

RUN = examples.run(
    sources={
        "train.py": ("class Log:", "\tdef add(self, loss):", "\t\tx = 1", "", "\t\tself.seen.append(loss)", "    # on"),
        "main.py": ("log = Log()", "log.add(loss)"),
    }
)


def finding(cut: str, added_at: tuple[str, ...] = (), edit: str = "") -> Finding:
    edited = Suggestion(edit, "a", "b") if edit else None
    return replace(
        examples.growth_finding(), cut=Cut((CutReference(".seen", cut, added_at=added_at),), 8), suggestion=edited
    )


def marks(excerpt: Excerpt) -> dict[int, LineMark]:
    return {line.number: line.mark for line in excerpt.lines if line.mark}


def test_the_cut_and_what_adds_to_it_are_marked_among_the_lines_beside_them() -> None:
    (shown,) = excerpts(RUN, finding("train.py:1", ("train.py:5 add",)))
    assert shown.file == "train.py" and marks(shown) == {1: LineMark.HOLDS, 5: LineMark.ADDS}
    assert [line.number for line in shown.lines] == [1, 2, 5, 6], "an empty line beside one is left out"


def test_lines_keep_their_indentation_among_themselves() -> None:
    (shown,) = excerpts(RUN, finding("train.py:5"))
    assert [line.text for line in shown.lines] == ["    self.seen.append(loss)", "# on"]


def test_each_file_has_its_own_excerpt_that_of_the_cut_first() -> None:
    shown = excerpts(RUN, finding("train.py:5", ("main.py:2",), edit="main.py:1"), around=0)
    assert [(excerpt.file, marks(excerpt)) for excerpt in shown] == [
        ("train.py", {5: LineMark.HOLDS}),
        ("main.py", {1: LineMark.EDIT, 2: LineMark.ADDS}),
    ]


@pytest.mark.parametrize(
    ("added_at", "edit", "begin"),
    [((), "", ("train.py", 1)), (("train.py:5",), "", ("train.py", 5)), (("train.py:5",), "main.py:1", ("main.py", 1))],
)
def test_one_line_is_the_one_to_begin_at(added_at: tuple[str, ...], edit: str, begin: tuple[str, int]) -> None:
    shown = excerpts(RUN, finding("train.py:1", added_at, edit))
    assert [(each.file, line.number) for each in shown for line in each.lines if line.to_edit] == [begin]


def folds(of: Finding) -> list[tuple[int, int]]:
    return [(stretch.hops.start, stretch.hops.stop) for stretch in folded_trace(of) if stretch.is_folded]


def long_finding(cut: int | None) -> Finding:
    trace = (*(replace(examples.growth_finding().trace[1], object=f"o{n}") for n in range(9)),)
    return replace(examples.growth_finding(), trace=trace, cut=Cut((CutReference(".seen", trace=cut),), 8))


def test_what_lies_between_root_cut_and_memory_is_folded() -> None:
    assert folds(long_finding(4)) == [(1, 4), (6, 8)]
    assert folds(long_finding(2)) == [(4, 8)], "one hop takes no more room than a word on it"
    assert folds(long_finding(None)) == [(1, 8)]


def test_every_hop_is_in_one_stretch() -> None:
    for cut in (None, 0, 3, 7, 8):
        stretches = folded_trace(long_finding(cut))
        assert [at for stretch in stretches for at in stretch.hops] == list(range(9))
    assert folded_trace(replace(long_finding(None), trace=())) == ()


def test_where_a_cycle_closes_is_seen() -> None:
    cycle = examples.cycle_finding()
    closing = next(at for at, hop in enumerate(cycle.trace[:-1]) if not hop.reference)
    assert any(closing in stretch.hops and not stretch.is_folded for stretch in folded_trace(cycle))
