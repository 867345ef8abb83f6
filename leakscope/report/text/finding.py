"""A finding as text: short or in full, with its reference path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leakscope.findings.facts import FreedBy
from leakscope.findings.model import Finding, Hop
from leakscope.findings.rules import rule_named
from leakscope.report.excerpt import adding_lines, allocation_sites, excerpts, folded_trace, seen_together, source_line
from leakscope.report.finding_text import (
    ADDED_AT,
    NO_TRACE,
    advice,
    also_text,
    closes_cycle,
    cut_frees_text,
    cut_name,
    cycle_text,
    freed_text,
    further_paths,
    held_text,
    holds_by,
    holds_nothing,
    line_to_edit,
    measured_text,
    new_reasons,
    no_cut_text,
    proved_text,
    seen_text,
    status_word,
    suspects,
    title,
    would_be_freed,
)
from leakscope.report.fix_text import finding_fix_lines
from leakscope.report.rendering import (
    Cropped,
    Line,
    Paragraph,
    broken,
    cells,
    field_lines,
    laid_out,
    one_line,
    segments,
    short_field,
    wrapped,
)
from leakscope.report.verdict_text import of_block
from leakscope.run.model import Run
from leakscope.units import bytes_span, bytes_text, plural, ranks_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

CLOSED = "back to the start of the cycle; then:"
"""Marks the end of the cycle in a trace."""


def trace_lines(finding: Finding, least: int = 0, brief: bool = False) -> Iterator[Line]:
    """The reference path: every object, why it is alive, and the reference by which it holds the next.

    Args:
        finding: The finding.
        least: Number of hops from which consecutive ones that need not be seen are counted instead; 0 for none.
        brief: Show only the root, the cut and the memory, without reasons.

    """
    if not finding.trace and not rule_named(finding.rule).names_holders:  # those with many holders name them elsewhere
        yield from wrapped(NO_TRACE, "   ")
    least = 1 if brief else least
    folded = [stretch.hops for stretch in folded_trace(finding, least) if stretch.is_folded] if least else []
    hidden = {hops.start: f"({plural(len(hops), 'hop')} hidden)" for hops in folded}
    at_fault, reasons = suspects(finding), new_reasons(finding)
    last = len(finding.trace) - 1
    for index, hop in enumerate(finding.trace):
        if any(index in hops for hops in folded):
            if index in hidden and not brief:
                yield f"   │    {hidden[index]}"
            continue
        yield from _object(hop, index, last)
        stem = _stem(index, last)
        more = f" {hidden[index + 1]}" if brief and index + 1 in hidden else ""
        if closes_cycle(finding, index):
            yield from wrapped(CLOSED + more, stem)
            continue
        status = status_word(finding, hop)
        if not brief and reasons[index]:
            yield from wrapped(f"{status}: {reasons[index]}", stem)
        elif not brief and (index == 0 or status != status_word(finding, finding.trace[index - 1])):
            yield f"{stem}{status}"
        if hop.reference and index < last:
            mark = _mark(finding, index, brief, index in at_fault) + more
            is_marked = not brief and (index in at_fault or index == finding.cut_position)
            yield _Reference(one_line(hop.reference), stem, mark, is_marked)


def further_path_lines(finding: Finding) -> Iterator[Line]:
    """The paths through references to cut that the trace does not contain."""
    for _, reference in further_paths(finding):
        yield ""
        yield "   also held by:"
        last = len(reference.path) - 1
        for index, hop in enumerate(reference.path):
            yield from _object(hop, index, last)
            if index < last:
                is_cut = holds_by(hop, reference)
                mark = "   <- cut here too" if is_cut else ""
                yield _Reference(one_line(hop.reference), _stem(index, last), mark, is_cut)


def _object(hop: Hop, index: int, last: int) -> Iterator[Line]:
    branch = "╰→ " if index == last else "┬─ " if index == 0 else "├─ "
    place = f"  ({hop.where})" if hop.where else ""
    yield from wrapped(f"{one_line(hop.object)}{place}", f"   {branch}", _stem(index, last))


def _stem(index: int, last: int) -> str:
    return "        " if index == last else "   │    "


def _mark(finding: Finding, index: int, brief: bool, is_suspect: bool) -> str:
    """The mark of a reference: whether it is the one to cut and, unless `brief`, the bytes that cutting it frees."""
    if finding.cut is not None and index == finding.cut_position:
        frees = "" if brief else f": {cut_frees_text(finding.cut)}"
        return f"   <- cut here{also_text(finding.cut)}{frees}"
    frees_bytes = finding.trace[index].frees_bytes
    return f"   (cutting this frees {bytes_text(frees_bytes)})" if is_suspect and not brief and frees_bytes else ""


@dataclass(frozen=True)
class _Reference:
    """A reference from one object of the trace to the next."""

    name: str
    stem: str
    mark: str
    underlined: bool

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Its name, followed by the mark, which moves to a line of its own if it does not fit."""
        width = options.max_width
        lead = f"{self.stem}↓ "
        room = width - len(lead)
        pieces = broken(self.name, room) or [""]
        for number, piece in enumerate(pieces):
            closing = number == len(pieces) - 1
            inline = self.mark if closing and cells(piece) + cells(self.mark) <= room else ""
            yield from segments([lead + piece + inline])
            lead = f"{self.stem}  "
            if self.underlined:
                yield from segments([lead + "~" * cells(piece)])
            if closing and self.mark and not inline:
                yield Paragraph(self.mark.strip(), lead, lead)


