"""The story for code hosts: SARIF 2.1.0, so that a leak shows up beside the line to change."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from leakscope.findings.kinds import HopStatus, Origin, RuleName, Severity
from leakscope.findings.model import Finding, Findings
from leakscope.findings.naming.place import place_of
from leakscope.findings.rules import rule_texts
from leakscope.record.model import Rank, Run
from leakscope.report.adding_lines import edit_text
from leakscope.report.cleaning import cleaned
from leakscope.report.wording import (
    advice,
    also_text,
    cut_name,
    ended_badly,
    ended_text,
    error_text,
    freed_text,
    held_text,
    holds_nothing,
    seen_text,
    title,
    unjudged_text,
    why_text,
    would_be_freed,
)

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
"""Where the standard keeps the schema that the log follows."""


def render(run: Run, findings: Findings) -> str:
    """One SARIF log with one run, one result for each finding (suppressed ones marked as such)."""
    run, findings = cleaned(run), cleaned(findings)
    shown_and_suppressed = findings.findings + findings.suppressed
    used = {finding.rule for finding in shown_and_suppressed}
    rules = [rule for rule in (*RuleName, *sorted(used - set(RuleName))) if rule in used]
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver(run, rules)},
                "columnKind": "unicodeCodePoints",
                "invocations": [_invocation(run, findings)],
                "results": [
                    _result(finding, rules, suppressed=index >= len(findings.findings))
                    for index, finding in enumerate(shown_and_suppressed)
                ],
                "properties": {"verdict": findings.verdict, "why": why_text(findings)},
            }
        ],
    }
    return json.dumps(log, indent=2, allow_nan=False) + "\n"


def _driver(run: Run, rules: list[str]) -> dict[str, Any]:
    texts = rule_texts()
    driver: dict[str, Any] = {
        "name": "leakscope",
        "rules": [{"id": rule, "shortDescription": {"text": texts.get(rule, rule)}} for rule in rules],
    }
    if run.leakscope:
        driver["version"] = run.leakscope
    return driver


def _invocation(run: Run, findings: Findings) -> dict[str, Any]:
    notices = [{"level": "error", "message": {"text": _ended(rank)}} for rank in run.ranks if ended_badly(rank)]
    notices += [
        {"level": "note", "message": {"text": f"{item.rule} not judged on rank {item.rank}: {unjudged_text(item)}"}}
        for item in findings.unjudged
    ]
    return {
        "executionSuccessful": not any(ended_badly(rank) for rank in run.ranks),
        "exitCode": findings.exit_status,
        "arguments": list(run.command),
        "toolExecutionNotifications": notices,
    }


def _ended(rank: Rank) -> str:
    return f"rank {rank.number} {ended_text(rank)} {error_text(rank)}".strip()


def _result(finding: Finding, rules: list[str], suppressed: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _level(finding),
        "message": {"text": _message(finding)},
        "partialFingerprints": {"leakscope/v1": finding.fingerprint},
        "properties": {"retained_bytes": finding.retained_bytes, "bytes_per_step": finding.bytes_per_step},
    }
    location = _location(_where(finding))
    if location is not None:
        result["locations"] = [location]
    added = [place for reference in (finding.cut.references if finding.cut else ()) for place in reference.added_at]
    related = [
        {**place, "message": {"text": text}}
        for text, places in (("added here (found in the source)", added), ("made here", finding.made_at))
        for place in map(_location, dict.fromkeys(places))
        if place is not None
    ]
    if related:
        result["relatedLocations"] = related
    if suppressed:
        result["suppressions"] = [{"kind": "external"}]
    return result


def _level(finding: Finding) -> str:
    if finding.severity != Severity.LEAK:
        return "note"
    return "warning" if finding.origin == Origin.LIBRARY else "error"


def _message(finding: Finding) -> str:
    parts = [title(finding), held_text(finding), seen_text(finding)]
    parts += [] if holds_nothing(finding) else [f"freed by {freed_text(finding)}"]
    if finding.cut is not None:
        parts.append(f"cut `{cut_name(finding.cut)}`{also_text(finding.cut)}: {would_be_freed(finding)}")
    return ". ".join(part.rstrip(".") for part in (*parts, advice(finding), edit_text(finding)) if part) + "."


def _where(finding: Finding) -> str:
    """The cut's line, else the first leaked hop's, else where the tensor was made."""
    cut = [finding.cut.where] if finding.cut is not None else []
    leaked = [hop.where for hop in finding.trace if hop.status == HopStatus.LEAKED]
    return next((where for where in (*cut, *leaked, *finding.made_at) if where), "")


def _location(where: str) -> dict[str, Any] | None:
    place = place_of(where)
    if place is None:
        return None
    name = place.file
    uri = ("file://" if name.startswith("/") else "") + quote(name.replace("\\", "/"))
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": place.line}}}
