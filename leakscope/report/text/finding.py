"""What holds this memory, from the root down, and which reference is to be cut?"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.findings.model import Finding
from leakscope.record.model import Run
from leakscope.report.adding_lines import ADDED_AT, SUGGESTION, adding_lines, edit_lines
from leakscope.report.marks import allocation_sites, source_line
from leakscope.report.sightings import seen_together
from leakscope.report.text.lines import Line, Paragraph, field_lines, wrapped
from leakscope.report.text.trace import further_path_lines, trace_lines
from leakscope.report.wording import (
    advice,
    also_text,
    bytes_span,
    cut_name,
    cycle_text,
    freed_text,
    held_text,
    holds_nothing,
    no_cut_text,
    of_block,
    proved_text,
    ranks_text,
    seen_text,
    title,
    would_be_freed,
)

INDENT, COLUMN = "   ", 10
"""Before a field of a finding, and the columns that its name takes."""
SIGHTINGS_SHOWN = 4
"""Looks, the last ones, and ranks that looked at other steps: a line of each."""


def finding_lines(run: Run, finding: Finding, number: int, least: int = 0) -> Iterator[Line]:
    """One finding: its title, its trace, its cut, and what there is to do; `least` as `trace_lines` has it."""
    yield from wrapped(f"{number}. {title(finding)}", "", "   ")
    block = of_block(run)
    held = held_text(finding, "after the block") if block else f"{held_text(finding)}; {seen_text(finding)}"
    yield from wrapped(f"{finding.rule} [{finding.fingerprint}]; {held}", "   ")
    yield ""
    if not holds_nothing(finding):
        yield from _held(run, finding, least)
    if advice(finding):
        yield from field_lines("advice", advice(finding), INDENT, COLUMN)
    yield from _made_at(run, finding)
    if not block:
        yield from field_lines("seen", _sightings(finding), INDENT, COLUMN)
    yield from see_lines(finding)


def see_lines(finding: Finding) -> Iterator[Line]:
    """What of leakscope's own backward does without it: the lines to write, and what they do instead."""
    if finding.see is None:
        return
    for index, line in enumerate(finding.see.lines):
        first = f"{INDENT}{('' if index else 'see').ljust(COLUMN)}| "
        yield Paragraph(line, first, f"{INDENT}{' ' * COLUMN}|     ")
    yield from field_lines("", f"{finding.see.name} {finding.see.does}.", INDENT, COLUMN)


def _held(run: Run, finding: Finding, least: int) -> Iterator[Line]:
    """What holds the memory, what to cut, and who frees it."""
    if trace := list(trace_lines(finding, least)):
        yield from trace
        yield from further_path_lines(finding)
        yield ""
    yield from _cut(run, finding)
    yield from _added(run, finding)
    if cycle := cycle_text(finding):
        yield from field_lines("cycle", cycle, INDENT, COLUMN)
    yield from field_lines("freed by", freed_text(finding), INDENT, COLUMN)


def _added(run: Run, finding: Finding) -> Iterator[Line]:
    """The lines that add to what is cut, and the edit of one that would mend it."""
    if lines := adding_lines(run, finding):
        yield f"{INDENT}{ADDED_AT}"
        for place, line in lines:
            yield from field_lines("", f"{place} | {line}" if line else place, INDENT, COLUMN)
    if finding.suggestion is not None:
        yield from wrapped(f"{SUGGESTION} {finding.suggestion.where}", INDENT)
        for line in edit_lines(finding.suggestion):
            yield from field_lines("", line, INDENT, COLUMN)


def _made_at(run: Run, finding: Finding) -> Iterator[Line]:
    for index, (place, line) in enumerate(allocation_sites(run, finding)):
        yield from field_lines("made at" if index == 0 else "", place, INDENT, COLUMN)
        yield from _source(line)


def _source(line: str) -> Iterator[Line]:
    if line:
        yield from field_lines("", f"| {line}", INDENT, COLUMN)


def _cut(run: Run, finding: Finding) -> Iterator[Line]:
    cut = finding.cut
    if cut is None:
        yield from field_lines("cut", no_cut_text(finding), INDENT, COLUMN)
        return
    where = f", held at {cut.where}" if cut.where else ""
    text = f"`{cut_name(cut)}`{where}{also_text(cut)}: {would_be_freed(finding)}"
    yield from field_lines("cut", text, INDENT, COLUMN)
    yield from _source(source_line(run, cut.where))
    if proof := proved_text(finding):
        yield from field_lines("", proof, INDENT, COLUMN)


def _sightings(finding: Finding) -> str:
    """Ranks that saw it at the same looks together, with the smallest and the largest size of theirs."""
    told = []
    for seen in (together := seen_together(finding))[:SIGHTINGS_SHOWN]:
        steps = seen.at_each_step()
        shown = ", ".join(f"step {step}: {bytes_span(sizes)}" for step, sizes in steps[-SIGHTINGS_SHOWN:])
        more = f"{len(steps) - SIGHTINGS_SHOWN} earlier, " if len(steps) > SIGHTINGS_SHOWN else ""
        each = " each" if len(seen.ranks) > 1 else ""
        told.append(f"{ranks_text(seen.ranks)}{each} ({more}{shown})")
    rest = sorted(rank for seen in together[SIGHTINGS_SHOWN:] for rank in seen.ranks)
    return "; ".join([*told, *([f"{ranks_text(rest)} at other looks"] if rest else [])]) or "at no judged look"
