"""Drawings of references between objects: written for Graphviz, laid out by its `dot` program."""

from __future__ import annotations

import html
import re
import subprocess
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.errors import LeakscopeError
from leakscope.findings.facts import HopStatus
from leakscope.findings.live_objects import ReferencePaths
from leakscope.findings.model import Finding, Findings, Hop
from leakscope.graph.model import ObjectKind
from leakscope.report.finding_text import further_paths, holds_by
from leakscope.report.rendering import cleaned, one_line
from leakscope.units import bytes_text, plural

if TYPE_CHECKING:
    from leakscope.run.model import Run


NO_DOT = "Install Graphviz (its `dot` program) to see the reference path as a drawing."
"""Shown in place of a drawing."""
MIN_OBJECTS, MAX_OBJECTS = 2, 24
"""Boxes of a drawing on the page, heuristic: with twice as many the text of a box cannot be read without zooming."""
_LINE = 34
"""Maximum characters of a line in a box, heuristic: most labels fit, and two boxes fit side by side."""
_TEXT_FILES = (".dot", ".gv")
_SVG = "http://www.w3.org/2000/svg"
_FONT = 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace'

_INK, _FAINT, _RULE, _CODE, _PAPER = "#1c2430", "#5a6676", "#d9dee6", "#f1f3f6", "#ffffff"
_BAD, _BAD_TINT, _GOOD, _GOOD_TINT = "#b42318", "#fdeceb", "#146c43", "#e7f5ee"
_UNSURE, _UNSURE_TINT = "#8a5a00", "#fdf4e0"
_VARIABLES = {
    **{_INK: "--ink", _FAINT: "--faint", _RULE: "--rule", _CODE: "--code"},
    **{_BAD: "--bad", _BAD_TINT: "--bad-tint", _GOOD: "--good", _GOOD_TINT: "--good-tint"},
    **{_UNSURE: "--unsure", _UNSURE_TINT: "--unsure-tint"},
}
"""CSS variables of the page for the colours of a drawing, which are those of the page's light scheme."""


class Role(StrEnum):
    """Role of an object, as the legend names it."""

    LEAKED = "leaked"
    EXPECTED = "expected"
    ROOT = "GC root"
    MEMORY = "tensor memory"
    START = "the object"
    PLAIN = ""


_COLOURS: Mapping[Role, tuple[str, str]] = {
    Role.LEAKED: (_BAD_TINT, _BAD),
    Role.EXPECTED: (_GOOD_TINT, _GOOD),
    Role.ROOT: (_GOOD_TINT, _GOOD),
    Role.MEMORY: (_BAD_TINT, _BAD),
    Role.START: (_UNSURE_TINT, _UNSURE),
    Role.PLAIN: (_CODE, _RULE),
}
"""Fill and border of a box."""
_OF_STATUS = {HopStatus.LEAKED: Role.LEAKED, HopStatus.EXPECTED: Role.EXPECTED, HopStatus.UNKNOWN: Role.PLAIN}


@dataclass(frozen=True)
class Box:
    """One object, or several alike."""

    label: str
    where: str = ""
    role: Role = Role.PLAIN
    is_memory: bool = False
    bytes: int = 0
    """Its retained size; 0 if unknown."""
    count: int = 1


@dataclass(frozen=True)
class Arrow:
    """One reference, from and to boxes by index, or several alike."""

    tail: int
    head: int
    name: str
    cut: bool = False
    instances: int = 1
    """For a reference to cut: its instances in the heap."""
    hop: int | None = None
    """Position of its hop on the reference path; None if it is not on the path."""


