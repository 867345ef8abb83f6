"""The drawing of a reference path: boxes and arrows, laid out by `dot` where it is installed."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from leakscope.findings.facts import HopStatus
from leakscope.findings.model import Finding, Hop
from leakscope.graph.model import ObjectKind
from leakscope.report.escape import one_line
from leakscope.report.trace_marks import further_paths, holds_by

POINTS_PER_INCH = 72
"""Of graphviz's lengths; a point is drawn as one px."""
CHARACTER = 7.2
"""Width of a character of graphviz's 12 point Courier, in points."""
GAP = 48.0
"""Between two boxes of a column, in px: room for an arrow with its name."""
HEAD = 7.0
"""Length of an arrowhead in px; it is 8 px wide."""

Point = tuple[float, float]
Link = tuple[int, int, float]
"""Holder, held, width of the label in px."""


@dataclass(frozen=True)
class Box:
    """Size of one box in px."""

    width: float
    height: float


@dataclass(frozen=True)
class Arrow:
    """One arrow as SVG writes it."""

    path: str
    head: str
    """Points of the arrowhead's polygon."""
    label: Point
    """Middle of the label."""


@dataclass(frozen=True)
class Layout:
    """Centres of all boxes and the course of all arrows, in px from the top left."""

    centres: tuple[Point, ...]
    arrows: tuple[Arrow, ...]
    width: float
    height: float


def dot_layout(boxes: Sequence[Box], links: Sequence[Link]) -> Layout | None:
    """The layout of graphviz's `dot`; None where the binary is absent or fails.

    No text of the run is handed to it, only sizes.
    """
    import graphviz

    source = ["digraph {", 'graph [rankdir=TB nodesep=0.5 ranksep=0.45]; node [shape=box fixedsize=true label=""];']
    source += [
        f"n{i} [width={box.width / POINTS_PER_INCH:.3f} height={box.height / POINTS_PER_INCH:.3f}];"
        for i, box in enumerate(boxes)
    ]
    for number, (holder, held, width) in enumerate(links):
        letters = "x" * max(1, math.ceil(width / CHARACTER) + 2)
        source.append(f'n{holder} -> n{held} [id={number} label="{letters}\\nx" fontname="Courier" fontsize=12];')
    source.append("}")
    try:
        answer = graphviz.Source("\n".join(source)).pipe(format="json", encoding="utf-8", quiet=True)
    except (graphviz.ExecutableNotFound, subprocess.CalledProcessError):
        return None
    return _read_dot(json.loads(answer), len(boxes))


def _read_dot(data: dict[str, Any], count: int) -> Layout:
    """The JSON of `dot -Tjson`: points of 1/72 inch with y upwards, an edge's `pos` is `e,tip start bezier...`."""
    _, _, width, height = (float(number) for number in data["bb"].split(","))

    def point(text: str) -> Point:
        x, y = text.split(",")
        return float(x), height - float(y)

    centres = {node["name"]: point(node["pos"]) for node in data["objects"]}
    arrows = []
    for edge in sorted(data.get("edges", ()), key=lambda edge: int(edge["id"])):
        tip_text, *course = edge["pos"].split(" ")
        tip = point(tip_text.removeprefix("e,"))
        points = [point(text) for text in course]
        path = "M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in points[:1])
        path += " C" + " ".join(f"{x:.1f},{y:.1f}" for x, y in points[1:])
        arrows.append(Arrow(path, _head(points[-1], tip), point(edge["lp"])))
    return Layout(tuple(centres[f"n{i}"] for i in range(count)), tuple(arrows), width, height)


def column_layout(boxes: Sequence[Box], links: Sequence[Link]) -> Layout:
    """One box under the other; references to the next go straight down, all others round the right side."""
    widest = max(box.width for box in boxes)
    tops = [0.0]
    for box in boxes:
        tops.append(tops[-1] + box.height + GAP)
    centres = tuple((widest / 2, top + box.height / 2) for top, box in zip(tops, boxes, strict=False))
    arrows, right = [], widest
    for holder, held, label in links:
        if held == holder + 1:
            start, end = (widest / 2, tops[holder] + boxes[holder].height), (widest / 2, tops[held] - HEAD)
            path = f"M{start[0]:.1f},{start[1]:.1f} L{end[0]:.1f},{end[1]:.1f}"
            arrows.append(Arrow(path, _head(end, (end[0], end[1] + HEAD)), (start[0], (start[1] + end[1]) / 2)))
            right = max(right, widest / 2 + label / 2)
            continue
        start = (centres[holder][0] + boxes[holder].width / 2, centres[holder][1])
        tip = (centres[held][0] + boxes[held].width / 2, centres[held][1])
        bend = right + label + 30
        path = f"M{start[0]:.1f},{start[1]:.1f} C{bend:.1f},{start[1]:.1f}"
        path += f" {bend:.1f},{tip[1]:.1f} {tip[0] + HEAD:.1f},{tip[1]:.1f}"
        middle = (0.75 * bend + 0.125 * (start[0] + tip[0]), (start[1] + tip[1]) / 2)
        arrows.append(Arrow(path, _head((tip[0] + HEAD, tip[1]), tip), middle))
        right = middle[0] + label / 2
    return Layout(centres, tuple(arrows), right, tops[-1] - GAP)


