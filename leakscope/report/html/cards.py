"""What does the card of a finding show?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.findings.kinds import HopStatus, Origin, RuleName, Severity
from leakscope.findings.model import Finding, Hop
from leakscope.record.model import Run
from leakscope.report import adding_lines, marks, wording
from leakscope.report.html.drawings import draw
from leakscope.report.html.filters import as_drawing

if TYPE_CHECKING:
    from markupsafe import Markup

COLUMN = 680
"""Width in px of the widest drawing that still reads well when shrunk into the column beside a trace."""


@dataclass(frozen=True)
class HopOnPage:
    """One hop as the page sets it."""

    hop: Hop
    colour: HopStatus
    """What is leaked stands out in a leak only: a note blames nobody."""
    reason: str
    """"" where it is that of the hop before."""
    suspect: bool
    """Its reference may be the one at fault."""
    cut: bool
    """Its reference is the one to cut."""
    closed: bool
    """The cycle is closed here."""


@dataclass(frozen=True)
class FindingOnPage:
    """One finding as the page sets it."""

    finding: Finding
    faint: bool
    """Nothing that the reader must mend: a note, or a library's."""
    hops: tuple[HopOnPage, ...]
    no_trace: bool
    """Nothing is known to lead to it; of a late release the holders are known, and many."""
    drawing: Markup | None
    wide: bool
    """The drawing needs the page's whole width."""
    cut_line: str
    added_at: tuple[tuple[str, str], ...]
    """(place, source line)"""
    made_at: tuple[tuple[str, str], ...]
    """(place, source line)"""
    sightings: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    """(rank, ((step, bytes), ...))"""


def finding_on_page(run: Run, finding: Finding, drawn: bool) -> FindingOnPage:
    """The finding with all that its card needs of the run; `drawn`: with a picture of its trace."""
    drawing = draw(finding) if drawn else ""
    width = re.search(r' width="(\d+)"', drawing)
    return FindingOnPage(
        finding=finding,
        faint=finding.severity != Severity.LEAK or finding.origin == Origin.LIBRARY,
        hops=_hops(finding),
        no_trace=not finding.trace and finding.rule != RuleName.LATE_RELEASE,
        drawing=as_drawing(drawing),
        wide=width is not None and int(width[1]) > COLUMN,
        cut_line=marks.source_line(run, finding.cut.where) if finding.cut is not None else "",
        added_at=adding_lines.adding_lines(run, finding),
        made_at=marks.allocation_sites(run, finding),
        sightings=tuple(
            (rank, tuple(sorted((s.step, s.bytes) for s in finding.sightings if s.rank == rank)))
            for rank in finding.ranks
        ),
    )


def _hops(finding: Finding) -> tuple[HopOnPage, ...]:
    at_fault, reasons = marks.suspects(finding), wording.new_reasons(finding)
    blames = finding.severity == Severity.LEAK
    return tuple(
        HopOnPage(
            hop=hop,
            colour=hop.status if blames or hop.status == HopStatus.EXPECTED else HopStatus.UNKNOWN,
            reason=reasons[index],
            suspect=index in at_fault,
            cut=index == finding.cut_position,
            closed=marks.closes_cycle(finding, index),
        )
        for index, hop in enumerate(finding.trace)
    )
