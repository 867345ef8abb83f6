"""What is there to know beside the findings?"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.findings.memory.gc_advice import collecting_matters
from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report.text.lines import Line, wrapped
from leakscope.report.wording import (
    at_end_text,
    is_fault,
    is_worth_telling,
    run_text,
    steps_of,
    suppressed_by_text,
    suppression_notes,
    title,
    unjudged_text,
)
from leakscope.units import bytes_text
from leakscope.verdict import Verdict

LISTED_SHOWN = 30
"""Lines of what was alive at the end: a screenful."""


def small_print(run: Run, findings: Findings, verbose: bool) -> Iterator[Line]:
    """Lists under their headings; without `verbose` those that help with this verdict."""
    for heading, items, is_shown in (
        ("Not judged", _unjudged(findings, verbose), True),
        ("Suppressed", _suppressed(findings), True),
        ("Memory that lay unused", run_text(findings.drag), verbose),
        ("What collecting would do", run_text(findings.gc_advice), verbose or collecting_matters(findings.gc_advice)),
        ("Alive after the script's main code had returned", _listed(findings), verbose or not steps_of(run)),
    ):
        if items and is_shown:
            yield heading
            yield "=" * len(heading)
            for item in items:
                yield from wrapped(item, "- ", "  ")
            yield ""


def _unjudged(findings: Findings, whole: bool) -> list[str]:
    helps = is_worth_telling if findings.verdict == Verdict.INCONCLUSIVE else is_fault
    told = [item for item in findings.unjudged if whole or helps(item)]
    return [f"{item.rule} on rank {item.rank}: {unjudged_text(item)}" for item in told]


def _suppressed(findings: Findings) -> list[str]:
    apart = (
        (f"[{f.fingerprint}] {f.rule}: {title(f)}, {bytes_text(f.retained_bytes)}", suppressed_by_text(f))
        for f in findings.suppressed
    )
    return [*(f"{told}; {by}" if by else told for told, by in apart), *suppression_notes(findings)]


def _listed(findings: Findings) -> list[str]:
    listed = list(map(at_end_text, findings.listed[:LISTED_SHOWN]))
    if len(findings.listed) > LISTED_SHOWN:
        listed.append(f"and {len(findings.listed) - LISTED_SHOWN} more")
    return listed
