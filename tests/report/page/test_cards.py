"""Cards show the line to edit, what that frees, the reference path and the suggested fix."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support import examples

from leakscope.findings.facts import FreedBy
from leakscope.findings.model import Cut, CutReference, Finding, Findings, Hop, Sighting, Suggestion
from leakscope.report import FORMATS
from leakscope.report.excerpt import LineMark
from leakscope.report.finding_text import edit_lines, figures, line_to_edit, would_be_freed
from leakscope.report.html.page import bytes_by_step, finding_on_page

MIB = 1024 * 1024
SOURCES = {"train.py": tuple(f"line {n}" if n != 10 else "" for n in range(1, 41)), "other.py": ("a", "b", "c")}
RUN = examples.run(sources=SOURCES)


def leak(*references: CutReference, suggestion: Suggestion | None = None, proved: int | None = None) -> Finding:
    cut = Cut(references, 2 * MIB, proved)
    return replace(examples.growth_finding(), cut=cut, suggestion=suggestion, retained_bytes=2 * MIB)


def shown(finding: Finding) -> str:
    """The finding's card, without what is folded."""
    page = FORMATS["html"](RUN, replace(examples.leaking()[1], findings=(finding,)))
    card = page[page.index("<article") : page.index("</article>")]
    while "<details" in card:
        card = re.sub(r"<details(?:(?!<details).)*?</details>", "", card, flags=re.DOTALL)
    return card


def test_lines_of_one_file_stand_together_and_a_gap_is_marked() -> None:
    card = finding_on_page(RUN, leak(CutReference(".seen", "train.py:4", added_at=("train.py:30",))))
    ((file, lines),) = card.code
    assert file == "train.py"
    assert [line.number for line in lines] == [2, 3, 4, 5, 6, 28, 29, 30, 31, 32]
    assert {line.number: line.kind for line in lines if line.mark} == {4: LineMark.HOLDS, 30: LineMark.ADDS}
    assert [line.number for line in lines if line.gap] == [28]


def test_the_line_to_begin_at_is_that_of_the_edit_then_what_adds_then_what_holds() -> None:
    holds = CutReference(".seen", "train.py:4")
    adds = replace(holds, added_at=("train.py:30",))
    assert line_to_edit(leak(holds)) == "train.py:4"
    assert line_to_edit(leak(adds)) == "train.py:30"
    assert line_to_edit(leak(adds, suggestion=Suggestion("other.py:2", "b", "b.item()"))) == "other.py:2"
    cache = Hop("lru_cache", "functools._lru_cache_wrapper", "instance", "train.py:4", "leaked", "cached result")
    cached = replace(leak(replace(adds, trace=0)), trace=(cache, replace(cache, type="dict")))
    assert line_to_edit(cached) == "train.py:4", "the decorator, not a line that calls the function"
    assert line_to_edit(replace(cached, trace=(replace(cache, type="dict"),))) == "train.py:30"
    assert line_to_edit(leak(CutReference(".seen"))) == "" == line_to_edit(replace(leak(holds), cut=None))


def test_of_what_waits_for_gc_a_part_that_the_cut_leaves_is_told() -> None:
    reference = CutReference("closure model", "train.py:4")
    found = replace(leak(reference), freed_by=FreedBy.GC, retained_bytes=3 * MIB)
    assert would_be_freed(found) == "frees 2.00 MiB (another cycle retains the other 1.00 MiB)"
    assert ("frees 2.00 MiB", "when cut, not measured; another cycle retains the other 1.00 MiB") in figures(found)
    for other in (
        replace(found, retained_bytes=2 * MIB + 1000),
        replace(found, freed_by=FreedBy.PROGRAM),
        replace(found, sightings=(Sighting(0, 3, 1), Sighting(1, 3, 1))),
    ):
        assert would_be_freed(other).startswith("frees 2.00 MiB") and "another" not in would_be_freed(other)


