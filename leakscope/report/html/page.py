"""The story as one page that opens offline: verdict, traces, drawings, plots and the operations over time."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from leakscope.findings.memory.gc_advice import collecting_matters
from leakscope.findings.memory.oom import ranks_out_of_memory
from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report import adding_lines, marks, wording
from leakscope.report.cleaning import cleaned
from leakscope.report.html import plots
from leakscope.report.html.cards import finding_on_page
from leakscope.report.html.charts import memory_on_page
from leakscope.report.html.filters import FILTERS
from leakscope.report.html.ranks import is_absolute, ranks_on_page
from leakscope.report.html.script import policy, script
from leakscope.report.rank_groups import rank_groups
from leakscope.report.snapshot.section import device_section
from leakscope.verdict import Verdict

RANKS_DRAWN = 8
"""Ranks whose plots stand open on the page; those of the others are folded away."""

DRAWINGS = 40
"""Findings that are drawn; any further ones have their trace in words only."""


def load() -> None:
    """Import what the page is drawn with."""
    import_module("leakscope.report.html.templates")
    plots.load()


def render(run: Run, findings: Findings) -> str:
    """The whole page, styles and drawings inside; everything that came from the run is escaped."""
    from leakscope.report.html.templates import templates

    environment = templates(Path(__file__).parent)
    environment.filters |= FILTERS
    run, findings = cleaned(run), cleaned(findings)
    sections = (
        ("Leaks", "", wording.leaks(findings)),
        ("Held by libraries", "No leak.", wording.library(findings)),
        ("Notes", "Too small to judge, or no leak by themselves.", wording.notes(findings)),
    )
    avoidable = wording.avoidable(findings)
    shown_all = [*(f for _, _, shown in sections for f in shown), *avoidable]
    drawn = {id(finding) for finding in shown_all[:DRAWINGS]}
    out_of_memory = tuple(rank.number for rank in ranks_out_of_memory(run))
    return environment.get_template("page.html").render(
        run=run,
        findings=findings,
        sections=[
            (head, about, [finding_on_page(run, f, id(f) in drawn) for f in shown]) for head, about, shown in sections
        ],
        collecting=collecting_matters(findings.gc_advice),
        avoidable=[finding_on_page(run, f, id(f) in drawn) for f in avoidable],
        ranks=ranks_on_page(run, findings),
        memory=memory_on_page(run, findings, rank_groups(run, findings), is_absolute(run)),
        ranks_drawn=RANKS_DRAWN,
        device=device_section(run),
        steps=wording.steps_of(run),
        failure=wording.failure_text(run),
        next=wording.next_text(run, findings),
        out_of_memory=out_of_memory,
        colour=Verdict.LEAKS if out_of_memory else findings.verdict,
        absolute=is_absolute(run),
        words=wording,
        no_trace=marks.NO_TRACE,
        source=adding_lines,
        policy=policy(),
        script=script(),
    )
