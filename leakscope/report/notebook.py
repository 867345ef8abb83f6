"""HTML for a notebook cell: the verdict and the first leaks, with inline styles only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leakscope import units
from leakscope.findings.model import Finding, Findings
from leakscope.report import finding_text, growth_text, rank_text, run_text, verdict_text
from leakscope.report.excerpt import Excerpt, excerpts
from leakscope.report.fix_text import finding_fix_lines
from leakscope.report.rendering import cleaned, html_page, laid_out
from leakscope.report.text.finding import trace_lines
from leakscope.report.text.page import about_text
from leakscope.run.model import Run
from leakscope.verdict import Verdict

SHOWN = 3
"""Leaks that are open, as many as in the text."""
LISTED = 20
"""Leaks with at least one line, as many as in the text."""
WIDTH = 88
"""Columns of a reference path: those of a narrow notebook."""
COLOURS: Mapping[Verdict, str] = {
    Verdict.LEAKS: "#d1242f",
    Verdict.INCONCLUSIVE: "#9a6700",
    Verdict.CLEAN: "#1a7f37",
}
"""Background colours with a contrast of 4.5 to 1 at least to white text, in light and dark notebooks."""


@dataclass(frozen=True)
class LeakInCell:
    """A leak in the cell."""

    finding: Finding
    held: str
    code: tuple[Excerpt, ...]
    fix: str
    """The verified fix as in the text; "" without one."""
    trace: str
    """The reference path as in the text; "" if it holds nothing."""


def render(run: Run, findings: Findings) -> str:
    """The HTML; text of the run is escaped, and it stays readable where a notebook removes styles."""
    run, findings = cleaned(run), cleaned(findings)
    leaks = findings.leaks
    beside = [
        f"{finding_text.title(f)}; {finding_text.held_text(f)}"
        for f in (*verdict_text.library(findings), *verdict_text.notes(findings))
    ]
    return html_page(
        "notebook.html",
        findings=findings,
        colour=COLOURS[Verdict.LEAKS if findings.failed else findings.verdict],
        headline=verdict_text.headline(run, findings),
        failure=rank_text.failure_text(run),
        why=verdict_text.why_text(findings),
        next=verdict_text.next_text(run, findings),
        out_of_memory=run_text.run_text(findings.out_of_memory),
        leaks=[_in_cell(run, finding) for finding in leaks[:LISTED]],
        shown=SHOWN,
        more=len(leaks) - LISTED,
        beside=beside[:LISTED],
        avoidable=[finding_text.avoidable_text(run, finding) for finding in verdict_text.avoidable(findings)[:SHOWN]],
        about=about_text(run),
        **{
            module.__name__.rpartition(".")[2]: module
            for module in (finding_text, growth_text, rank_text, run_text, units, verdict_text)
        },
    )


def _in_cell(run: Run, finding: Finding) -> LeakInCell:
    block = verdict_text.of_block(run)
    nothing = finding_text.holds_nothing(finding)
    return LeakInCell(
        finding=finding,
        held=finding_text.held_text(finding, "after the block" if block else ""),
        code=() if nothing else excerpts(run, finding, 1),
        fix="\n".join(laid_out(finding_fix_lines(run, finding, around=1), WIDTH)),
        trace="" if nothing else "\n".join(laid_out(trace_lines(finding, brief=True), WIDTH)),
    )
