"""GitHub Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from leakscope.findings.model import Finding, Findings
from leakscope.report.excerpt import LineMark, excerpts
from leakscope.report.finding_text import (
    advice,
    cut_name,
    held_text,
    line_to_edit,
    title,
)
from leakscope.report.fix_text import by_diff, growth_rows, heading_text, proof_text
from leakscope.report.rank_text import ended_badly, ended_text, error_text
from leakscope.report.rendering import cleaned
from leakscope.report.text.finding import details
from leakscope.report.verdict_text import (
    avoidable,
    exit_text,
    library,
    next_text,
    notes,
    running_text,
    steps_of,
    suppressed_by_text,
    why_text,
)
from leakscope.run.model import Run
from leakscope.units import bytes_text, listed_numbers, plural
from leakscope.verdict import Verdict

_MARKUP = re.compile(r"[\\`*_{}\[\]<>()#+!|~$&^=\"']")
"""Characters with a meaning in markdown, a table cell, HTML or a formula."""
_CALLS = re.compile(r"@(?=\w)|:(?=//)|#(?=\d)|www(?=\.)|gh(?=-\d)", re.IGNORECASE)
"""Characters that GitHub turns into a mention, link or reference, also as entities."""
_NO_WIDTH = "\u200b"


def plain(text: str, most: int = 400) -> str:
    """Escape text for one line of markdown or a table cell, without markup, mentions or links; truncated."""
    return _escaped(_short(text, most))


def sentence(text: str, most: int = 1000) -> str:
    """As `plain`; text between backticks is code."""
    parts = _short(text, most).split("`")
    return "".join(code(part) if index % 2 and part else _escaped(part) for index, part in enumerate(parts))


def _short(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", _CALLS.sub(lambda found: found[0] + _NO_WIDTH, text))


def code(text: str, most: int = 400) -> str:
    """Text as code, on one line or in a table cell."""
    return f"<code>{plain(text, most)}</code>"


def block(lines: Sequence[str], language: str = "") -> list[str]:
    """Lines shown literally."""
    ticks = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return [fence + language, *(" ".join(line.splitlines()) for line in lines), fence]


def folded(summary: str, lines: Sequence[str]) -> list[str]:
    """Lines below a summary (markup), which expands them."""
    return [f"<details><summary>{summary}</summary>", "", *lines, "", "</details>", ""]


MOST = 65_000
"""Maximum characters: a comment takes 65,536 (GitHub's own limit)."""
_RESERVED = 600
"""Characters reserved for the sentence about omissions."""
_ROWS = 50
"""Maximum rows of a table, and ranks named. Heuristic."""
_MARKS = {Verdict.LEAKS: "❌", Verdict.CLEAN: "✅", Verdict.INCONCLUSIVE: "❔"}
_SIGNS = {LineMark.HOLDS: "·", LineMark.ADDS: "+", LineMark.NEAR: " "}


def render(run: Run, findings: Findings) -> str:
    """Verdict, a table of the leaks, the next step, the verified fix; below it, folded, each leak's trace and source.

    Details are omitted from the end, with a note, if it exceeds the maximum size of a comment.
    """
    run, findings = cleaned(run), cleaned(findings)
    parts = [_head(run, findings), _fixes(run, findings), *_details(run, findings.leaks), *_aside(findings)]
    text, left_out = "", 0
    for part in ("\n".join(lines) + "\n" for lines in parts if lines):
        if len(text) + len(part) > MOST - _RESERVED:
            left_out += 1
        else:
            text += part
    if left_out:
        text_end = f"{plural(left_out, 'section')} omitted: a comment is limited to {MOST:,} characters"
        text += f"{text_end}. See report.html and findings.json of the run.\n"
    return text


def _head(run: Run, findings: Findings) -> list[str]:
    distinct = findings.leaks
    what = {Verdict.LEAKS: plural(len(distinct), "leak"), Verdict.CLEAN: "no leak"}.get(findings.verdict, "no verdict")
    what += ", but too much avoidable memory" if not distinct and findings.avoidable_over is not None else ""
    ranks = plural(run.expected_ranks, "rank")
    lines = [
        f"### {_MARKS[Verdict.LEAKS if findings.failed else findings.verdict]} leakscope: {what}",
        "",
        f"**{findings.verdict.upper()}**{exit_text(run, findings) if running_text(run) else ''}: "
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
        lines.append(f"- {plural(len(bad) - _ROWS, 'more rank')} failed")
    return [*lines, ""] if bad else lines


def _fixes(run: Run, findings: Findings) -> list[str]:
    """Result of `leakscope fix`: what each edit fixes, its diff, its proof, and the memory before and after."""
    fix, found = run.fix, {finding.fingerprint: finding for finding in findings.leaks}
    if fix is None or not found:
        return []
    lines = [f"#### {plain(heading_text(fix))}", ""]
    for diff, leaks in by_diff(fix).items():
        for leak in leaks:
            what = title(found[leak.fingerprint]) if leak.fingerprint in found else f"`{leak.subject}`"
            lines.append(f"- {code(leak.fingerprint)} {sentence(what, 300)}")
        lines += ["", *block(_patch_lines(diff), "diff"), ""]
    for leak in fix.leaks:
        if not leak.is_fixed:
            lines += [f"Not fixed: {code(leak.subject)} {code(leak.fingerprint)}: {plain(leak.why)}.", ""]
    if rows := growth_rows(fix):
        head, *figures = (" | ".join(row) for row in rows)
        lines += [f"| {head} |", f"|-{'|-:' * (len(rows[0]) - 1)}|", *(f"| {row} |" for row in figures), ""]
        lines += [f"Verified by a run: {plain(proof_text(run, fix))}.", ""]
    return lines


def _patch_lines(diff: str) -> list[str]:
    lines = diff.removesuffix("\n").split("\n")
    return [line.removesuffix("\\r") for line in lines if not line.startswith("diff --git ")]


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
    size = None if finding.cut is None else finding.cut.reported_bytes
    return "" if size is None else bytes_text(size)


def _details(run: Run, found: Sequence[Finding]) -> list[list[str]]:
    return [folded(f"{sentence(title(finding), 300)}", _detail(run, finding)) for finding in found]


def _detail(run: Run, finding: Finding) -> list[str]:
    lines = [f"{plain(held_text(finding))}.", ""]
    for excerpt in excerpts(run, finding):
        numbered = [
            f"{'>' if line.to_edit else ' '}{_SIGNS[line.mark]} {line.number:>5}  {line.text}" for line in excerpt.lines
        ]
        lines += [code(excerpt.file), "", *block(numbered), ""]
    lines += [*block(details(run, finding)), ""]
    return [*lines, f"**Advice:** {sentence(advice(finding))}"] if advice(finding) else lines


def _aside(findings: Findings) -> list[list[str]]:
    sections = (
        ("Suppressed", findings.suppressed),
        ("Avoidable memory", avoidable(findings)),
        ("Held by libraries: not a leak", library(findings)),
        ("Notes: too small to judge, or not a leak", notes(findings)),
    )
    return [folded(f"{heading} ({len(found)})", _list(found)) for heading, found in sections if found]


def _list(found: Sequence[Finding]) -> list[str]:
    lines = [
        f"- {code(finding.fingerprint)} {sentence(title(finding), 300)}: {plain(held_text(finding))}"
        + (f"; {plain(by)}" if (by := suppressed_by_text(finding)) else "")
        for finding in found[:_ROWS]
    ]
    return [*lines, f"- and {len(found) - _ROWS} more"] if len(found) > _ROWS else lines
