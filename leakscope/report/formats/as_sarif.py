"""SARIF 2.1.0, with the help text of each rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from posixpath import basename, isabs, join, normpath
from typing import Any, NamedTuple
from urllib.parse import quote

from leakscope.findings.facts import HopStatus, RuleName, Severity
from leakscope.findings.model import Finding, Findings, Hop
from leakscope.findings.naming import place_of
from leakscope.findings.rules import rule_named
from leakscope.report.finding_text import (
    advice,
    also_text,
    cut_name,
    freed_text,
    held_text,
    holds_nothing,
    line_to_edit,
    reason_text,
    seen_text,
    status_word,
    title,
    would_be_freed,
)
from leakscope.report.fix_text import Hunk, hunks, proof_text, verified_fix
from leakscope.report.rank_text import ended_badly, ended_text, error_text
from leakscope.report.rendering import cleaned
from leakscope.report.verdict_text import suppressed_by_text, unjudged_together, why_text
from leakscope.run.model import Rank, Run
from leakscope.units import ranks_text

_OUTSIDE = ".."
_MODULE = "-m"


class TreeLine(NamedTuple):
    """A line of a file, relative to a root."""

    path: str
    """Path from the root of the repository, or of the folder of installed packages."""
    line: int
    is_packages: bool = False
    """Whether it belongs to an installed package."""

    @property
    def uri(self) -> str:
        """The path as a URI reference; a file outside of both by its absolute path."""
        return ("file://" if isabs(self.path) else "") + quote(self.path)


def tree_line(run: Run, where: str) -> TreeLine | None:
    """The line of a place such as `train.py:41 forward`; None if it has none."""
    place = place_of(where)
    if place is None:
        return None
    file = place.file.replace("\\", "/")
    if file.startswith("<") and file.endswith(">"):
        return TreeLine(file[1:-1], place.line, is_packages=True) if file[1:-1] else None
    return TreeLine(_in_repository(run, file), place.line)


def script_line(run: Run) -> TreeLine:
    """The first line of the script, for results without a line."""
    if run.command[:1] != (_MODULE,):
        return TreeLine(_in_repository(run, _named(run.command[0]) if run.command else "unknown"), 1)
    module = "".join(run.command[1:2]).replace(".", "/") or "unknown"
    names = (f"{module}/__main__.py", f"{module}.py")
    return TreeLine(_in_repository(run, next((name for name in names if name in run.sources), names[-1])), 1)


def _in_repository(run: Run, file: str) -> str:
    if run.repository.script and run.command and file == _named(run.command[0]):
        return run.repository.script
    if isabs(file):
        return file
    path = normpath(join(run.repository.folder, file))
    return basename(path) if path.startswith(_OUTSIDE) else path


def _named(script: str) -> str:
    """A script as named by the places of a run: only its name if it is outside the working directory."""
    path = normpath(script.replace("\\", "/"))
    return basename(path) if isabs(path) or path.startswith(_OUTSIDE) else path


ROOT = "SRCROOT"
"""Base of the user's files."""
PACKAGES = "PACKAGES"
"""Base of files of installed packages."""
BASES: Mapping[str, Any] = {
    ROOT: {"description": {"text": "The root of the repository, or the working folder of a run in none."}},
    PACKAGES: {"description": {"text": "The folder in which Python packages are installed."}},
}
_MAX_RELATED = 100
"""Maximum related places of one finding: code scanning takes 1,000 (docs.github.com, SARIF support for
code scanning).
"""


def location(run: Run, finding: Finding) -> dict[str, Any]:
    """The line to edit, else of the cut, of the leaked object, or of the allocation, each in the user's files first.
    Without any line the script's first, since code scanning refuses a log with a result without a location.
    """
    references = finding.cut.references if finding.cut is not None else ()
    cut = chain.from_iterable((reference.where, *reference.added_at) for reference in references)
    leaked = (hop.where for hop in finding.trace if hop.status == HopStatus.LEAKED)
    others = (hop.where for hop in finding.trace if hop.status != HopStatus.LEAKED)
    lines = list(_lines(run, (line_to_edit(finding), *cut, *leaked, *finding.made_at, *reversed(tuple(others)))))
    return _location(next((line for line in lines if not line.is_packages), script_line(run)))


