"""Two runs for programs."""

from __future__ import annotations

import json
from typing import Any

from leakscope.findings.suppressions import Change, Compared, Comparison, Judged
from leakscope.report.compare.wording import headline, line_of, peak_of, run_name, unseen_text
from leakscope.report.messages.sections import steps_of
from leakscope.report.messages.sentences import title
from leakscope.report.messages.verdict import why_text

FORMAT = 1
"""Number of this format: it rises when a key goes or changes its meaning."""


def render(comparison: Comparison) -> str:
    """What is unknown is null; bytes a step are those of all ranks together."""
    data = {
        "format": FORMAT,
        "leakscope": comparison.new.run.leakscope or None,
        "exit_status": comparison.exit_status,
        "could_be_judged": comparison.could_be_judged,
        "are_related": comparison.are_related,
        "worse": comparison.worse,
        "why": headline(comparison),
        "base": _side(comparison.base),
        "new": _side(comparison.new),
        "counts": {change: len(comparison.of(change)) for change in Change},
        "leaks": [_leak(leak) for leak in comparison.leaks],
    }
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _side(side: Judged) -> dict[str, Any]:
    peak = peak_of(side)
    return {
        "run": run_name(side),
        "command": list(side.run.command),
        "verdict": side.findings.verdict,
        "why": why_text(side.findings),
        "ranks": side.run.expected_ranks,
        "steps": steps_of(side.run),
        "peak_bytes": None if peak is None else peak.bytes,
        "peak_rank": None if peak is None else peak.rank,
    }


def _leak(leak: Compared) -> dict[str, Any]:
    finding = leak.finding
    return {
        "change": leak.change,
        "fingerprint": finding.fingerprint,
        "rule": finding.rule,
        "title": title(finding),
        "line": line_of(finding) or None,
        "ranks": list(finding.ranks),
        "base_bytes_per_step": None if leak.base is None else leak.base.bytes_per_step,
        "new_bytes_per_step": None if leak.new is None else leak.new.bytes_per_step,
        "base_retained_bytes": None if leak.base is None else leak.base.retained_bytes,
        "new_retained_bytes": None if leak.new is None else leak.new.retained_bytes,
        "unseen": unseen_text(leak) or None,
    }
