"""The verdict and the first leaks as a piece of HTML for a notebook's cell: no script, no style sheet, no address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from leakscope.findings.model import Finding, Findings
from leakscope.record.model import Run
from leakscope.report import adding_lines, wording
from leakscope.report.cleaning import cleaned
from leakscope.report.excerpt import Excerpt, excerpts
from leakscope.report.html.filters import FILTERS
from leakscope.report.text.lines import laid_out
from leakscope.report.text.trace import folded_trace_lines
from leakscope.report.text.verdict import about_text
from leakscope.verdict import Verdict

SHOWN = 3
"""Leaks that stand open, as in the text; chosen."""
LISTED = 20
"""Leaks that have a line at least, as in the text; chosen."""
WIDTH = 88
"""Columns of a trace: what a cell of a narrow notebook shows; chosen."""
COLOURS: Mapping[Verdict, str] = {
    Verdict.LEAKS: "#d1242f",
    Verdict.INCONCLUSIVE: "#9a6700",
    Verdict.CLEAN: "#1a7f37",
}
"""Of white words on them, 4.5 to 1 at least, in light and dark notebooks."""


@dataclass(frozen=True)
class LeakInCell:
    """A leak as the cell sets it."""

    finding: Finding
    held: str
    code: tuple[Excerpt, ...]
    edit: tuple[str, ...]
    """Lines of the suggested edit as `diff` writes them; () where there is none."""
    trace: str
    """From the root down to the memory, as in the text; "" where it holds nothing."""


def render(run: Run, findings: Findings) -> str:
    """The piece of HTML; what comes from the run is escaped, and it stays readable where styles are taken out."""
    from leakscope.report.html.templates import templates

    environment = templates(Path(__file__).parent)
    environment.filters |= FILTERS
    run, findings = cleaned(run), cleaned(findings)
    leaks = wording.leaks(findings)
    beside = [
        f"{wording.title(f)}; {wording.held_text(f)}" for f in (*wording.library(findings), *wording.notes(findings))
    ]
    return environment.get_template("cell.html").render(
        findings=findings,
        colour=COLOURS[Verdict.LEAKS if findings.failed else findings.verdict],
        headline=wording.headline(run, findings),
        failure=wording.failure_text(run),
        why=wording.why_text(findings),
        next=wording.next_text(run, findings),
        out_of_memory=wording.run_text(findings.out_of_memory),
        leaks=[_in_cell(run, finding) for finding in leaks[:LISTED]],
        shown=SHOWN,
        more=len(leaks) - LISTED,
        beside=beside[:LISTED],
        avoidable=[wording.avoidable_text(run, finding) for finding in wording.avoidable(findings)[:SHOWN]],
        about=about_text(run),
        words=wording,
    )


def _in_cell(run: Run, finding: Finding) -> LeakInCell:
    block = wording.of_block(run)
    nothing = wording.holds_nothing(finding)
    return LeakInCell(
        finding=finding,
        held=wording.held_text(finding, "after the block" if block else ""),
        code=() if nothing else excerpts(run, finding, 1),
        edit=adding_lines.edit_lines(finding.suggestion) if finding.suggestion is not None else (),
        trace="" if nothing else "\n".join(laid_out(folded_trace_lines(finding), WIDTH)),
    )