@dataclass(frozen=True)
class Drawing:
    """Boxes and the arrows between them."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def of_finding(finding: Finding, most: int = MAX_OBJECTS) -> Drawing | None:
    """The drawing of a finding's cycle and reference path, or of the cycle alone if both are too large.

    None if there is nothing to draw, or more than `most` boxes.
    """
    drawing = merged(whole_drawing(finding))
    if len(drawing.boxes) > most and finding.cycle:
        drawing = merged(_cycle_drawing(finding))
    return drawing if MIN_OBJECTS <= len(drawing.boxes) <= most and drawing.arrows else None


def whole_drawing(finding: Finding) -> Drawing:
    """The cycle joined to the path if they share objects; otherwise the cycle alone."""
    path = _path_drawing(finding, further=not finding.cycle)
    if not finding.cycle:
        return path
    cycle = _cycle_drawing(finding)
    place = {index: box for box, index in enumerate(_objects_of_cycle(finding))}
    if not any(hop.index in place for hop in finding.trace):
        return cycle
    boxes = list(cycle.boxes)
    box_of: list[int] = []
    """For each hop its box: that of the object on the cycle, else its own."""
    for hop, box in zip(finding.trace, path.boxes, strict=True):
        if hop.index is not None and hop.index in place:
            box_of.append(place[hop.index])
            boxes[box_of[-1]] = replace(box, bytes=max(box.bytes, boxes[box_of[-1]].bytes))
        else:
            box_of.append(len(boxes))
            boxes.append(box)
    arrows = [replace(a, tail=box_of[a.tail], head=box_of[a.head]) for a in path.arrows]
    cut_shown = any(arrow.cut for arrow in arrows)
    arrows += [replace(a, cut=a.cut and not cut_shown) for a in cycle.arrows]
    once: dict[tuple[int, int, str], Arrow] = {}
    for arrow in arrows:
        same = once.setdefault((arrow.tail, arrow.head, arrow.name), arrow)
        once[arrow.tail, arrow.head, arrow.name] = replace(same, cut=same.cut or arrow.cut)
    return Drawing(tuple(boxes), tuple(once.values()))


def _objects_of_cycle(finding: Finding) -> dict[int, str]:
    """Each object of the cycle, by its index in the heap graph, with its label, in the order of the cycle."""
    return {r.holder_index: r.holder for r in finding.cycle} | {r.held_index: r.held for r in finding.cycle}


def _path_drawing(finding: Finding, further: bool) -> Drawing:
    """The path and, with `further`, those through other references to cut, joined at shared objects."""
    hops = finding.trace
    boxes = [_box(hop, before) for hop, before in zip(hops, (None, *hops), strict=False)]
    if boxes and boxes[-1].is_memory:
        boxes[-1] = replace(boxes[-1], bytes=finding.retained_bytes)
    arrows = [
        Arrow(
            index,
            index + 1,
            one_line(hop.reference),
            index == finding.cut_position,
            instances=_instances(finding) if index == finding.cut_position else 1,
            hop=index,
        )
        for index, hop in enumerate(hops[:-1])
        if hop.reference
    ]
    box_of = {hop.index: box for box, hop in reversed([*enumerate(hops)]) if hop.index is not None}
    drawn = {(a.tail, a.head, a.name) for a in arrows}
    for first, cut in further_paths(finding) if further else ():
        places = []
        for hop, before in zip(cut.path, (None, *cut.path), strict=False):
            if hop.index is None or hop.index not in box_of:
                boxes.append(_box(hop, before))
            places.append(len(boxes) - 1 if hop.index is None else box_of.setdefault(hop.index, len(boxes) - 1))
        for place, hop in enumerate(cut.path[:-1]):
            ends = places[place], places[place + 1], one_line(hop.reference)
            if hop.reference and ends not in drawn:
                drawn.add(ends)
                arrows.append(Arrow(*ends, holds_by(hop, cut), hop=first + place))
    return Drawing(tuple(boxes), tuple(arrows))


def _box(hop: Hop, before: Hop | None) -> Box:
    """The box of a hop; `before` is the previous hop, whose reference frees what this object retains."""
    size = 0 if before is None or not before.reference else before.frees_bytes or 0
    return Box(one_line(hop.object), hop.where, _OF_STATUS[hop.status], hop.kind == ObjectKind.STORAGE, size)


def _cycle_drawing(finding: Finding) -> Drawing:
    labels = _objects_of_cycle(finding)
    place = {index: box for box, index in enumerate(labels)}
    cut = frozenset(finding.cut.references[0].indexes if finding.cut is not None else ())
    boxes = tuple(Box(one_line(label), role=Role.LEAKED) for label in labels.values())
    arrows = tuple(
        Arrow(
            place[r.holder_index],
            place[r.held_index],
            one_line(r.name),
            r.index in cut,
            instances=_instances(finding) if r.index in cut else 1,
        )
        for r in finding.cycle
    )
    return Drawing(boxes, arrows)


def _instances(finding: Finding) -> int:
    """Instances of the first reference to cut."""
    return max(1, len(finding.cut.references[0].indexes)) if finding.cut is not None else 1


def of_paths(paths: ReferencePaths) -> Drawing:
    """The drawing of every path to one tensor."""
    ends = {path.links[-1].held for path in paths.ways if path.links}
    begins = {path.links[0].holder for path in paths.ways if path.links}
    boxes = tuple(
        Box(
            one_line(place.label),
            place.where,
            Role.MEMORY if index in ends else Role.ROOT if index in begins else Role.PLAIN,
            index in ends,
            paths.bytes if index in ends else 0,
        )
        for index, place in enumerate(paths.objects)
    )
    links = dict.fromkeys((link.holder, link.held, one_line(link.name)) for path in paths.ways for link in path.links)
    return merged(Drawing(boxes, tuple(Arrow(*link) for link in links)))


def merged(drawing: Drawing) -> Drawing:
    """Join equal chains: objects of one label with the same referrers and referents.

    `history[0]` to `history[8]` become `history[i]`, with a box that counts 9. Objects that refer to others of the same
    label, as in a linked list, stay separate. O(rounds * arrows), with as many rounds as the longest chain has boxes.
    """
    keys: list[Hashable] = [(box.label, box.where, box.role, box.is_memory) for box in drawing.boxes]
    while True:
        classes = _refined(keys, drawing.arrows)
        linked = {classes[a.tail] for a in drawing.arrows if classes[a.tail] == classes[a.head] and a.tail != a.head}
        if not linked:
            break
        keys = [(key, index) if classes[index] in linked else key for index, key in enumerate(keys)]
    members: dict[int, list[Box]] = {}
    for box, number in zip(drawing.boxes, classes, strict=True):
        members.setdefault(number, []).append(box)
    places = {number: place for place, number in enumerate(members)}
    boxes = tuple(
        replace(same[0], count=sum(box.count for box in same), bytes=sum(box.bytes for box in same))
        for same in members.values()
    )
    alike: dict[tuple[int, int, str], list[Arrow]] = {}
    for arrow in drawing.arrows:
        ends = places[classes[arrow.tail]], places[classes[arrow.head]]
        alike.setdefault((*ends, _any_item(arrow.name)), []).append(arrow)
    arrows = tuple(
        replace(
            same[0],
            tail=tail,
            head=head,
            name=same[0].name if len({arrow.name for arrow in same}) == 1 else name,
            cut=any(arrow.cut for arrow in same),
        )
        for (tail, head, name), same in alike.items()
    )
    return Drawing(boxes, arrows)


def _refined(keys: Sequence[Hashable], arrows: Sequence[Arrow]) -> list[int]:
    """A number for each box: equal for boxes with the same key and the same arrows from and to such boxes."""
    classes = _numbered(keys)
    while True:
        around: list[set[Hashable]] = [set() for _ in keys]
        for arrow in arrows:
            what = (_any_item(arrow.name), arrow.cut)
            around[arrow.tail].add((*what, "to", classes[arrow.head]))
            around[arrow.head].add((*what, "from", classes[arrow.tail]))
        finer = _numbered([(number, frozenset(near)) for number, near in zip(classes, around, strict=True)])
        if max(finer, default=0) == max(classes, default=0):
            return classes
        classes = finer


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _any_item(name: str) -> str:
    return re.sub(r"\[\d+\]", "[i]", name)


# Writing and rendering


def dot_source(drawing: Drawing, is_inline: bool = False) -> str:
    """The drawing in Graphviz's language. `is_inline`: without a background of its own."""
    import graphviz

    graph = graphviz.Digraph("references", graph_attr={"rankdir": "TB", "nodesep": "0.5", "ranksep": "0.45"})
    graph.attr("graph", bgcolor="transparent" if is_inline else _PAPER, fontname="DejaVu Sans Mono", fontsize="10")
    graph.attr("graph", label=_legend(drawing), labelloc="b")
    graph.attr("node", shape="box", style="rounded,filled", fontname="DejaVu Sans Mono", fontsize="12", fontcolor=_INK)
    graph.attr("node", margin="0.16,0.09")
    graph.attr("edge", fontname="DejaVu Sans Mono", fontsize="11")
    for number, box in enumerate(drawing.boxes):
        fill, border = _COLOURS[box.role]
        width = "2.4" if box.is_memory else "1.2"
        graph.node(f"n{number}", _label(box), id=f"n{number}", fillcolor=fill, color=border, penwidth=width)
    for number, arrow in enumerate(drawing.arrows):
        colour = _BAD if arrow.cut else _FAINT
        style = {"style": "dashed", "penwidth": "2.2"} if arrow.cut else {}
        name = _escaped(_shortened(arrow.name)) + (f" <b>&#215;{arrow.instances}</b>" if arrow.instances > 1 else "")
        label = f"<&#160;{name}{'<br/><b>✂ cut here</b>' if arrow.cut else ''}>"
        ends = f"n{arrow.tail}", f"n{arrow.head}"
        graph.edge(*ends, label, id=f"e{number}", color=colour, fontcolor=colour, **style)
    return str(graph.source)


