"""How does SARIF point at the lines of a finding, and at the way from the root down to the memory?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from leakscope.findings.kinds import HopStatus
from leakscope.findings.model import Finding, Hop
from leakscope.record.model import Run
from leakscope.report.formats.source_tree import TreeLine, script_line, tree_line
from leakscope.report.wording import line_to_edit, reason_text, status_word

ROOT = "SRCROOT"
"""Base of the user's own files."""
PACKAGES = "PACKAGES"
"""Base of installed packages' files."""
BASES: Mapping[str, Any] = {
    ROOT: {"description": {"text": "The root of the repository, or the working folder of a run in none."}},
    PACKAGES: {"description": {"text": "The folder in which Python packages are installed."}},
}
_MOST_RELATED = 100
"""Related places of one finding: code scanning takes 1,000 (docs.github.com, SARIF support for code scanning)."""


def location(run: Run, finding: Finding) -> dict[str, Any]:
    """The line to edit, else of the cut, else of what is leaked, else where the memory was made, each in the user's own
    files first; for a leak of which no line is known the script's first, as code scanning refuses a log with a result
    that has none.
    """
    references = finding.cut.references if finding.cut is not None else ()
    cut = chain.from_iterable((reference.where, *reference.added_at) for reference in references)
    leaked = (hop.where for hop in finding.trace if hop.status == HopStatus.LEAKED)
    others = (hop.where for hop in finding.trace if hop.status != HopStatus.LEAKED)
    lines = list(_lines(run, (line_to_edit(finding), *cut, *leaked, *finding.made_at, *reversed(tuple(others)))))
    return _location(next((line for line in lines if not line.is_packages), script_line(run)))


def related_locations(run: Run, finding: Finding) -> list[dict[str, Any]]:
    """Where something is added to what is cut, and where the memory was made."""
    references = finding.cut.references if finding.cut is not None else ()
    added = [place for reference in references for place in reference.added_at]
    told = [
        (line, text)
        for text, places in (("added here (found in the source)", added), ("made here", finding.made_at))
        for line in dict.fromkeys(_lines(run, places))
    ]
    return [
        {"id": number, **_location(line), "message": {"text": text}}
        for number, (line, text) in enumerate(told[:_MOST_RELATED], 1)
    ]


def code_flows(run: Run, finding: Finding) -> list[dict[str, Any]]:
    """The trace, from the root down; an object of which no line is known is told with the one before it, or after."""
    steps: list[tuple[TreeLine, list[str], bool]] = []
    unplaced: list[str] = []
    for index, hop in enumerate(finding.trace):
        text, line, is_cut = _hop_text(finding, hop, index), tree_line(run, hop.where), index == finding.cut_position
        if line is not None:
            steps.append((line, [*unplaced, text], is_cut))
            unplaced = []
        elif steps:
            last, texts, was_cut = steps[-1]
            steps[-1] = (last, [*texts, text], was_cut or is_cut)
        else:
            unplaced.append(text)
    if not steps:
        return []
    return [{"threadFlows": [{"locations": _flow(steps)}]}]


def _flow(steps: Sequence[tuple[TreeLine, list[str], bool]]) -> list[dict[str, Any]]:
    return [
        {
            "location": {**_location(line), "message": {"text": "; ".join(texts)}},
            "nestingLevel": level,
            "executionOrder": level + 1,
            "importance": "essential" if is_cut else "important",
        }
        for level, (line, texts, is_cut) in enumerate(steps)
    ]


def _hop_text(finding: Finding, hop: Hop, index: int) -> str:
    reason = reason_text(hop)
    why = f": {reason}" if reason else ""
    by = f", holds the next by {hop.reference}" if hop.reference else ""
    cut = " (cut here)" if hop.reference and index == finding.cut_position else ""
    return f"{hop.object} ({status_word(finding, hop)}{why}){by}{cut}"


def _lines(run: Run, places: Iterable[str]) -> Iterable[TreeLine]:
    return (line for line in (tree_line(run, place) for place in places) if line is not None)


def _location(line: TreeLine) -> dict[str, Any]:
    artifact: dict[str, Any] = {"uri": line.uri}
    if not line.uri.startswith("file:"):
        artifact["uriBaseId"] = PACKAGES if line.is_packages else ROOT
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line.line}}}
