"""Candidate edits for a leak."""

from __future__ import annotations

import textwrap

from leakscope.findings.model import Finding, Suggestion
from leakscope.findings.source.index import Sources
from leakscope.fix.model import Candidate, Change


def candidates(finding: Finding, sources: Sources) -> list[Candidate]:
    """Temporary: only the suggestion."""
    if finding.suggestion is None:
        return []
    changes = []
    for place in finding.suggestion.places:
        changes.append(_change(place, sources))
    return [Candidate(f"{finding.suggestion.after.strip()} at {finding.suggestion.where}", tuple(changes))]


def _change(place: Suggestion, sources: Sources) -> Change:
    name, _, number = place.where.rpartition(":")
    parsed = sources.file(name)
    assert parsed is not None
    first, count = int(number), len(place.before.split("\n"))
    old = parsed.lines[first - 1 : first - 1 + count]
    indent = old[0][: len(old[0]) - len(old[0].lstrip())]
    new = tuple(textwrap.indent(place.after, indent).split("\n")) if place.after else ()
    return Change(name, first, tuple(old), new)