def related_locations(run: Run, finding: Finding) -> list[dict[str, Any]]:
    """Where something is added to the cut container, and where the memory was allocated."""
    references = finding.cut.references if finding.cut is not None else ()
    added = [place for reference in references for place in reference.added_at]
    places_of = [
        (line, text)
        for text, places in (("added here (from static analysis)", added), ("allocated here", finding.made_at))
        for line in dict.fromkeys(_lines(run, places))
    ]
    return [
        {"id": number, **_location(line), "message": {"text": text}}
        for number, (line, text) in enumerate(places_of[:_MAX_RELATED], 1)
    ]


def code_flows(run: Run, finding: Finding) -> list[dict[str, Any]]:
    """The trace from the root down; an object without a line is joined to the previous or next one."""
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
    locations = [
        {
            "location": {**_location(line), "message": {"text": "; ".join(texts)}},
            "nestingLevel": level,
            "executionOrder": level + 1,
            "importance": "essential" if is_cut else "important",
        }
        for level, (line, texts, is_cut) in enumerate(steps)
    ]
    return [{"threadFlows": [{"locations": locations}]}] if locations else []


def fixes(run: Run, finding: Finding) -> list[dict[str, Any]]:
    """The verified fix as replacements of whole lines; [] without one, if a file of it is outside of the repository, or
    if it is not UTF-8.

    `run` is the run as read: `cleaned` replaces what is not printable.
    """
    leak = verified_fix(run, finding)
    if leak is None or run.fix is None or any(map(_is_surrogate, leak.diff)):
        return []
    changes: dict[str, list[dict[str, Any]]] = {}
    for hunk in hunks(leak.diff):
        changes.setdefault(hunk.file, []).extend(_replacements(hunk))
    if not changes or any(file.startswith(_OUTSIDE) for file in changes):
        return []
    artifacts = [
        {"artifactLocation": {"uri": quote(file), "uriBaseId": ROOT}, "replacements": replacements}
        for file, replacements in changes.items()
    ]
    text = cleaned(f"{leak.title}. Verified by a run: {proof_text(run, run.fix)}.")
    return [{"description": {"text": text}, "artifactChanges": artifacts}]


def _is_surrogate(character: str) -> bool:
    """Whether it stands for a byte that is not UTF-8."""
    return "\ud800" <= character <= "\udfff"


def _replacements(hunk: Hunk) -> Iterator[dict[str, Any]]:
    """Each change as lines in place of others: one that only adds or only removes includes an unchanged line, so that
    regions need no columns. Changes with one unchanged line between them are one.
    """
    changed = [place for place, line in enumerate(hunk.lines) if line.sign != " "]
    spans: list[list[int]] = []
    for place in changed:
        if spans and place - spans[-1][1] <= _JOINED:
            spans[-1][1] = place
        else:
            spans.append([place, place])
    for first, last in spans:
        lines = hunk.lines[first : last + 1]
        if len({line.sign for line in lines}) == 1:
            lines = hunk.lines[first - 1 : last + 1] if first else hunk.lines[: last + 2]
        old = [line.number for line in lines if line.sign != "+"]
        new = "\n".join(line.text for line in lines if line.sign != "-").removesuffix("\r")
        if old:
            region = {"startLine": old[0], "endLine": old[-1]}
            yield {"deletedRegion": region, "insertedContent": {"text": new}}


_JOINED = 2
"""Distance of two changed lines with one unchanged line between them."""


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


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
"""Location of the schema of SARIF."""


def render(run: Run, findings: Findings) -> str:
    """One SARIF log with one run, one result for each finding (suppressed ones marked as such)."""
    as_read = run
    run, findings = cleaned(run), cleaned(findings)
    shown_and_suppressed = findings.findings + findings.suppressed
    used = {finding.rule for finding in shown_and_suppressed}
    rules = [rule for rule in (*RuleName, *sorted(used - set(RuleName))) if rule in used]
    version = {"version": run.leakscope} if run.leakscope else {}
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "leakscope", "rules": list(map(_rule, rules)), **version}},
                "automationDetails": _automation(run),
                "originalUriBaseIds": BASES,
                "columnKind": "unicodeCodePoints",
                "invocations": [_invocation(run, findings)],
                "results": [
                    _result(run, as_read, findings, finding, rules) | _suppressions(finding, findings)
                    for finding in shown_and_suppressed
                ],
                "properties": {"verdict": findings.verdict, "why": why_text(findings)},
            }
        ],
    }
    return json.dumps(log, indent=2, allow_nan=False) + "\n"