@pytest.mark.process
def test_an_edit_shows_what_goes_and_what_comes_and_that_it_is_advice() -> None:
    assert edit_lines(Suggestion("train.py:3", "a(b)", "a(b)\ndel c")) == ("  a(b)", "+ del c")
    assert edit_lines(Suggestion("train.py:3", "x.append(y)", "x.append(y.item())")) == (
        "- x.append(y)",
        "+ x.append(y.item())",
    )
    both = Suggestion("train.py:3", "a", "b", also=(Suggestion("train.py:9", "c", ""),))
    assert edit_lines(both) == ("- a", "+ b", "@@ train.py:9", "- c")
    told = shown(leak(CutReference(".seen", "train.py:4"), suggestion=both))
    assert "train.py:9" in told and 'data-copy="b"' not in told
    card = shown(leak(CutReference(".seen", "train.py:4"), suggestion=Suggestion("train.py:4", "a", "b")))
    assert 'class="code edit"' in card
    assert '<span class="gone"><i>-&nbsp;</i>a\n' in card and '<span class="new"><i>+&nbsp;</i>b\n' in card
    assert 'class="code edit"' not in shown(leak(CutReference(".seen", "train.py:4")))


@pytest.mark.parametrize(
    ("proved", "said"),
    [
        (2 * MIB, ("frees 2.00 MiB", "when cut, measured: 2.00 of 2.00 MiB")),
        (MIB, ("frees 1.00 MiB", "when cut, measured: 1.00 of 2.00 MiB")),
        (MIB // 2, ("frees 512.00 KiB", "when cut, measured: 512.00 KiB of 2.00 MiB")),
        (None, ("frees 2.00 MiB", "when cut, not measured")),
    ],
)
def test_what_was_measured_is_set_beside_what_is_held(proved: int | None, said: tuple[str, str]) -> None:
    assert said in figures(leak(CutReference(".seen"), proved=proved))


@pytest.mark.process
def test_the_trace_is_folded_to_root_cut_and_memory_and_keeps_every_hop() -> None:
    finding = examples.cycle_finding()
    page = FORMATS["html"](RUN, replace(examples.leaking()[1], findings=(finding,)))
    card = page[page.index("<article") : page.index("</article>")]
    hops = [str(position) for position in range(len(finding.trace))]
    assert re.findall(r'data-hop="(\d+)"', card[: card.index('<details class="more"')]) == hops
    at_once = re.findall(r'data-hop="(\d+)"', shown(finding))
    assert at_once[0] == "0" and at_once[-1] == hops[-1] and len(at_once) < len(hops)
    assert '<li class="between">' in card


@pytest.mark.parametrize(
    ("made_at", "told"),
    [
        ("train.py:20 main (aten::mm)", ("train.py:20 main (aten::mm)", "line 20")),
        ("train.py:5 main", None),
        ("", None),
    ],
)
def test_where_the_tensors_are_made_is_told_where_no_line_shows_it(made_at: str, told: tuple[str, str] | None) -> None:
    finding = replace(leak(CutReference(".seen", "train.py:4")), made_at=(made_at,) if made_at else ())
    assert finding_on_page(RUN, finding).made_elsewhere == told


@pytest.mark.process
def test_where_the_tensors_are_made_stands_in_the_open_card_and_an_edit_that_deletes_has_nothing_to_paste() -> None:
    edit = Suggestion("train.py:4", "line 4", "")
    card = shown(replace(leak(CutReference(".seen", "train.py:4"), suggestion=edit), made_at=("train.py:20 main",)))
    assert '<span class="whole">train.py:20</span> main</code> <code class="line">line 20</code>' in card
    assert 'class="code edit"' in card and "data-copy=" not in card


def many(count: int) -> str:
    found = [replace(leak(CutReference(".seen", "train.py:4")), fingerprint=f"{n:08x}") for n in range(count)]
    return FORMATS["html"](RUN, Findings("leaks", "many", 23, tuple(found)))


@pytest.mark.process
def test_many_leaks_are_listed_with_their_line_and_only_the_first_stand_open() -> None:
    page = many(30)
    listed = page[page.index('<nav class="findings-list') : page.index("</nav>")]
    assert len(re.findall(r'<a href="#[0-9a-f]{8}">', listed)) == 30 and "22 more" in listed
    assert '<code class="place"><span class="whole">train.py:4</span></code>' in listed
    assert page.count("<article ") == 30
    assert len(re.findall(r"<article [^>]*>\s*<h3>", page)) == 3


def test_ranks_are_added_at_each_step_by_what_each_held_last() -> None:
    seen = [Sighting(1, 5, 30), Sighting(0, 3, 1), Sighting(0, 5, 2), Sighting(1, 9, 50)]
    assert bytes_by_step(seen) == ((3, 1), (5, 32), (9, 52))
    assert bytes_by_step([]) == ()
