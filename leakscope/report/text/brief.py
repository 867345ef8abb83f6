"""One finding on half a screen: what it holds, which line to edit, what that frees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from leakscope.findings.kinds import FreedBy
from leakscope.findings.model import Finding
from leakscope.record.model import Run
from leakscope.report.adding_lines import adding_lines, edit_lines
from leakscope.report.excerpt import excerpts
from leakscope.report.marks import allocation_sites
from leakscope.report.text.finding import see_lines
from leakscope.report.text.lines import Cropped, Line, Paragraph, field_lines, short_field, wrapped
from leakscope.report.text.trace import folded_trace_lines
from leakscope.report.wording import (
    advice,
    also_text,
    cut_name,
    freed_text,
    held_text,
    holds_nothing,
    line_to_edit,
    measured_text,
    no_cut_text,
    of_block,
    ranks_text,
    title,
    would_be_freed,
)

INDENT, COLUMN = "   ", 10
"""Before a field of a finding, and the columns that its name takes."""
QUOTED = 5
"""Lines of source, chosen, from which on none is quoted that only stands beside."""
ADVICE = 3
"""Lines of advice at most, chosen."""


def brief_finding_lines(run: Run, finding: Finding, number: int) -> Iterator[Line]:
    """Its title, the user's lines with the guilty one marked, the cut, and the trace folded."""
    yield from wrapped(f"{number}. {title(finding)}", "", "   ")
    yield from wrapped(_figures(run, finding), INDENT)
    yield ""
    quoted = list(_excerpts(run, finding))
    yield from quoted
    if not holds_nothing(finding):
        yield from _cut(finding, is_named=number == 1 and finding.cut_position is not None)
    yield from _edit(run, finding, bool(quoted))
    if advice(finding):
        beside = bool(quoted) + (finding.see is not None)
        yield short_field("advice", advice(finding), ADVICE - beside, INDENT, COLUMN)
    yield from see_lines(finding)
    if not holds_nothing(finding) and (finding.freed_by != FreedBy.PROGRAM or finding.cut is None):
        yield short_field("freed by", freed_text(finding), 1, INDENT, COLUMN)
    if finding.see is None:
        yield from _made_at(run, finding)
    if not holds_nothing(finding) and (trace := list(folded_trace_lines(finding))):
        yield from ("", *trace)


def _figures(run: Run, finding: Finding) -> str:
    """`36.00 MiB held at the last look, 3.00 MiB more each step; ranks 0, 1; step-growth [17f7ca4b]`."""
    ranks = ranks_text(finding.ranks) if finding.ranks and not of_block(run) else ""
    name = f"{finding.rule} [{finding.fingerprint}]"
    told = finding if holds_nothing(finding) else replace(finding, count=0)
    return "; ".join(filter(None, (held_text(told, "after the block" if of_block(run) else ""), ranks, name)))


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


def _cut(finding: Finding, is_named: bool) -> Iterator[Line]:
    """What to cut, and what that frees; `is_named`: the report opens with it, and the trace shows it."""
    cut = finding.cut
    if cut is None:
        yield from field_lines("cut", no_cut_text(finding), INDENT, COLUMN)
        return
    place = line_to_edit(finding)
    where = f" at {place}" if place else ""
    name = "" if is_named else f"`{cut_name(cut)}`{where}{also_text(cut)}: "
    text = ", ".join(filter(None, (would_be_freed(finding), measured_text(finding))))
    yield from field_lines("cut", f"{name}{text}", INDENT, COLUMN)


def _edit(run: Run, finding: Finding, quoted: bool) -> Iterator[Line]:
    """The suggested edit; where no source was kept, the places that add to what is cut."""
    if not quoted:
        places = ", ".join(place for place, _ in adding_lines(run, finding))
        if places:
            yield from field_lines("added at", places, INDENT, COLUMN)
    if finding.suggestion is not None:
        lines = edit_lines(finding.suggestion)
        stays = "".join(line[0] for line in lines).strip(" -")
        whole = " " in stays or "@" in stays
        told = f"{'at' if whole else _how(lines)} {finding.suggestion.where}, advice, not tried:"
        yield from field_lines("edit", told, INDENT, COLUMN)
        added = [line for line in lines if line.startswith("+")]
        for line in added if quoted and added and not whole else lines:  # what goes, or stays, is quoted above
            yield Paragraph(line[1:], f"{INDENT}{' ' * COLUMN}{line[0]}", f"{INDENT}{' ' * COLUMN}    ")


def _how(lines: Sequence[str]) -> str:
    """What becomes of the line that is edited."""
    if not any(line.startswith("+") for line in lines):
        return "without"
    if any(line.startswith("-") for line in lines):
        return "in place of"
    return "before" if lines[0].startswith("+") else "after"


def _made_at(run: Run, finding: Finding) -> Iterator[Line]:
    """Where most of its tensors were made, in a line."""
    sites = allocation_sites(run, finding)
    for place, line in sites[:1]:
        more = f" and {len(finding.made_at) - 1} more" if len(finding.made_at) > 1 else ""
        told = f"{INDENT}{'made at'.ljust(COLUMN)}{place}{more}"
        yield Cropped(f"{told} | {line}" if line else told)
