"""Sentences about what is known already: by whose word it is suppressed, and what names nothing any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.findings.model import Finding, Findings
from leakscope.record.suppression import Suppression

_NAMED = 5
"""Suppressions that one sentence names; chosen."""


def suppressed_by_text(finding: Finding) -> str:
    """`suppressed by known.txt:3 until 2027-01-31: the cache, issue 12`; "" where nothing suppresses it."""
    one = finding.suppressed_by
    if one is None:
        return ""
    until = f" until {one.until}" if one.until else ""
    by = f" by {_place(one)}" if one.source else ""
    reason = f": {one.reason}" if one.reason else ""
    return f"suppressed{by}{until}{reason}"


def suppression_notes(findings: Findings) -> Iterator[str]:
    """What has expired, and what names nothing that was found: a sentence each."""
    if findings.expired:
        last = ", ".join(f"{_named(one)}, last day {one.until}" for one in findings.expired[:_NAMED])
        yield f"No longer suppressed: {last}{_more(findings.expired)}"
    if findings.unused:
        yield f"Suppressed, but not found: {', '.join(map(_named, findings.unused[:_NAMED]))}{_more(findings.unused)}"


def _named(one: Suppression) -> str:
    return f"`{one.pattern}` ({_place(one)})" if one.source else f"`{one.pattern}`"


def _place(one: Suppression) -> str:
    return f"{one.source}:{one.line}" if one.line else one.source


def _more(many: Sequence[Suppression]) -> str:
    return f" and {len(many) - _NAMED} more" if len(many) > _NAMED else ""
