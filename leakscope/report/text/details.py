"""The details at the end of the text report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.findings.model import Findings
from leakscope.report.messages.ended import listed_texts
from leakscope.report.messages.sections import is_fault, is_worth_telling, steps_of
from leakscope.report.messages.sentences import run_text, title
from leakscope.report.messages.verdict import suppressed_by_text, suppression_notes, unjudged_together
from leakscope.report.text.lines import Line, wrapped
from leakscope.run.model import Run
from leakscope.units import bytes_text, ranks_text
from leakscope.verdict import Verdict

LISTED_SHOWN = 30
"""Lines of what was alive at the end: a screenful."""
UNJUDGED_SHOWN = 12
"""Lines of what was not judged, chosen."""
BRIEF = 4
"""Lines of a list at most, chosen, where not all is told."""


def small_print(run: Run, findings: Findings, verbose: bool, groups: Sequence[Sequence[int]] = ()) -> Iterator[Line]:
    """Lists under their headings; without `verbose` those that help with this verdict.

    `groups`: ranks that did the same, of which one is told.
    """
    for heading, items, is_shown in (
        ("Not judged", _unjudged(findings, verbose), True),
        ("Suppressed", _suppressed(findings), True),
        ("What else grows", run_text(findings.also_grows, groups), verbose),
        ("Memory that lay unused", run_text(findings.drag, groups), verbose),
        ("What collecting would do", run_text(findings.gc_advice, groups), verbose),
        ("Alive after the script's main code had returned", _listed(findings, groups), verbose or not steps_of(run)),
    ):
        if items and is_shown:
            yield heading
            yield "=" * len(heading)
            shown = items if verbose or len(items) <= BRIEF + 1 else items[:BRIEF]
            for item in shown:
                yield from wrapped(item, "- ", "  ")
            if len(shown) < len(items):
                yield f"- and {len(items) - len(shown)} more"
            yield ""


def _unjudged(findings: Findings, whole: bool) -> list[str]:
    helps = is_worth_telling if findings.verdict == Verdict.INCONCLUSIVE else is_fault
    told = [item for item in findings.unjudged if whole or helps(item)]
    lines = [f"{rule} on {ranks_text(ranks)}: {why}" for rule, ranks, why in unjudged_together(told)]
    return lines if whole else [*lines[:UNJUDGED_SHOWN], *more_lines(len(lines) - UNJUDGED_SHOWN)]


def _suppressed(findings: Findings) -> list[str]:
    apart = (
        (f"[{f.fingerprint}] {f.rule}: {title(f)}, {bytes_text(f.retained_bytes)}", suppressed_by_text(f))
        for f in findings.suppressed
    )
    return [*(f"{told}; {by}" if by else told for told, by in apart), *suppression_notes(findings)]


def _listed(findings: Findings, groups: Sequence[Sequence[int]]) -> list[str]:
    listed = listed_texts(findings.listed, groups)
    return [*listed[:LISTED_SHOWN], *more_lines(len(listed) - LISTED_SHOWN)]


def more_lines(count: int) -> list[str]:
    """What stands for those that are left out."""
    return [f"and {count} more"] if count > 0 else []