def _rule(rule: str) -> dict[str, Any]:
    named = rule_named(rule)
    parts = [part for part in (named.text, named.why, named.cure) if part]
    return {
        "id": rule,
        "name": "".join(word.capitalize() for word in rule.replace("_", "-").split("-")),
        "shortDescription": {"text": named.text},
        "fullDescription": {"text": " ".join(part for part in (named.text, named.why) if part)},
        "help": {"text": "\n\n".join(parts), "markdown": "\n\n".join((f"**{named.text}**", *parts[1:]))},
        "defaultConfiguration": {"level": named.level},
        "properties": {"tags": ["memory", "leak"]},
    }


def _automation(run: Run) -> dict[str, Any]:
    """Code scanning uses the text before the last slash as a category: each script has its own alerts."""
    script = script_line(run).path.strip("/")
    return {"id": f"leakscope/{script}/", "description": {"text": f"Memory of {' '.join(run.command)}"}}


def _invocation(run: Run, findings: Findings) -> dict[str, Any]:
    notices = [{"level": "error", "message": {"text": _ended(rank)}} for rank in run.ranks if ended_badly(rank)]
    notices += [
        {"level": "note", "message": {"text": f"{rule} not judged on {ranks_text(ranks)}: {why}"}}
        for rule, ranks, why in unjudged_together(findings.unjudged)
    ]
    started = {"startTimeUtc": run.started} if _TIME.fullmatch(run.started) else {}
    return {
        **started,
        "executionSuccessful": not any(ended_badly(rank) for rank in run.ranks),
        "exitCode": findings.exit_status,
        "arguments": list(run.command),
        "toolExecutionNotifications": notices,
    }


def _ended(rank: Rank) -> str:
    return f"rank {rank.number} {ended_text(rank)} {error_text(rank)}".strip()


def _result(run: Run, as_read: Run, findings: Findings, finding: Finding, rules: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _level(finding, findings),
        "message": {"text": _message(run, finding)},
        "locations": [location(run, finding)],
        "partialFingerprints": {"leakscope/v1": finding.fingerprint},
        "properties": {"retained_bytes": finding.retained_bytes, "bytes_per_step": finding.bytes_per_step},
    }
    for name, places_of in (("relatedLocations", related_locations), ("codeFlows", code_flows)):
        places = places_of(run, finding)
        if places:
            result[name] = places
    if edits := fixes(as_read, finding):
        result["fixes"] = edits
    return result


def _suppressions(finding: Finding, findings: Findings) -> dict[str, Any]:
    """Suppressions, for all results or for none (SARIF 2.1.0, 3.27.23)."""
    if not findings.suppressed:
        return {}
    if not any(finding is one for one in findings.suppressed):
        return {"suppressions": []}
    justification = {"justification": text} if (text := suppressed_by_text(finding)) else {}
    return {"suppressions": [{"kind": "external", "status": "accepted", **justification}]}


def _level(finding: Finding, findings: Findings) -> str:
    """`error` for what makes it a failure: code hosts fail a check by it."""
    fails = finding.is_leak or (findings.avoidable_over is not None and finding.severity == Severity.AVOIDABLE)
    return "error" if fails else "note"


def _message(run: Run, finding: Finding) -> str:
    parts = [title(finding), held_text(finding), seen_text(finding)]
    parts += [] if holds_nothing(finding) else [f"freed by {freed_text(finding)}"]
    if finding.cut is not None:
        parts.append(f"cut `{cut_name(finding.cut)}`{also_text(finding.cut)}: {would_be_freed(finding)}")
    parts.append(advice(finding))
    if (fix := verified_fix(run, finding)) is not None:
        parts.append(f"Verified fix: {fix.title}")
    return ". ".join(part.rstrip(".") for part in parts if part) + "."