INDENT = "   "
"""Indentation of a finding's fields."""
COLUMN = 10
"""Width of the column of field names."""
SIGHTINGS_SHOWN = 4
"""Maximum number of snapshots listed (the last ones), and of groups of ranks with the same snapshots."""


def finding_lines(run: Run, finding: Finding, number: int, least: int = 0) -> Iterator[Line]:
    """A finding in full: title, trace, cut, fix and advice; `least` as in `trace_lines`."""
    yield from wrapped(f"{number}. {title(finding)}", "", "   ")
    block = of_block(run)
    held = held_text(finding, "after the block") if block else f"{held_text(finding)}; {seen_text(finding)}"
    yield from wrapped(f"{finding.rule} [{finding.fingerprint}]; {held}", "   ")
    yield ""
    if not holds_nothing(finding):
        yield from _held(run, finding, least)
    yield from finding_fix_lines(run, finding)
    if advice(finding):
        yield from field_lines("Advice:", advice(finding), INDENT, COLUMN)
    yield from _made_at(run, finding)
    if not block:
        yield from field_lines("Seen:", _sightings(finding), INDENT, COLUMN)
    yield from see_lines(finding)


def details(run: Run, finding: Finding) -> list[str]:
    """The reference path, the cut, what frees the memory, and where it was allocated, as lines of text."""
    held = () if holds_nothing(finding) else _held(run, finding, 0)
    return [line.rstrip() for line in laid_out([*held, *_made_at(run, finding)])]


def see_lines(finding: Finding) -> Iterator[Line]:
    """The function of `leakscope.backward` that avoids the leak, and the lines that use it."""
    if finding.see is None:
        return
    for index, line in enumerate(finding.see.lines):
        first = f"{INDENT}{('' if index else 'See:').ljust(COLUMN)}| "
        yield Paragraph(line, first, f"{INDENT}{' ' * COLUMN}|     ")
    yield from field_lines("", f"{finding.see.name} {finding.see.does}.", INDENT, COLUMN)


def _held(run: Run, finding: Finding, least: int) -> Iterator[Line]:
    """The trace, the cut, and what frees the memory."""
    if trace := list(trace_lines(finding, least)):
        yield from trace
        yield from further_path_lines(finding)
        yield ""
    yield from _cut(run, finding)
    yield from _added(run, finding)
    if cycle := cycle_text(finding):
        yield from field_lines("Cycle:", cycle, INDENT, COLUMN)
    yield from field_lines("Freed by:", freed_text(finding), INDENT, COLUMN)


def _added(run: Run, finding: Finding) -> Iterator[Line]:
    """The lines that add to the container to cut."""
    if lines := adding_lines(run, finding):
        yield f"{INDENT}{ADDED_AT}"
        for place, line in lines:
            yield from field_lines("", f"{place} | {line}" if line else place, INDENT, COLUMN)


def _made_at(run: Run, finding: Finding) -> Iterator[Line]:
    for index, (place, line) in enumerate(allocation_sites(run, finding)):
        yield from field_lines("Made at:" if index == 0 else "", place, INDENT, COLUMN)
        yield from _source(line)


def _source(line: str) -> Iterator[Line]:
    if line:
        yield from field_lines("", f"| {line}", INDENT, COLUMN)


def _cut(run: Run, finding: Finding) -> Iterator[Line]:
    cut = finding.cut
    if cut is None:
        yield from field_lines("Cut:", no_cut_text(finding), INDENT, COLUMN)
        return
    where = f", held at {cut.where}" if cut.where else ""
    text = f"`{cut_name(cut)}`{where}{also_text(cut)}: {would_be_freed(finding)}"
    yield from field_lines("Cut:", text, INDENT, COLUMN)
    yield from _source(source_line(run, cut.where))
    if proof := proved_text(finding):
        yield from field_lines("", proof, INDENT, COLUMN)