def _head(base: Point, tip: Point) -> str:
    length = math.hypot(tip[0] - base[0], tip[1] - base[1]) or 1.0
    along = ((tip[0] - base[0]) / length, (tip[1] - base[1]) / length)
    across = (-along[1] * 4, along[0] * 4)
    corners = (tip, (base[0] + across[0], base[1] + across[1]), (base[0] - across[0], base[1] - across[1]))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


LINE = 34
"""Characters of a label on one line of a box: most labels fit, and two boxes fit side by side."""
MIN_OBJECTS, MAX_OBJECTS = 2, 24
"""Objects in one drawing; the words tell more than a longer one would, and of one object there is nothing to draw."""
PAGE_CHARACTER = 7.25
"""Width of one character of the drawing's 12 px monospace, in px."""


@dataclass(frozen=True)
class DrawnObject:
    """One box."""

    label: str
    where: str
    status: HopStatus
    kind: ObjectKind | None
    """None where only the cycle names it."""


@dataclass(frozen=True)
class DrawnReference:
    """One arrow, from and to boxes by index."""

    holder: int
    held: int
    name: str
    cut: bool
    hop: int | None = None
    """Position on the trace of the hop that holds by it; None where the trace does not lead over it."""


@dataclass(frozen=True)
class Drawing:
    """What is drawn of one finding."""

    objects: tuple[DrawnObject, ...]
    references: tuple[DrawnReference, ...]


def draw(finding: Finding, use_dot: bool = True, most: int = MAX_OBJECTS) -> str:
    """One `<svg>` of the finding's cycle and trace, or of the cycle alone where both are too long; "" where
    there is nothing to draw or too much: more objects than `most`.

    Laid out by graphviz's `dot` where it is installed, else as a column.
    """
    drawing = drawing_of(finding)
    if len(drawing.objects) > most and finding.cycle:
        drawing = _cycle_drawing(finding)
    if not MIN_OBJECTS <= len(drawing.objects) <= most or not drawing.references:
        return ""
    boxes = tuple(_box(drawn) for drawn in drawing.objects)
    arrows = tuple((r.holder, r.held, _label_width(r)) for r in drawing.references)
    layout = (dot_layout(boxes, arrows) if use_dot else None) or column_layout(boxes, arrows)
    return _svg(drawing, boxes, layout)


def drawing_of(finding: Finding) -> Drawing:
    """The cycle, and the trace joined to it where the two share objects; the cycle alone where they do not."""
    trace = _trace_drawing(finding, further=not finding.cycle)
    if not finding.cycle:
        return trace
    cycle = _cycle_drawing(finding)
    place = {index: box for box, index in enumerate(_objects_of_cycle(finding))}
    if not any(hop.index in place for hop in finding.trace):
        return cycle
    objects = list(cycle.objects)
    box_of: list[int] = []
    """For each hop its box: that of the object on the cycle, else one of its own."""
    for hop, drawn in zip(finding.trace, trace.objects, strict=True):
        if hop.index is not None and hop.index in place:
            box_of.append(place[hop.index])
            objects[box_of[-1]] = drawn
        else:
            box_of.append(len(objects))
            objects.append(drawn)
    arrows = [replace(r, holder=box_of[r.holder], held=box_of[r.held]) for r in trace.references]
    cut_shown = any(arrow.cut for arrow in arrows)
    arrows += [replace(r, cut=r.cut and not cut_shown) for r in cycle.references]
    once: dict[tuple[int, int, str], DrawnReference] = {}
    for arrow in arrows:
        same = once.setdefault((arrow.holder, arrow.held, arrow.name), arrow)
        once[arrow.holder, arrow.held, arrow.name] = replace(same, cut=same.cut or arrow.cut)
    return Drawing(tuple(objects), tuple(once.values()))


def _objects_of_cycle(finding: Finding) -> dict[int, str]:
    """Each object of the cycle, by its index in the heap graph, with its label, in the order of the cycle."""
    return {r.holder_index: r.holder for r in finding.cycle} | {r.held_index: r.held for r in finding.cycle}


