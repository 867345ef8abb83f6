"""What the schema of SARIF 2.1.0 and GitHub's code scanning refuse, of what leakscope writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import jsonschema

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_LEVEL = {"enum": ["none", "note", "warning", "error"]}


def _object(needed: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": needed.split(), "properties": properties}


def _some(items: Mapping[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least}


_MESSAGE = _object("text", text={"type": "string", "minLength": 1}, markdown=_TEXT)
_ARTIFACT = _object("uri", uri={"type": "string", "minLength": 1}, uriBaseId=_TEXT)
_LINE = {"type": "integer", "minimum": 1}
_REGION = _object("startLine", startLine=_LINE)
_LOCATION = _object(
    "physicalLocation",
    id=_COUNT,
    message=_MESSAGE,
    physicalLocation=_object("artifactLocation region", artifactLocation=_ARTIFACT, region=_REGION),
)
_STEP = _object(
    "location",
    location=_LOCATION,
    nestingLevel=_COUNT,
    executionOrder=_COUNT,
    importance={"enum": ["important", "essential", "unimportant"]},
)
_REPLACEMENT = _object(
    "deletedRegion",
    deletedRegion=_object("startLine", startLine=_LINE, endLine=_LINE),
    insertedContent=_object("text", text=_TEXT),
)
_FIX = _object(
    "artifactChanges",
    description=_MESSAGE,
    artifactChanges=_some(
        _object("artifactLocation replacements", artifactLocation=_ARTIFACT, replacements=_some(_REPLACEMENT, least=1)),
        least=1,
    ),
)
_RESULT = _object(
    "ruleId ruleIndex level message locations partialFingerprints",
    ruleId=_TEXT,
    ruleIndex=_COUNT,
    level=_LEVEL,
    message=_MESSAGE,
    locations=_some(_LOCATION, least=1),
    relatedLocations=_some(_LOCATION),
    codeFlows=_some(_object("threadFlows", threadFlows=_some(_object("locations", locations=_some(_STEP, 1)), 1))),
    partialFingerprints={"type": "object", "additionalProperties": _TEXT},
    suppressions=_some(
        _object(
            "kind",
            kind={"enum": ["inSource", "external"]},
            status={"enum": ["accepted", "underReview", "rejected"]},
            justification=_TEXT,
        )
    ),
    fixes=_some(_FIX, 1),
    properties={"type": "object"},
)
_RULE = _object(
    "id name shortDescription fullDescription help",
    id=_TEXT,
    name={"type": "string", "pattern": "^[A-Za-z0-9]+$"},
    shortDescription=_MESSAGE,
    fullDescription=_MESSAGE,
    help=_object("text markdown", text=_TEXT, markdown=_TEXT),
    defaultConfiguration=_object("level", level=_LEVEL),
    properties={"type": "object"},
)
_NOTICE = _object("level message", level=_LEVEL, message=_MESSAGE)
_RUN = _object(
    "tool results automationDetails",
    tool=_object("driver", driver=_object("name rules", name=_TEXT, version=_TEXT, rules=_some(_RULE))),
    automationDetails=_object("id", id={"type": "string", "pattern": "/$"}, description=_MESSAGE),
    originalUriBaseIds={"type": "object", "additionalProperties": _object("", description=_MESSAGE)},
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    invocations=_some(
        _object(
            "executionSuccessful",
            executionSuccessful={"type": "boolean"},
            exitCode={"type": "integer"},
            startTimeUtc={"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$"},
            arguments=_some(_TEXT),
            toolExecutionNotifications=_some(_NOTICE),
        )
    ),
    results=_some(_RESULT),
    properties={"type": "object"},
)
LOG = {**_object("version runs", version={"const": "2.1.0"}, runs=_some(_RUN, 1)), "additionalProperties": True}
"""The part of the standard's schema that a log of leakscope's uses."""
_URI = re.compile(r"(?:[A-Za-z0-9._~/:@!$&'()*+,;=-]|%[0-9A-F]{2})+")
"""RFC 3986, without query and fragment."""
_MAX_RESULTS, _MAX_STEPS, _MAX_RELATED, _MAX_TAGS = 5000, 10_000, 1000, 20
"""Of code scanning (docs.github.com, SARIF support for code scanning): 5,000 of the results are shown."""


def locations(log: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every location of every result."""
    for result in log["runs"][0]["results"]:
        yield from result["locations"]
        yield from result.get("relatedLocations", [])
        for flow in result.get("codeFlows", []):
            yield from (step["location"] for step in flow["threadFlows"][0]["locations"])


def problems(log: Mapping[str, Any]) -> Iterator[str]:
    """What would be refused, or not shown where it belongs."""
    for error in jsonschema.Draft202012Validator(LOG).iter_errors(log):
        yield f"{error.json_path}: {error.message}"
    run = log["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    if len(run["results"]) > _MAX_RESULTS or len(set(rules)) != len(rules):
        yield "too many results, or a rule twice"
    if any(len(rule["properties"]["tags"]) > _MAX_TAGS for rule in run["tool"]["driver"]["rules"]):
        yield "too many tags"
    if len({"suppressions" in result for result in run["results"]}) > 1:
        yield "suppressions are of all results or of none (3.27.23)"
    for result in run["results"]:
        yield from _of_result(result, rules)
    for place in locations(log):
        yield from _of_place(place["physicalLocation"]["artifactLocation"], run["originalUriBaseIds"])


def _of_result(result: Mapping[str, Any], rules: list[str]) -> Iterator[str]:
    if rules[result["ruleIndex"]] != result["ruleId"]:
        yield f"{result['ruleId']} is not the rule of its index"
    related = [place["id"] for place in result.get("relatedLocations", [])]
    if len(related) > _MAX_RELATED or len(set(related)) != len(related):
        yield "too many related locations, or two with one id"
    if any(len(flow["threadFlows"][0]["locations"]) > _MAX_STEPS for flow in result.get("codeFlows", [])):
        yield "too many steps of a flow"


def _of_place(artifact: Mapping[str, Any], bases: Mapping[str, Any]) -> Iterator[str]:
    uri, base = artifact["uri"], artifact.get("uriBaseId")
    if not _URI.fullmatch(uri):
        yield f"{uri!r} is no URI"
    if base is None and not uri.startswith("file:///"):
        yield f"{uri!r} is relative to nothing"
    if base is not None and (urlsplit(uri).scheme or uri.startswith(("/", "../")) or base not in bases):
        yield f"{uri!r} is not below {base}"
