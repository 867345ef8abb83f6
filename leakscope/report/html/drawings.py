"""A trace or a cycle as a picture: boxes for objects, arrows for references, the cut marked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape

from leakscope.findings.kinds import HopStatus
from leakscope.findings.model import Finding, Hop
from leakscope.graph.model import ObjectKind
from leakscope.report.cleaning import one_line
from leakscope.report.html.layout import Box, Layout, column_layout, dot_layout
from leakscope.report.marks import further_paths, holds_by

LINE = 34
"""Characters of a label on one line of a box: most labels fit, and two boxes fit side by side."""
MIN_OBJECTS, MAX_OBJECTS = 2, 24
"""Objects in one drawing; the words tell more than a longer one would, and of one object there is nothing to draw."""
CHARACTER = 7.25
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
    return Box(max(len(line) for line in lines) * CHARACTER + 22, 16 * len(lines) + 14)


def _label_width(reference: DrawnReference) -> float:
    return max(len(_shortened(reference.name, LINE)), 8 if reference.cut else 0) * CHARACTER


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