def _sightings(finding: Finding) -> str:
    """Snapshots and sizes, with ranks that have the same snapshots merged."""
    texts = []
    for seen in (together := seen_together(finding))[:SIGHTINGS_SHOWN]:
        steps = seen.at_each_step()
        shown = ", ".join(f"step {step}: {bytes_span(sizes)}" for step, sizes in steps[-SIGHTINGS_SHOWN:])
        more = f"{len(steps) - SIGHTINGS_SHOWN} earlier, " if len(steps) > SIGHTINGS_SHOWN else ""
        each = " each" if len(seen.ranks) > 1 else ""
        texts.append(f"{ranks_text(seen.ranks)}{each} ({more}{shown})")
    rest = sorted(rank for seen in together[SIGHTINGS_SHOWN:] for rank in seen.ranks)
    return "; ".join([*texts, *([f"{ranks_text(rest)} in other snapshots"] if rest else [])]) or "in no judged snapshot"


QUOTED = 5
"""Excerpts of more lines omit context lines (heuristic: keeps a finding on half a screen)."""
ADVICE = 3
"""Maximum lines of advice (heuristic: keeps a finding on half a screen)."""


def brief_finding_lines(run: Run, finding: Finding, number: int) -> Iterator[Line]:
    """A finding in short: title, source excerpt with the line to edit marked, cut, and folded trace."""
    yield from wrapped(f"{number}. {title(finding)}", "", "   ")
    yield from wrapped(_figures(run, finding), INDENT)
    yield ""
    quoted = list(_excerpts(run, finding))
    yield from quoted
    if not holds_nothing(finding):
        yield from _brief_cut(finding, is_named=number == 1 and finding.cut_position is not None)
    if not quoted and (places := ", ".join(place for place, _ in adding_lines(run, finding))):
        yield from field_lines("Added at:", places, INDENT, COLUMN)
    yield from finding_fix_lines(run, finding, around=1)
    if advice(finding):
        beside = bool(quoted) + (finding.see is not None)
        yield short_field("Advice:", advice(finding), ADVICE - beside, INDENT, COLUMN)
    yield from see_lines(finding)
    if not holds_nothing(finding) and (finding.freed_by != FreedBy.PROGRAM or finding.cut is None):
        yield short_field("Freed by:", freed_text(finding), 1, INDENT, COLUMN)
    if finding.see is None:
        yield from _brief_made_at(run, finding)
    if not holds_nothing(finding) and (trace := list(trace_lines(finding, brief=True))):
        yield from ("", *trace)


def _figures(run: Run, finding: Finding) -> str:
    """`36.00 MiB retained at the last snapshot, growing 3.00 MiB per step; ranks 0, 1; step-growth [17f7ca4b]`."""
    ranks = ranks_text(finding.ranks) if finding.ranks and not of_block(run) else ""
    name = f"{finding.rule} [{finding.fingerprint}]"
    shown = finding if holds_nothing(finding) else replace(finding, count=0)
    return "; ".join(filter(None, (held_text(shown, "after the block" if of_block(run) else ""), ranks, name)))


def _excerpts(run: Run, finding: Finding) -> Iterator[Line]:
    shown = excerpts(run, finding)
    if sum(len(excerpt.lines) for excerpt in shown) > QUOTED:
        shown = excerpts(run, finding, around=0)
    for excerpt in shown:
        yield from wrapped(excerpt.file, INDENT)
        digits = len(str(excerpt.lines[-1].number))
        before = excerpt.lines[0].number
        for line in excerpt.lines:
            if line.number > before + 1:
                yield f"{INDENT}        {'...'.rjust(digits)}"
            before = line.number
            mark = f"{'> ' if line.to_edit else ''}{line.mark}"
            gutter = f"{INDENT}{mark:>7} {line.number:>{digits}} | "
            if line.mark:
                yield Paragraph(line.text, gutter, " " * (len(gutter) + 4))
            else:
                yield Cropped(gutter + line.text)
    if shown:
        yield ""


def _brief_cut(finding: Finding, is_named: bool) -> Iterator[Line]:
    """The cut and the bytes it frees; `is_named` omits its name, which the report and the trace already show."""
    cut = finding.cut
    if cut is None:
        yield from field_lines("Cut:", no_cut_text(finding), INDENT, COLUMN)
        return
    place = line_to_edit(finding)
    where = f" at {place}" if place else ""
    name = "" if is_named else f"`{cut_name(cut)}`{where}{also_text(cut)}: "
    text = ", ".join(filter(None, (would_be_freed(finding), measured_text(finding))))
    yield from field_lines("Cut:", f"{name}{text}", INDENT, COLUMN)


def _brief_made_at(run: Run, finding: Finding) -> Iterator[Line]:
    """The main allocation site, in one line."""
    sites = allocation_sites(run, finding)
    for place, line in sites[:1]:
        more = f" and {len(finding.made_at) - 1} more" if len(finding.made_at) > 1 else ""
        text = f"{INDENT}{'Made at:'.ljust(COLUMN)}{place}{more}"
        yield Cropped(f"{text} | {line}" if line else text)
