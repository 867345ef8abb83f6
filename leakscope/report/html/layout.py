"""Where do boxes and arrows go? `dot` decides where it is installed, else they form a column."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