def _label(box: Box) -> str:
    """The lines of a box as one of Graphviz's HTML-like labels."""
    name = one_line(box.label) or "?"
    lines = [_escaped(name[:_LINE]), *([_escaped(_shortened(name[_LINE:]))] if len(name) > _LINE else [])]
    if box.count > 1:
        lines[-1] += f" <b>&#215;{box.count}</b>"
    if box.bytes:
        lines.append(f"<b>{_escaped(bytes_text(box.bytes))}</b>")
    if box.where:
        end = box.where if len(box.where) <= _LINE else f"…{box.where[1 - _LINE :]}"
        lines.append(f'<font point-size="11" color="{_FAINT}">{_escaped(end)}</font>')
    return f"<{'<br/>'.join(lines)}>"


def _legend(drawing: Drawing) -> str:
    """The legend of the colours in use and of the bytes."""
    roles = [role for role in Role if role and any(box.role == role for box in drawing.boxes)]
    cell = '<td bgcolor="{}" border="1" color="{}">{}</td>'
    cells = [cell.format(*_COLOURS[role], f'<font color="{_INK}">{role}</font>') for role in roles]
    if any(box.bytes for box in drawing.boxes):
        cells.append(f'<td><font color="{_FAINT}"><b>bytes</b>: retained size</font></td>')
    rows = f"<tr>{''.join(cells)}</tr>"
    return f'<<table border="0" cellborder="0" cellspacing="6" cellpadding="3">{rows}</table>>' if cells else ""