def _trace_drawing(finding: Finding, further: bool) -> Drawing:
    """The trace and, with `further`, the paths over other references to cut, joined to it where they share objects."""
    objects = [_drawn(hop) for hop in finding.trace]
    references = [
        DrawnReference(index, index + 1, one_line(hop.reference), index == finding.cut_position, index)
        for index, hop in enumerate(finding.trace[:-1])
        if hop.reference
    ]
    box_of = {hop.index: box for box, hop in reversed([*enumerate(finding.trace)]) if hop.index is not None}
    drawn = {(r.holder, r.held, r.name) for r in references}
    for first, cut in further_paths(finding) if further else ():
        boxes = []
        for hop in cut.path:
            if hop.index is None or hop.index not in box_of:
                objects.append(_drawn(hop))
            boxes.append(len(objects) - 1 if hop.index is None else box_of.setdefault(hop.index, len(objects) - 1))
        for place, hop in enumerate(cut.path[:-1]):
            arrow = boxes[place], boxes[place + 1], one_line(hop.reference)
            if hop.reference and arrow not in drawn:
                drawn.add(arrow)
                references.append(DrawnReference(*arrow, holds_by(hop, cut), first + place))
    return Drawing(tuple(objects), tuple(references))


def _drawn(hop: Hop) -> DrawnObject:
    return DrawnObject(one_line(hop.object), hop.where, hop.status, hop.kind)


def _cycle_drawing(finding: Finding) -> Drawing:
    labels = _objects_of_cycle(finding)
    place = {index: box for box, index in enumerate(labels)}
    cut = frozenset(finding.cut.references[0].indexes if finding.cut is not None else ())
    objects = tuple(DrawnObject(one_line(label), "", HopStatus.LEAKED, None) for label in labels.values())
    references = tuple(
        DrawnReference(place[r.holder_index], place[r.held_index], one_line(r.name), r.index in cut)
        for r in finding.cycle
    )
    return Drawing(objects, references)


def _box(drawn: DrawnObject) -> Box:
    lines = _lines(drawn)
    return Box(max(len(line) for line in lines) * PAGE_CHARACTER + 22, 16 * len(lines) + 14)


def _label_width(reference: DrawnReference) -> float:
    return max(len(_shortened(reference.name, LINE)), 8 if reference.cut else 0) * PAGE_CHARACTER


def _lines(drawn: DrawnObject) -> list[str]:
    label = drawn.label or "?"
    lines = [label[:LINE], _shortened(label[LINE:], LINE)] if len(label) > LINE else [label]
    return [*lines, _end(drawn.where, LINE)] if drawn.where else lines


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _end(text: str, length: int) -> str:
    return text if len(text) <= length else "…" + text[1 - length :]


def _svg(drawing: Drawing, boxes: tuple[Box, ...], layout: Layout) -> str:
    width, height = layout.width + 16, layout.height + 16
    parts = [
        f'<svg class="drawing" viewBox="-8 -8 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"',
        f' style="min-width: {0.75 * width:.0f}px" role="img" xmlns="http://www.w3.org/2000/svg">',
        f"<title>What holds what</title><desc>{escape(_told(drawing))}</desc>",
    ]
    for reference, arrow in zip(drawing.references, layout.arrows, strict=True):
        kind = "arrow cut" if reference.cut else "arrow"
        hop = "" if reference.hop is None else f' data-hop="{reference.hop}"'
        parts.append(f'<g class="{kind}"{hop}><path d="{arrow.path}"/><polygon points="{arrow.head}"/></g>')
    for drawn, box, (x, y) in zip(drawing.objects, boxes, layout.centres, strict=True):
        parts.append(_drawn_box(drawn, box, x, y))
    for reference, arrow in zip(drawing.references, layout.arrows, strict=True):
        kind = "name cut" if reference.cut else "name"
        x, y = arrow.label
        name = escape(_shortened(reference.name, LINE))
        mark = f'<text class="name cut scissors" x="{x:.1f}" y="{y + 11:.1f}">cut here</text>' if reference.cut else ""
        up = -3 if reference.cut else 4
        whole = f"<title>{escape(reference.name)}</title>"
        parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y + up:.1f}">{name}{whole}</text>{mark}')
    return "".join(parts) + "</svg>"


def _told(drawing: Drawing) -> str:
    """`6 objects, from Trainer on; cut here: .losses of Trainer`; the trace tells them one by one."""
    cuts = [f"{r.name} of {drawing.objects[r.holder].label}" for r in drawing.references if r.cut]
    cut = f"; cut here: {', '.join(cuts)}" if cuts else ""
    return f"{len(drawing.objects)} objects, from {drawing.objects[0].label} on{cut}"


def _drawn_box(drawn: DrawnObject, box: Box, x: float, y: float) -> str:
    kind = " storage" if drawn.kind == ObjectKind.STORAGE else ""
    left, top = x - box.width / 2, y - box.height / 2
    parts = [
        f'<g class="box {drawn.status}{kind}"><title>{escape(drawn.label)}</title>',
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6"/>',
    ]
    lines = _lines(drawn)
    for number, line in enumerate(lines):
        place = ' class="where"' if drawn.where and number == len(lines) - 1 else ""
        parts.append(f'<text{place} x="{x:.1f}" y="{top + 19 + 16 * number:.1f}">{escape(line)}</text>')
    return "".join(parts) + "</g>"
