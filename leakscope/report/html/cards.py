"""The card of a finding on the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.findings.facts import HopStatus, Origin, Severity
from leakscope.findings.model import Finding, Hop, Sighting
from leakscope.findings.rules import rule_named
from leakscope.report import excerpt, messages, trace_marks
from leakscope.report.charts import sparkline
from leakscope.report.excerpt import Excerpt, LineMark, excerpts, folded_trace
from leakscope.report.html import markup
from leakscope.report.occurrences import Seen, seen_together
from leakscope.run.model import Run

if TYPE_CHECKING:
    from markupsafe import Markup


def bytes_by_step(sightings: Iterable[Sighting]) -> tuple[tuple[int, int], ...]:
    """(step, bytes of all ranks), in order; a rank without a sighting at a step keeps its previous bytes."""
    seen = sorted(sightings, key=lambda sighting: (sighting.step, sighting.rank))
    held: dict[int, int] = {}
    together: dict[int, int] = {}
    for sighting in seen:
        held[sighting.rank] = sighting.bytes
        together[sighting.step] = sum(held.values())
    return tuple(together.items())


AROUND = 2
"""Lines of source on each side of a marked one; heuristic: more hide the path, fewer the context."""
MARKS: Mapping[LineMark, str] = {
    LineMark.HOLDS: "retains it",
    LineMark.ADDS: "adds to it",
    LineMark.EDIT: "suggested fix",
}
"""Label of a marked line, so that its meaning does not depend on colour."""


@dataclass(frozen=True)
class HopOnPage:
    """A hop of a reference path."""

    hop: Hop
    position: int
    """On the trace."""
    colour: HopStatus
    """Red in a leak only: in a note the status of leaked objects is shown as unknown."""
    reason: str
    """"" if it is that of the previous hop."""
    suspect: bool
    """Whether its reference may be at fault."""
    cut: bool
    """Whether its reference is the one to cut."""
    closed: bool
    """Whether the cycle ends here."""
    last: bool
    """Whether it is the memory."""
    further: bool = False
    """Whether it is on a path beside the trace."""


@dataclass(frozen=True)
class StretchOnPage:
    """Consecutive hops, visible or folded."""

    hops: tuple[HopOnPage, ...]
    folded: bool


@dataclass(frozen=True)
class LineOnPage:
    """One of the user's own lines."""

    number: int
    text: str
    kind: LineMark
    mark: str
    """Its label; "" for unmarked lines."""
    begin: bool
    """The line to edit."""
    gap: bool
    """Whether omitted lines precede it."""

    @property
    def indent(self) -> int:
        """Leading spaces; the continuation of a broken line is indented as far."""
        return len(self.text) - len(self.text.lstrip(" "))


@dataclass(frozen=True)
class FindingOnPage:
    """A card."""

    finding: Finding
    faint: bool
    """Whether it is a note, or a library's, rather than a leak of the application."""
    spark: Markup | None
    stretches: tuple[StretchOnPage, ...]
    further_paths: tuple[tuple[HopOnPage, ...], ...]
    """The paths through references to cut that are not on the trace."""
    no_trace: bool
    """No reference path is known. A late release has referrers, but no single path."""
    drawing: Markup | None
    is_undrawn: bool
    """There would be a drawing if `dot` were installed."""
    code: tuple[tuple[str, tuple[LineOnPage, ...]], ...]
    """(file, its lines)"""
    unkept: tuple[tuple[str, str], ...]
    """(what it does, place) of those whose source was not kept."""
    edit: tuple[str, ...]
    """Lines of the suggested fix as `diff` writes them; () without one."""
    pasted: str
    """Replacement text of the suggested fix; "" without one, or if it is of several places."""
    made_at: tuple[tuple[str, str], ...]
    """(place, source line)"""
    made_elsewhere: tuple[str, str] | None
    """The first of those, if `code` does not show that line."""
    sightings: tuple[Seen, ...]