def _escaped(text: str) -> str:
    return html.escape(cleaned(one_line(text)), quote=False)


def _shortened(text: str) -> str:
    return text if len(text) <= _LINE else f"{text[: _LINE - 1]}…"


def inline_svgs(drawings: Sequence[Drawing]) -> list[str]:
    """Each drawing as an `<svg>` in the page's colours; [] if `dot` is not installed or fails.

    One process draws them all: starting it takes longer than drawing ten.
    """
    import graphviz

    if not drawings:
        return []
    source = graphviz.Source("\n".join(dot_source(drawing, is_inline=True) for drawing in drawings))
    try:
        answer = source.pipe("svg", encoding="utf-8", quiet=True)
    except (graphviz.ExecutableNotFound, subprocess.CalledProcessError):
        return []
    documents = re.findall(r"<svg.*?</svg>", answer, re.DOTALL)
    return [_inlined(document, drawing) for document, drawing in zip(documents, drawings, strict=True)]


def _inlined(document: str, drawing: Drawing) -> str:
    """The output of `dot` without ids, with classes, titles and the page's colours."""
    from xml.etree import ElementTree

    root = ElementTree.fromstring(document)
    ElementTree.register_namespace("", _SVG)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    root.attrib |= {"class": "drawing", "role": "img", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    root.attrib["style"] = f"min-width: {0.75 * width:.0f}px"
    for number, (tag, text) in enumerate((("title", "Reference graph"), ("desc", _described(drawing)))):
        about = ElementTree.Element(f"{{{_SVG}}}{tag}")
        about.text = text
        root.insert(number, about)
    for part in root.iter():
        part.tail = None
        for name in ("fill", "stroke"):
            if (colour := part.get(name, "")) in _VARIABLES:
                part.set(name, f"var({_VARIABLES[colour]}, {colour})")
        if "font-family" in part.attrib:
            part.set("font-family", _FONT)
    for group in root.iter(f"{{{_SVG}}}g"):
        name, title = group.attrib.pop("id"), group.find(f"{{{_SVG}}}title")
        if title is None:
            continue
        if name.startswith("n"):
            box = drawing.boxes[int(name[1:])]
            group.set("class", f"box {box.role.name.lower()}")
            title.text = cleaned(box.label)
        elif name.startswith("e"):
            arrow = drawing.arrows[int(name[1:])]
            group.set("class", "arrow cut" if arrow.cut else "arrow")
            title.text = cleaned(arrow.name)
            if arrow.hop is not None:
                group.set("data-hop", str(arrow.hop))
        else:
            group.remove(title)
    return ElementTree.tostring(root, encoding="unicode")


def _described(drawing: Drawing) -> str:
    """`6 objects, starting at Trainer; cut: .losses of Trainer`, for screen readers: the path lists them one by one."""
    cuts = [f"{arrow.name} of {drawing.boxes[arrow.tail].label}" for arrow in drawing.arrows if arrow.cut]
    cut = f"; cut: {', '.join(cuts)}" if cuts else ""
    return cleaned(f"{sum(box.count for box in drawing.boxes)} objects, starting at {drawing.boxes[0].label}{cut}")


def svg(source: str) -> str | None:
    """Render a source in Graphviz's language as an `<svg>`; None if `dot` is not installed or fails."""
    try:
        return rendered(source, "svg").decode()
    except LeakscopeError:
        return None


def rendered(source: str, kind: str) -> bytes:
    """A source in Graphviz's language as an image: `svg`, without an XML declaration, `png`, `pdf` and others.

    Raises:
        LeakscopeError: `dot` is not installed or fails.

    """
    import graphviz

    try:
        image: bytes = graphviz.Source(source).pipe(kind, quiet=True)
    except graphviz.ExecutableNotFound:
        raise LeakscopeError(f"{kind} needs Graphviz's `dot`, which is not installed: install graphviz") from None
    except subprocess.CalledProcessError as error:
        raise LeakscopeError(f"dot failed ({error})") from None
    return image[image.find(b"<svg") :] if kind == "svg" else image


def write(source: str, path: str | Path) -> Path:
    """Write a source in Graphviz's language to a file, as an image unless its suffix is `.dot` or `.gv`.

    Raises:
        LeakscopeError: the suffix is of no image format, or `dot` is not installed or fails.

    """
    import graphviz

    path = Path(path)
    kind = path.suffix.removeprefix(".")
    if path.suffix in _TEXT_FILES:
        path.write_text(source, encoding="utf-8")
    elif kind in graphviz.FORMATS:
        path.write_bytes(rendered(source, kind))
    else:
        raise LeakscopeError(f"unknown image format: {path}; end its name in .svg, .png, .pdf or .dot")
    return path


_MOST = 500
"""Maximum objects of a picture, heuristic: dot takes seconds for them."""
_FINGERPRINT = 8
"""Characters of a fingerprint; a shorter number is a position in the list."""


@dataclass(frozen=True)
class Picture:
    """A drawing of one finding, requested like a format."""

    name: str
    """Its name for `--as`: one of `formats.PICTURES`."""
    finding: str
    """Argument of `finding_named`."""

    @property
    def suffix(self) -> str:
        """The suffix of its files."""
        return f".{self.name}"

    def render(self, run: Run, findings: Findings) -> str | bytes:  # noqa: ARG002 - as a format's
        """Render the picture.

        Raises:
            LeakscopeError: There is no such finding, nothing to draw of it, or `dot` is not installed.

        """
        source = finding_dot(finding_named(findings, self.finding))
        if self.name == "dot":
            return source
        image = rendered(source, self.name)
        return image.decode() if self.name == "svg" else image


def finding_named(findings: Findings, name: str) -> Finding:
    """The finding of a fingerprint, of its unique prefix, or at that position in the list, from 1.

    Raises LeakscopeError if there is none, or more than one.
    """
    listed = findings.findings + findings.suppressed
    if name.isascii() and name.isdigit() and len(name) < _FINGERPRINT and 1 <= int(name) <= len(listed):
        return listed[int(name) - 1]
    found = [finding for finding in listed if name and finding.fingerprint.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise LeakscopeError(f"{name!r} begins the fingerprints of {plural(len(found), 'finding')}; give more of it")
    known = ", ".join(finding.fingerprint for finding in listed[:_FINGERPRINT])
    raise LeakscopeError(f"no finding is {name!r}; " + (f"there are {known}" if known else "the run has none"))


def finding_dot(finding: Finding) -> str:
    """The drawing in Graphviz's language.

    Raises:
        LeakscopeError: No reference of the finding is known, or too many are.

    """
    drawn = of_finding(finding, _MOST)
    if drawn is None:
        raise LeakscopeError(f"nothing to draw of {finding.fingerprint}: no reference is known, or too many are")
    return dot_source(drawn)
