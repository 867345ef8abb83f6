"""Drawings show the reference path, its cycle and the cut, with and without Graphviz."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from support import examples

from leakscope.findings.model import Cut, CutReference, CycleReference, Hop
from leakscope.report.html.cards import finding_on_page
from leakscope.report.html.drawing import Box, column_layout, dot_layout, draw, drawing_of

WITH_DOT = pytest.param(True, marks=pytest.mark.skipif(shutil.which("dot") is None, reason="dot is not installed"))

DRAWN = [examples.cycle_finding(), examples.growth_finding(), examples.hostile()[1].findings[0]]


def test_trace_joins_the_cycle_it_goes_round() -> None:
    drawing = drawing_of(examples.cycle_finding())
    labels = [drawn.label for drawn in drawing.objects]
    assert labels == ["function extract", "tuple, 2 items", "cell extract", "list, 4 items", "Tensor float32[128, 256]",
                      "storage, 128.00 KiB"]  # fmt: skip
    arrows = [(r.holder, r.held, r.name, r.cut) for r in drawing.references]
    assert arrows == [
        (0, 1, "closure extract", True),
        (1, 2, "[i]", False),
        (2, 0, "contents", False),
        (0, 3, "closure intermediates", False),
        (3, 4, "[i]", False),
        (4, 5, ".untyped_storage()", False),
    ]


def test_an_arrow_says_which_hop_of_the_trace_it_is() -> None:
    drawing = drawing_of(examples.cycle_finding())
    assert [r.hop for r in drawing.references] == [0, 1, 2, 5, 6, 7], "hop 4 holds as hop 2 does, hop 3 holds nothing"
    svg = draw(examples.cycle_finding(), use_dot=False)
    assert [int(hop) for hop in re.findall(r'<g class="arrow[^"]*" data-hop="(\d+)">', svg)] == [0, 1, 2, 5, 6, 7]
    assert "6 objects, from function extract on; cut here: closure extract of function extract" in svg


def test_a_cycle_apart_from_the_trace_is_drawn_alone() -> None:
    names = (("a", ".x", "b", 20, 31, 21), ("b", ".y", "b", 21, 32, 22), ("b", ".x", "a", 22, 33, 20))
    cut = Cut((CutReference(".x", indexes=(33,)),), 1)
    finding = replace(examples.cycle_finding(), cycle=tuple(CycleReference(*name) for name in names), cut=cut)
    drawing = drawing_of(finding)
    assert [drawn.label for drawn in drawing.objects] == ["a", "b", "b"]
    assert [(r.holder, r.held, r.cut) for r in drawing.references] == [(0, 1, False), (1, 2, False), (2, 0, True)]


def test_objects_of_one_label_stay_apart() -> None:
    """A parameter and its gradient look alike; the memory is the gradient's, and one `.grad` of two is the cut."""
    tensor, node = ("Tensor float32[8]", "torch.Tensor", "tensor", ""), ("Mul", "Mul", "grad node", "")
    memory = ("tensor memory", "torch.UntypedStorage", "storage", "")
    trace = (
        Hop(*tensor, "leaked", ".grad", index=1, references=(10,)),
        Hop(*tensor, "leaked", ".grad_fn", index=2, references=(11,)),
        Hop(*node, "leaked", ".grad", index=3, references=(12,)),
        Hop(*tensor, "leaked", "", index=1),
        Hop(*tensor, "leaked", "storage", index=2, references=(13,)),
        Hop(*memory, "leaked", "", index=4),
    )
    cycle = (
        CycleReference(tensor[0], ".grad", tensor[0], 1, 10, 2),
        CycleReference(tensor[0], ".grad_fn", "Mul", 2, 11, 3),
        CycleReference("Mul", ".grad", tensor[0], 3, 12, 1),
    )
    cut = Cut((CutReference(".grad", indexes=(12,), trace=2),), 32)
    drawing = drawing_of(replace(examples.cycle_finding(), trace=trace, cycle=cycle, cut=cut))
    assert [drawn.label for drawn in drawing.objects] == [tensor[0], tensor[0], "Mul", "tensor memory"]
    assert [(r.holder, r.held, r.name, r.cut) for r in drawing.references] == [
        (0, 1, ".grad", False),
        (1, 2, ".grad_fn", False),
        (2, 0, ".grad", True),
        (1, 3, "storage", False),
    ]


def test_exactly_one_arrow_is_cut() -> None:
    for finding in (examples.cycle_finding(), examples.growth_finding()):
        assert sum(r.cut for r in drawing_of(finding).references) == 1


