"""The story for code hosts: SARIF 2.1.0, so that a leak shows up beside the line to change."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from leakscope.findings.kinds import RuleName, Severity
from leakscope.findings.model import Finding, Findings
from leakscope.record.model import Rank, Run
from leakscope.report.adding_lines import edit_text
from leakscope.report.cleaning import cleaned
from leakscope.report.formats.rule_help import rule_help
from leakscope.report.formats.sarif_places import BASES, code_flows, location, related_locations
from leakscope.report.formats.source_tree import script_line
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
    ranks_text,
    seen_text,
    suppressed_by_text,
    title,
    unjudged_together,
    why_text,
    would_be_freed,
)

_LEVELS: Mapping[str, str] = dict.fromkeys(
    (RuleName.LATE_RELEASE, RuleName.IDLE_MEMORY, RuleName.RANK_SKEW, RuleName.ALLOCATOR), "note"
)
"""Of rules whose findings are seldom leaks."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
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
                "automationDetails": _automation(run),
                "originalUriBaseIds": BASES,
                "columnKind": "unicodeCodePoints",
                "invocations": [_invocation(run, findings)],
                "results": [
                    _result(run, findings, finding, rules) | _suppressions(finding, findings)
                    for finding in shown_and_suppressed
                ],
                "properties": {"verdict": findings.verdict, "why": why_text(findings)},
            }
        ],
    }
    return json.dumps(log, indent=2, allow_nan=False) + "\n"


def _driver(run: Run, rules: list[str]) -> dict[str, Any]:
    driver: dict[str, Any] = {"name": "leakscope", "rules": [_rule(rule) for rule in rules]}
    if run.leakscope:
        driver["version"] = run.leakscope
    return driver


def _rule(rule: str) -> dict[str, Any]:
    said = rule_help(rule)
    parts = [part for part in (said.text, said.why, said.cure) if part]
    return {
        "id": rule,
        "name": said.name,
        "shortDescription": {"text": said.text},
        "fullDescription": {"text": " ".join(part for part in (said.text, said.why) if part)},
        "help": {"text": "\n\n".join(parts), "markdown": "\n\n".join((f"**{said.text}**", *parts[1:]))},
        "defaultConfiguration": {"level": _LEVELS.get(rule, "error")},
        "properties": {"tags": ["memory", "leak"]},
    }


def _automation(run: Run) -> dict[str, Any]:
    """Code scanning takes what stands before the last slash as a category: each script's alerts are its own."""
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


def _result(run: Run, findings: Findings, finding: Finding, rules: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _level(finding, findings),
        "message": {"text": _message(finding)},
        "locations": [location(run, finding)],
        "partialFingerprints": {"leakscope/v1": finding.fingerprint},
        "properties": {"retained_bytes": finding.retained_bytes, "bytes_per_step": finding.bytes_per_step},
    }
    for name, told in (("relatedLocations", related_locations), ("codeFlows", code_flows)):
        places = told(run, finding)
        if places:
            result[name] = places
    return result


def _suppressions(finding: Finding, findings: Findings) -> dict[str, Any]:
    """Of all results or of none (SARIF 2.1.0, 3.27.23)."""
    if not findings.suppressed:
        return {}
    if not any(finding is one for one in findings.suppressed):
        return {"suppressions": []}
    justification = {"justification": text} if (text := suppressed_by_text(finding)) else {}
    return {"suppressions": [{"kind": "external", "status": "accepted", **justification}]}


def _level(finding: Finding, findings: Findings) -> str:
    """`error` of what makes it a failure: code hosts fail a check by that."""
    fails = finding.is_leak or (findings.avoidable_over is not None and finding.severity == Severity.AVOIDABLE)
    return "error" if fails else "note"


def _message(finding: Finding) -> str:
    parts = [title(finding), held_text(finding), seen_text(finding)]
    parts += [] if holds_nothing(finding) else [f"freed by {freed_text(finding)}"]
    if finding.cut is not None:
        parts.append(f"cut `{cut_name(finding.cut)}`{also_text(finding.cut)}: {would_be_freed(finding)}")
    return ". ".join(part.rstrip(".") for part in (*parts, advice(finding), edit_text(finding)) if part) + "."
