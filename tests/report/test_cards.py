"""Cards show the line to edit, what that frees and the reference path."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from support import examples

from leakscope.findings.facts import FreedBy
from leakscope.findings.model import Cut, CutReference, Finding, Findings, Hop, Sighting
from leakscope.report import FORMATS
from leakscope.report.excerpt import LineMark
from leakscope.report.finding_text import figures, line_to_edit, would_be_freed
from leakscope.report.html.page import bytes_by_step, finding_on_page

MIB = 1024 * 1024
SOURCES = {"train.py": tuple(f"line {n}" if n != 10 else "" for n in range(1, 41)), "other.py": ("a", "b", "c")}
RUN = examples.run(sources=SOURCES)


def leak(*references: CutReference, proved: int | None = None) -> Finding:
    cut = Cut(references, 2 * MIB, proved)
    return replace(examples.growth_finding(), cut=cut, retained_bytes=2 * MIB)


def shown(finding: Finding) -> str:
    """The finding's card, without what is folded."""
    page = FORMATS["html"](RUN, replace(examples.leaking()[1], findings=(finding,)))
    card = page[page.index("<article") : page.index("</article>")]
    while "<details" in card:
        card = re.sub(r"<details(?:(?!<details).)*?</details>", "", card, flags=re.DOTALL)
    return card


@pytest.mark.parametrize(
    ("changes", "rest"),
    [
        ({"retained_bytes": 3 * MIB}, True),
        ({"retained_bytes": 2 * MIB + 1000}, False),
        ({"retained_bytes": 3 * MIB, "freed_by": FreedBy.PROGRAM}, False),
        ({"retained_bytes": 3 * MIB, "sightings": (Sighting(0, 3, 1), Sighting(1, 3, 1))}, False),
    ],
)
def test_garbage_that_the_cut_does_not_free_is_mentioned(changes: dict[str, Any], rest: bool) -> None:
    found = replace(leak(CutReference("closure model", "train.py:4")), **{"freed_by": FreedBy.GC, **changes})
    assert would_be_freed(found).startswith("frees 2.00 MiB") and ("another" in would_be_freed(found)) is rest


def test_measured_bytes_replace_predicted_ones() -> None:
    for proved, size in ((MIB, "1.00 MiB"), (None, "2.00 MiB")):
        assert f"frees {size}" in [first for first, _ in figures(leak(CutReference(".seen"), proved=proved))]


def test_lines_of_one_file_are_shown_together_with_gaps() -> None:
    card = finding_on_page(RUN, leak(CutReference(".seen", "train.py:4", added_at=("train.py:30",))))
    ((file, lines),) = card.code
    assert file == "train.py"
    assert [line.number for line in lines] == [2, 3, 4, 5, 6, 28, 29, 30, 31, 32]
    assert {line.number: line.kind for line in lines if line.mark} == {4: LineMark.HOLDS, 30: LineMark.ADDS}
    assert [line.number for line in lines if line.gap] == [28]


def test_the_line_to_edit_is_what_adds_then_what_holds() -> None:
    holds = CutReference(".seen", "train.py:4")
    adds = replace(holds, added_at=("train.py:30",))
    assert line_to_edit(leak(holds)) == "train.py:4"
    assert line_to_edit(leak(adds)) == "train.py:30"
    cache = Hop("lru_cache", "functools._lru_cache_wrapper", "instance", "train.py:4", "leaked", "cached result")
    cached = replace(leak(replace(adds, trace=0)), trace=(cache, replace(cache, type="dict")))
    assert line_to_edit(cached) == "train.py:4", "the decorator, not a line that calls the function"
    assert line_to_edit(replace(cached, trace=(replace(cache, type="dict"),))) == "train.py:30"
    assert line_to_edit(leak(CutReference(".seen"))) == "" == line_to_edit(replace(leak(holds), cut=None))


@pytest.mark.process
def test_the_folded_path_keeps_every_hop() -> None:
    finding = examples.cycle_finding()
    page = FORMATS["html"](RUN, replace(examples.leaking()[1], findings=(finding,)))
    card = page[page.index("<article") : page.index("</article>")]
    hops = [str(position) for position in range(len(finding.trace))]
    assert re.findall(r'data-hop="(\d+)"', card[: card.index('<details class="more"')]) == hops
    at_once = re.findall(r'data-hop="(\d+)"', shown(finding))
    assert at_once[0] == "0" and at_once[-1] == hops[-1] and len(at_once) < len(hops)
    assert '<li class="between">' in card


@pytest.mark.parametrize(
    ("made_at", "reported"),
    [
        ("train.py:20 main (aten::mm)", ("train.py:20 main (aten::mm)", "line 20")),
        ("train.py:5 main", None),
        ("", None),
    ],
)
def test_the_allocation_site_is_given_where_no_line_shows_it(made_at: str, reported: tuple[str, str] | None) -> None:
    finding = replace(leak(CutReference(".seen", "train.py:4")), made_at=(made_at,) if made_at else ())
    assert finding_on_page(RUN, finding).made_elsewhere == reported


@pytest.mark.process
def test_many_leaks_are_listed_and_only_the_first_are_open() -> None:
    found = [replace(leak(CutReference(".seen", "train.py:4")), fingerprint=f"{n:08x}") for n in range(30)]
    page = FORMATS["html"](RUN, Findings("leaks", "many", 23, tuple(found)))
    listed = page[page.index('<nav class="findings-list') : page.index("</nav>")]
    assert len(re.findall(r'<a href="#[0-9a-f]{8}">', listed)) == 30 and "22 more" in listed
    assert '<code class="place"><span class="whole">train.py:4</span></code>' in listed
    assert page.count("<article ") == 30
    assert len(re.findall(r"<article [^>]*>\s*<h3>", page)) == 3


def test_ranks_are_summed_at_each_step() -> None:
    seen = [Sighting(1, 5, 30), Sighting(0, 3, 1), Sighting(0, 5, 2), Sighting(1, 9, 50)]
    assert bytes_by_step(seen) == ((3, 1), (5, 32), (9, 52))
    assert bytes_by_step([]) == ()
