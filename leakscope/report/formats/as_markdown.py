"""The story for a pull request or the summary of a job: GitHub's markdown, short enough for a comment."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.findings.model import Finding, Findings
from leakscope.record.model import Run
from leakscope.report.adding_lines import edit_lines
from leakscope.report.cleaning import cleaned
from leakscope.report.excerpt import LineMark, excerpts
from leakscope.report.formats.finding_details import detail_lines
from leakscope.report.formats.github_text import block, code, folded, plain, sentence
from leakscope.report.wording import (
    advice,
    avoidable,
    cut_name,
    ended_badly,
    ended_text,
    error_text,
    exit_text,
    held_text,
    leaks,
    library,
    line_to_edit,
    listed_numbers,
    next_text,
    notes,
    plural,
    so_far_text,
    steps_of,
    suppressed_by_text,
    title,
    why_text,
)
from leakscope.units import bytes_text
from leakscope.verdict import Verdict

MOST = 65_000
"""Characters: a comment takes 65,536 (GitHub's own limit)."""
_RESERVED = 600
"""Of them for the sentence that says what is left out."""
_ROWS = 50
"""Rows of a table at the most, and ranks that are named; chosen."""
_MARKS = {Verdict.LEAKS: "❌", Verdict.CLEAN: "✅", Verdict.INCONCLUSIVE: "❔"}
_SIGNS = {LineMark.HOLDS: "·", LineMark.ADDS: "+", LineMark.EDIT: "✎", LineMark.NEAR: " "}


def render(run: Run, findings: Findings) -> str:
    """Verdict, a table of the leaks, what to do; folded below it each leak's trace, source and edit.

    Where all of it is longer than a comment may be, details are left out from the end on, and it says so.
    """
    run, findings = cleaned(run), cleaned(findings)
    parts = [_head(run, findings), *_details(run, leaks(findings)), *_aside(findings)]
    text, left_out = "", 0
    for part in ("\n".join(lines) + "\n" for lines in parts if lines):
        if len(text) + len(part) > MOST - _RESERVED:
            left_out += 1
        else:
            text += part
    if left_out:
        told = f"{plural(left_out, 'section')} left out: a comment takes {MOST:,} characters"
        text += f"{told}. The run's report.html and findings.json have all.\n"
    return text


def _head(run: Run, findings: Findings) -> list[str]:
    distinct = leaks(findings)
    what = {Verdict.LEAKS: plural(len(distinct), "leak"), Verdict.CLEAN: "no leak"}.get(findings.verdict, "no verdict")
    what += ", but too much avoidable memory" if not distinct and findings.avoidable_over is not None else ""
    ranks = plural(run.expected_ranks, "rank")
    lines = [
        f"### {_MARKS[Verdict.LEAKS if findings.failed else findings.verdict]} leakscope: {what}",
        "",
        f"**{findings.verdict.upper()}**{exit_text(run, findings) if so_far_text(run) else ''}: "
        f"{sentence(why_text(findings)).rstrip('.')}.",
        f"{code(' '.join(run.command), 200)}, {ranks}, {plural(steps_of(run), 'step')}.",
        "",
        *_table(distinct),
    ]
    if following := next_text(run, findings):
        lines += [f"**Next:** {sentence(following)}", ""]
    bad = [rank for rank in run.ranks if ended_badly(rank)]
    lines += [
        f"- **rank {rank.number}** {plain(ended_text(rank))} {plain(error_text(rank))}".rstrip() for rank in bad[:_ROWS]
    ]
    if len(bad) > _ROWS:
        lines.append(f"- {plural(len(bad) - _ROWS, 'more rank')} ended badly")
    return [*lines, ""] if bad else lines


def _table(found: Sequence[Finding]) -> list[str]:
    if not found:
        return []
    rows = ["| leak | cut | would free | held | a step | ranks |", "|-|-|-:|-:|-:|-|"]
    for finding in found[:_ROWS]:
        cells = (
            f"{sentence(title(finding), 300)} {code(finding.fingerprint)}",
            _cut(finding),
            _frees(finding),
            bytes_text(finding.retained_bytes),
            bytes_text(finding.bytes_per_step) if finding.bytes_per_step else "",
            plain(listed_numbers(finding.ranks), 120),
        )
        rows.append(f"| {' | '.join(cells)} |")
    if len(found) > _ROWS:
        rows.append(f"| and {len(found) - _ROWS} more | | | | | |")
    return [*rows, ""]


def _cut(finding: Finding) -> str:
    if finding.cut is None:
        return ""
    place = line_to_edit(finding)
    where = f" at {code(place)}" if place else ""
    more = f" and {len(finding.cut.also)} more" if finding.cut.also else ""
    return f"{code(cut_name(finding.cut), 200)}{where}{more}"


def _frees(finding: Finding) -> str:
    told = None if finding.cut is None else finding.cut.told_bytes
    return "" if told is None else bytes_text(told)


def _details(run: Run, found: Sequence[Finding]) -> list[list[str]]:
    return [folded(f"{sentence(title(finding), 300)}", _detail(run, finding)) for finding in found]


def _detail(run: Run, finding: Finding) -> list[str]:
    lines = [f"{plain(held_text(finding))}.", ""]
    for excerpt in excerpts(run, finding):
        numbered = [
            f"{'>' if line.to_edit else ' '}{_SIGNS[line.mark]} {line.number:>5}  {line.text}" for line in excerpt.lines
        ]
        lines += [code(excerpt.file), "", *block(numbered), ""]
    if finding.suggestion is not None:
        lines += [f"Suggestion, not tried, at {code(finding.suggestion.where)}:", ""]
        lines += [*block(edit_lines(finding.suggestion), "diff"), ""]
    lines += [*block(detail_lines(finding)), ""]
    return [*lines, f"**Advice:** {sentence(advice(finding))}"] if advice(finding) else lines


def _aside(findings: Findings) -> list[list[str]]:
    sections = (
        ("Suppressed", findings.suppressed),
        ("Avoidable memory", avoidable(findings)),
        ("Held by libraries: no leak", library(findings)),
        ("Notes: too small to judge, or no leak by themselves", notes(findings)),
    )
    return [folded(f"{heading} ({len(found)})", _list(found)) for heading, found in sections if found]


def _list(found: Sequence[Finding]) -> list[str]:
    lines = [
        f"- {code(finding.fingerprint)} {sentence(title(finding), 300)}: {plain(held_text(finding))}"
        + (f"; {plain(by)}" if (by := suppressed_by_text(finding)) else "")
        for finding in found[:_ROWS]
    ]
    return [*lines, f"- and {len(found) - _ROWS} more"] if len(found) > _ROWS else lines
