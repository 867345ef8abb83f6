"""Drawings show the reference path, its cycle and the cut, with equal chains merged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from support import examples

from leakscope.findings.model import Cut, CutReference, Hop
from leakscope.report import FORMATS
from leakscope.report.drawing import Arrow, Box, Drawing, inline_svgs, merged, of_finding, whole_drawing

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="dot is not installed")
SVG = "{http://www.w3.org/2000/svg}"
DRAWN = [examples.cycle_finding(), examples.growth_finding(), examples.hostile()[1].findings[0]]


def test_trace_joins_the_cycle_it_goes_round() -> None:
    drawing = whole_drawing(examples.cycle_finding())
    labels = [drawn.label for drawn in drawing.boxes]
    assert labels == ["function extract", "tuple, 2 items", "cell extract", "list, 4 items", "Tensor float32[128, 256]",
                      "storage, 128.00 KiB"]  # fmt: skip
    arrows = [(r.tail, r.head, r.name, r.cut) for r in drawing.arrows]
    assert arrows == [
        (0, 1, "closure extract", True),
        (1, 2, "[i]", False),
        (2, 0, "contents", False),
        (0, 3, "closure intermediates", False),
        (3, 4, "[i]", False),
        (4, 5, ".untyped_storage()", False),
    ]


def retained_twice() -> examples.Finding:
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


def test_both_owners_of_one_tensor_are_drawn() -> None:
    drawing = whole_drawing(retained_twice())
    assert [drawn.label for drawn in drawing.boxes] == [
        "module",
        "list kept",
        "Tensor float32[8]",
        "memory",
        "list seen",
    ]
    assert [(r.tail, r.head, r.name, r.cut, r.hop) for r in drawing.arrows] == [
        (0, 1, ".kept", True, 0),
        (1, 2, "[i]", False, 1),
        (2, 3, "storage", False, 2),
        (0, 4, ".seen", True, 4),
        (4, 2, "[i]", False, 5),
    ]


def test_equal_chains_are_one() -> None:
    """Nine dicts of a list, each with a tensor of its own, and one tensor of another shape."""
    boxes = [Box("list history"), Box("tensor memory")]
    arrows = []
    for number in range(10):
        shape = "Tensor[8]" if number else "Tensor[2]"
        boxes += [Box("dict"), Box(shape, bytes=32)]
        item, tensor = len(boxes) - 2, len(boxes) - 1
        arrows += [Arrow(0, item, f"[{number}]"), Arrow(item, tensor, "['loss']"), Arrow(tensor, 1, "storage")]
    drawing = merged(Drawing(tuple(boxes), tuple(arrows)))
    assert [(box.label, box.count, box.bytes) for box in drawing.boxes] == [
        ("list history", 1, 0), ("tensor memory", 1, 0), ("dict", 1, 0), ("Tensor[2]", 1, 32),
        ("dict", 9, 0), ("Tensor[8]", 9, 288),
    ]  # fmt: skip
    assert [(a.tail, a.head, a.name) for a in drawing.arrows] == [
        (0, 2, "[0]"), (2, 3, "['loss']"), (3, 1, "storage"), (0, 4, "[i]"), (4, 5, "['loss']"), (5, 1, "storage"),
    ]  # fmt: skip


@pytest.mark.process
@needs_dot
def test_a_drawing_is_well_formed_and_marks_the_cut() -> None:
    drawings = [drawing for finding in DRAWN if (drawing := of_finding(finding)) is not None]
    svgs = inline_svgs(drawings)
    assert len(svgs) == len(DRAWN)
    for svg, drawing in zip(svgs, drawings, strict=True):
        root = ElementTree.fromstring(svg)
        groups = [(g.get("class", "").split(), g.findtext(f"{SVG}title"), g) for g in root.iter(f"{SVG}g")]
        boxes = [title for classes, title, _ in groups if "box" in classes]
        assert sorted(map(str, boxes)) == sorted(box.label for box in drawing.boxes)
        (cut,) = [title for classes, title, _ in groups if "cut" in classes]
        assert [cut] == [arrow.name for arrow in drawing.arrows if arrow.cut]
        hops = sorted(group.get("data-hop", "") for classes, _, group in groups if "arrow" in classes)
        assert hops == sorted("" if arrow.hop is None else str(arrow.hop) for arrow in drawing.arrows)
        assert not [part for part in root.iter() if "id" in part.attrib], "ids of several drawings would collide"
        assert "var(--bad, #b42318)" in svg


@pytest.mark.process
def test_without_dot_the_page_has_the_path_alone_and_says_how_to_get_the_drawing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    run, findings = examples.leaking()
    drawable = [finding for finding in findings.findings if of_finding(finding) is not None]
    page = FORMATS["html"](run, findings)
    assert 'class="drawing"' not in page and page.count("Install Graphviz") == len(drawable) > 0
    assert page.count('<ol class="trace">') >= len(drawable)
