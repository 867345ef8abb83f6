"""What holds what, as a picture of one finding: for graphviz, as a drawing that stands alone, or as pixels."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.errors import LeakscopeError
from leakscope.findings.facts import HopStatus
from leakscope.findings.model import Finding, Findings
from leakscope.report.escape import cleaned
from leakscope.report.html.drawing import DrawnObject, DrawnReference, draw, drawing_of
from leakscope.units import plural

if TYPE_CHECKING:
    import graphviz

    from leakscope.run.model import Run

_MOST = 500
"""Objects of a picture, chosen: dot takes seconds for them, and nobody reads more."""
_FINGERPRINT = 8
"""Characters of a whole one: what is shorter and a number may be a finding's place in the list."""
_BAD, _BAD_TINT, _GOOD, _GOOD_TINT = "#b42318", "#fdeceb", "#146c43", "#e7f5ee"
_INK, _FAINT, _RULE, _CODE, _PAPER = "#1c2430", "#5a6676", "#d9dee6", "#f1f3f6", "#ffffff"
_FILL: Mapping[HopStatus, tuple[str, str]] = {
    HopStatus.LEAKED: (_BAD_TINT, _BAD),
    HopStatus.EXPECTED: (_GOOD_TINT, _GOOD),
    HopStatus.UNKNOWN: (_CODE, _RULE),
}
"""Colours of a box and of its border, as the page has them in the light."""
_STYLE = f"""
text {{ font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; text-anchor: middle; fill: {_INK}; }}
text.where {{ font-size: 11px; fill: {_FAINT}; }}
text.name {{ paint-order: stroke; stroke: {_PAPER}; stroke-width: 5px; fill: {_FAINT}; }}
text.name.cut {{ fill: {_BAD}; font-weight: 700; }}
text.scissors {{ font-family: system-ui, sans-serif; font-size: 11px; }}
.box rect {{ fill: {_CODE}; stroke: {_RULE}; stroke-width: 1.2; }}
.box.leaked rect {{ fill: {_BAD_TINT}; stroke: {_BAD}; }}
.box.expected rect {{ fill: {_GOOD_TINT}; stroke: {_GOOD}; }}
.box.storage rect {{ stroke-width: 2.4; }}
.arrow path {{ fill: none; stroke: {_FAINT}; stroke-width: 1.3; }}
.arrow polygon {{ fill: {_FAINT}; }}
.arrow.cut path {{ stroke: {_BAD}; stroke-width: 2.2; stroke-dasharray: 6 4; }}
.arrow.cut polygon {{ fill: {_BAD}; }}
"""


@dataclass(frozen=True)
class Picture:
    """A way to draw one finding, asked for like a format."""

    name: str
    """What `--as` calls it: one of `formats.PICTURES`."""
    finding: str
    """As `finding_named` takes it."""

    @property
    def suffix(self) -> str:
        """How its files end."""
        return f".{self.name}"

    def render(self, run: Run, findings: Findings) -> str | bytes:  # noqa: ARG002 - as a format's
        """The picture. Raises LeakscopeError where there is no such finding, or nothing to draw of it."""
        return _DRAWN[self.name](finding_named(findings, self.finding))


def finding_named(findings: Findings, name: str) -> Finding:
    """The finding of a fingerprint, of its unique beginning, or at that place in the list, from 1.

    Raises LeakscopeError where it is none, or more than one.
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


def dot_source(finding: Finding) -> str:
    """The picture as graphviz reads it."""
    return str(_graph(cleaned(finding)).source)


def png(finding: Finding) -> bytes:
    """The picture as graphviz draws it."""
    import graphviz

    try:
        drawn: bytes = _graph(cleaned(finding)).pipe(format="png", quiet=True)
    except graphviz.ExecutableNotFound:
        raise LeakscopeError(
            "png is drawn by graphviz's dot, which is not installed: install graphviz, or take --as svg"
        ) from None
    except subprocess.CalledProcessError as error:
        raise LeakscopeError(f"dot cannot draw it ({error}); take --as svg") from None
    return drawn


def svg(finding: Finding) -> str:
    """The drawing of the page, with its colours and its background in it."""
    drawn = draw(cleaned(finding), most=_MOST)
    if not drawn:
        raise _nothing(finding)
    opening, rest = drawn.split(">", 1)
    paper = f'<rect x="-8" y="-8" width="100%" height="100%" fill="{_PAPER}"/>'
    return f"{opening}><style>{_STYLE}</style>{paper}{rest}\n"


def _nothing(finding: Finding) -> LeakscopeError:
    return LeakscopeError(f"there is nothing to draw of {finding.fingerprint}: no reference is known, or too many are")


def _graph(finding: Finding) -> graphviz.Digraph:
    import graphviz

    drawing = drawing_of(finding)
    if not drawing.references or len(drawing.objects) > _MOST:
        raise _nothing(finding)
    graph = graphviz.Digraph(f"finding {finding.fingerprint}")
    graph.attr("graph", rankdir="TB", bgcolor=_PAPER)
    graph.attr("node", shape="box", style="rounded,filled", fontname="monospace", fontsize="12", fontcolor=_INK)
    graph.attr("edge", fontname="monospace", fontsize="11", color=_FAINT, fontcolor=_FAINT)
    for number, drawn in enumerate(drawing.objects):
        fill, border = _FILL[HopStatus(drawn.status)]
        graph.node(f"n{number}", label=_label(drawn), fillcolor=fill, color=border)
    for reference in drawing.references:
        name = graphviz.escape(reference.name)
        cut = {"color": _BAD, "fontcolor": _BAD, "style": "dashed", "penwidth": "2"} if reference.cut else {}
        graph.edge(f"n{reference.holder}", f"n{reference.held}", label=_edge_label(reference, name), **cut)
    return graph


def _label(drawn: DrawnObject) -> str:
    import graphviz

    lines = [graphviz.escape(line) for line in (drawn.label or "?", drawn.where) if line]
    return "\\n".join(lines)


def _edge_label(reference: DrawnReference, name: str) -> str:
    return f"{name}\\ncut here" if reference.cut else name


_DRAWN: Mapping[str, Callable[[Finding], str | bytes]] = {"dot": dot_source, "svg": svg, "png": png}