def finding_on_page(run: Run, finding: Finding, svg: str = "", is_undrawn: bool = False) -> FindingOnPage:
    """The finding with everything that its card needs.

    Args:
        run: The run of the finding.
        finding: The finding.
        svg: The drawing of its reference path, if there is one.
        is_undrawn: Whether there would be a drawing if `dot` were installed.

    """
    code = tuple((shown.file, _lines(run, shown)) for shown in excerpts(run, finding, AROUND))
    return FindingOnPage(
        finding=finding,
        faint=finding.severity != Severity.LEAK or finding.origin == Origin.LIBRARY,
        spark=markup(sparkline(bytes_by_step(finding.sightings))),
        stretches=_stretches(finding),
        further_paths=_further_paths(finding),
        no_trace=not finding.trace and not rule_named(finding.rule).names_holders,
        drawing=markup(svg),
        is_undrawn=is_undrawn,
        code=code,
        unkept=_unkept(run, finding),
        edit=excerpt.edit_lines(finding.suggestion) if finding.suggestion is not None else (),
        pasted=finding.suggestion.after if finding.suggestion is not None and not finding.suggestion.also else "",
        made_at=trace_marks.allocation_sites(run, finding),
        made_elsewhere=_made_elsewhere(run, finding, code),
        sightings=seen_together(finding),
    )


def _lines(run: Run, shown: Excerpt) -> tuple[LineOnPage, ...]:
    source = run.sources[shown.file]
    numbers = [line.number for line in shown.lines]
    before = [number - 1 for number in numbers[:1]] + numbers
    return tuple(
        LineOnPage(
            line.number,
            line.text,
            line.mark,
            MARKS.get(line.mark, ""),
            line.to_edit,
            any(text.strip() for text in source[previous : line.number - 1]),
        )
        for previous, line in zip(before, shown.lines, strict=False)
    )


def _made_elsewhere(
    run: Run, finding: Finding, code: tuple[tuple[str, tuple[LineOnPage, ...]], ...]
) -> tuple[str, str] | None:
    if not finding.made_at:
        return None
    kept = trace_marks.kept_line(run, where := finding.made_at[0])
    shown = {(file, line.number) for file, lines in code for line in lines}
    is_shown = kept is not None and (kept.name, kept.number) in shown
    return None if is_shown else (where, trace_marks.source_line(run, where))


def _unkept(run: Run, finding: Finding) -> tuple[tuple[str, str], ...]:
    references = finding.cut.references if finding.cut is not None else ()
    places = [(MARKS[LineMark.HOLDS], reference.where) for reference in references]
    places += [(MARKS[LineMark.ADDS], place) for place, _ in excerpt.adding_lines(run, finding)]
    return tuple((does, place) for does, place in places if place and trace_marks.kept_line(run, place) is None)


def _stretches(finding: Finding) -> tuple[StretchOnPage, ...]:
    hops = _hops(finding)
    return tuple(
        StretchOnPage(hops[stretch.hops.start : stretch.hops.stop], stretch.is_folded)
        for stretch in folded_trace(finding)
    )


def _further_paths(finding: Finding) -> tuple[tuple[HopOnPage, ...], ...]:
    return tuple(
        tuple(
            HopOnPage(
                hop=hop,
                position=first + index,
                colour=_colour(finding, hop),
                reason="",
                suspect=trace_marks.holds_by(hop, reference),
                cut=trace_marks.holds_by(hop, reference),
                closed=False,
                last=index == len(reference.path) - 1,
                further=True,
            )
            for index, hop in enumerate(reference.path)
        )
        for first, reference in trace_marks.further_paths(finding)
    )


def _colour(finding: Finding, hop: Hop) -> HopStatus:
    blames = finding.severity == Severity.LEAK
    return hop.status if blames or hop.status == HopStatus.EXPECTED else HopStatus.UNKNOWN


def _hops(finding: Finding) -> tuple[HopOnPage, ...]:
    at_fault, reasons = trace_marks.suspects(finding), messages.new_reasons(finding)
    return tuple(
        HopOnPage(
            hop=hop,
            position=index,
            colour=_colour(finding, hop),
            reason=reasons[index],
            suspect=index in at_fault,
            cut=index == finding.cut_position,
            closed=trace_marks.closes_cycle(finding, index),
            last=index == len(finding.trace) - 1,
        )
        for index, hop in enumerate(finding.trace)
    )
