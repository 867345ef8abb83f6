"""Which objects lead from the root down to the memory, and which reference among them is to be cut?"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from leakscope.findings.kinds import RuleName
from leakscope.findings.model import Finding, Hop
from leakscope.report.cleaning import one_line
from leakscope.report.excerpt import folded_trace
from leakscope.report.marks import NO_TRACE, closes_cycle, further_paths, holds_by, suspects
from leakscope.report.text.lines import Line, Paragraph, cells, wrapped
from leakscope.report.wording import also_text, cut_frees_text, new_reasons, status_word
from leakscope.units import bytes_text

CLOSED = "the cycle is closed; from it on to the memory:"
"""Where a trace has gone once around."""


def trace_lines(finding: Finding, least: int = 0) -> Iterator[Line]:
    """Every object, why it is alive, and the reference by which it holds the next; `least` hops or more that need not
    be seen are counted, none where it is 0.
    """
    yield from _without_trace(finding)
    at_fault, reasons = suspects(finding), new_reasons(finding)
    folded = [stretch.hops for stretch in folded_trace(finding, least) if stretch.is_folded] if least else []
    for index, hop in enumerate(finding.trace):
        if any(index in hops for hops in folded):
            yield from (f"   │    ... {len(hops)} more between" for hops in folded if index == hops.start)
            continue
        yield from _object(finding, index)
        stem = _stem(finding, index)
        if closes_cycle(finding, index):
            yield from wrapped(CLOSED, stem)
            continue
        status = status_word(finding, hop)
        if reasons[index]:
            yield from wrapped(f"{status}: {reasons[index]}", stem)
        elif index == 0 or status != status_word(finding, finding.trace[index - 1]):
            yield f"{stem}{status}"
        if hop.reference and index < len(finding.trace) - 1:
            mark = _mark(finding, hop, index, cut_frees=True, others=index in at_fault)
            yield _Reference(one_line(hop.reference), stem, mark, index in at_fault or index == finding.cut_position)


def further_path_lines(finding: Finding) -> Iterator[Line]:
    """The reference paths over the references to cut that the trace does not lead over."""
    for _, reference in further_paths(finding):
        yield ""
        yield "   held as well by:"
        last = len(reference.path) - 1
        for index, hop in enumerate(reference.path):
            branch = "╰→ " if index == last else "┬─ " if index == 0 else "├─ "
            place = f"  ({hop.where})" if hop.where else ""
            stem = "        " if index == last else "   │    "
            yield from wrapped(f"{one_line(hop.object)}{place}", f"   {branch}", stem)
            if index < last:
                is_cut = holds_by(hop, reference)
                yield _Reference(one_line(hop.reference), stem, "   <- cut here, too" if is_cut else "", is_cut)


def folded_trace_lines(finding: Finding) -> Iterator[Line]:
    """The root, the cut and the memory; of what lies between, how much there is."""
    yield from _without_trace(finding)
    stretches = folded_trace(finding, least=1)
    folded = {stretch.hops.start: len(stretch.hops) for stretch in stretches if stretch.is_folded}
    for stretch in stretches:
        if stretch.is_folded:
            continue
        for index in stretch.hops:
            yield from _object(finding, index)
            hop, stem = finding.trace[index], _stem(finding, index)
            more = f" ... {folded[index + 1]} more between" if index + 1 in folded else ""
            if closes_cycle(finding, index):
                yield from wrapped(CLOSED + more, stem)
            elif hop.reference and index < len(finding.trace) - 1:
                yield _Reference(one_line(hop.reference), stem, _mark(finding, hop, index) + more, False)


def _without_trace(finding: Finding) -> Iterator[Line]:
    if not finding.trace and finding.rule != RuleName.LATE_RELEASE:  # of that the holders are known, and many
        yield from wrapped(NO_TRACE, "   ")


def _object(finding: Finding, index: int) -> Iterator[Line]:
    hop = finding.trace[index]
    branch = "╰→ " if index == len(finding.trace) - 1 else "┬─ " if index == 0 else "├─ "
    place = f"  ({hop.where})" if hop.where else ""
    yield from wrapped(f"{one_line(hop.object)}{place}", f"   {branch}", _stem(finding, index))


def _stem(finding: Finding, index: int) -> str:
    return "        " if index == len(finding.trace) - 1 else "   │    "


def _mark(finding: Finding, hop: Hop, index: int, cut_frees: bool = False, others: bool = False) -> str:
    """What there is to say of a reference: that it is the one to cut, and what that would free."""
    if finding.cut is not None and index == finding.cut_position:
        frees = f": {cut_frees_text(finding.cut)}" if cut_frees else ""
        return f"   <- cut here{also_text(finding.cut)}{frees}"
    return f"   (cutting it would free {bytes_text(hop.frees_bytes)})" if others and hop.frees_bytes else ""


@dataclass(frozen=True)
class _Reference:
    """The reference that leads from one object of the trace to the next."""

    name: str
    stem: str
    mark: str
    underlined: bool

    def lines(self, width: int) -> Iterator[str]:
        """Its name, and the mark behind it or, where there is no room for that, below."""
        lead = f"{self.stem}↓ "
        room = width - len(lead)
        pieces = textwrap.wrap(self.name, room) or [""]
        for number, piece in enumerate(pieces):
            closing = number == len(pieces) - 1
            inline = self.mark if closing and cells(piece) + cells(self.mark) <= room else ""
            yield lead + piece + inline
            lead = f"{self.stem}  "
            if self.underlined:
                yield lead + "~" * cells(piece)
            if closing and self.mark and not inline:
                yield from Paragraph(self.mark.strip(), lead, lead).lines(width)