def held_twice() -> examples.Finding:
    """One tensor in two lists, both of which are to be cut."""
    tensor, memory = ("Tensor float32[8]", "torch.Tensor", "tensor", ""), ("memory", "storage", "storage", "")
    below = (Hop(*tensor, "leaked", "storage", index=3, references=(12,)), Hop(*memory, "leaked", "", index=4))

    def over(name: str, root: int) -> tuple[Hop, ...]:
        box = (f"list {name}", "list", "container", "")
        main = Hop("module", "module", "namespace", "", "expected", f".{name}", index=0, references=(root,))
        return main, Hop(*box, "leaked", "[i]", index=root, references=(root + 4,)), *below

    cut = Cut(
        (
            CutReference(".kept", written="kept", indexes=(1,), trace=0),
            CutReference(".seen", written="seen", indexes=(2,), path=over("seen", 2)),
        ),
        32,
    )
    return replace(examples.growth_finding(), trace=over("kept", 1), cut=cut)


def test_both_holders_of_one_tensor_are_drawn() -> None:
    drawing = drawing_of(held_twice())
    assert [drawn.label for drawn in drawing.objects] == [
        "module",
        "list kept",
        "Tensor float32[8]",
        "memory",
        "list seen",
    ]
    assert [(r.holder, r.held, r.name, r.cut, r.hop) for r in drawing.references] == [
        (0, 1, ".kept", True, 0),
        (1, 2, "[i]", False, 1),
        (2, 3, "storage", False, 2),
        (0, 4, ".seen", True, 4),
        (4, 2, "[i]", False, 5),
    ]


def test_the_card_lists_the_path_of_each_holder() -> None:
    item = finding_on_page(examples.leaking()[0], held_twice(), drawn=False)
    (path,) = item.further_paths
    assert [(hop.position, hop.hop.object, hop.cut) for hop in path] == [
        (4, "module", True),
        (5, "list seen", False),
        (6, "Tensor float32[8]", False),
        (7, "memory", False),
    ]


@pytest.mark.process
@pytest.mark.parametrize("use_dot", [WITH_DOT, False])
@pytest.mark.parametrize("finding", DRAWN)
def test_drawing_is_well_formed_and_marks_the_cut(use_dot: bool, finding: examples.Finding) -> None:
    tree = ElementTree.fromstring(draw(finding, use_dot))
    groups = [element.get("class", "") for element in tree.iter("{http://www.w3.org/2000/svg}g")]
    assert sum(kind.startswith("box") for kind in groups) == len(drawing_of(finding).objects)
    assert groups.count("arrow cut") == 1


def test_nothing_to_draw() -> None:
    assert draw(examples.library_finding()) == ""


@pytest.mark.process
@pytest.mark.skipif(shutil.which("dot") is None, reason="dot is not installed")
def test_dot_joins_the_boxes_it_was_told_to_join() -> None:
    boxes = [Box(80, 30), Box(120, 46), Box(90, 30)]
    layout = dot_layout(boxes, [(0, 1, 50.0), (1, 2, 60.0), (2, 0, 40.0)])
    assert layout is not None
    for (holder, held), arrow in zip([(0, 1), (1, 2), (2, 0)], layout.arrows, strict=True):
        start = tuple(map(float, arrow.path[1:].split(" ")[0].split(",")))
        tip = tuple(map(float, arrow.head.split(" ")[0].split(",")))
        assert touches(start, layout.centres[holder], boxes[holder])
        assert touches(tip, layout.centres[held], boxes[held])


def touches(point: tuple[float, ...], centre: tuple[float, float], box: Box) -> bool:
    across, down = abs(point[0] - centre[0]), abs(point[1] - centre[1])
    return across <= box.width / 2 + 2 and down <= box.height / 2 + 2


@pytest.mark.process
def test_without_the_binary_there_is_no_dot_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert dot_layout([Box(10, 10), Box(10, 10)], [(0, 1, 10.0)]) is None
    assert draw(examples.cycle_finding()) == draw(examples.cycle_finding(), use_dot=False)


def test_boxes_of_a_column_do_not_overlap() -> None:
    boxes = [Box(80, 30), Box(120, 46), Box(90, 30)]
    layout = column_layout(boxes, [(0, 1, 50.0), (1, 2, 60.0), (2, 0, 40.0), (1, 1, 30.0)])
    bottoms = [y + box.height / 2 for (_, y), box in zip(layout.centres, boxes, strict=True)]
    tops = [y - box.height / 2 for (_, y), box in zip(layout.centres, boxes, strict=True)]
    assert all(bottom < top for bottom, top in zip(bottoms, tops[1:], strict=False))
    assert all(arrow.label[0] <= layout.width for arrow in layout.arrows)
