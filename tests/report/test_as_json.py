"""`findings.json` has exactly the promised keys and the figures of the findings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support import examples

from leakscope.findings.model import Findings, RankSummary, Suggestion
from leakscope.report import FORMATS

TOP = {
    "loader_workers",
    "format",
    "leakscope",
    "verdict",
    "why",
    "exit_status",
    "run",
    "findings",
    "suppressed",
    "unused_suppressions",
    "expired_suppressions",
    "unjudged",
    "ledger",
    "out_of_memory",
    "gc_advice",
    "drag",
    "also_grows",
    "ranks",
}
RUN = {"command", "ranks", "steps", "device", "torch", "heap_reader", "ended"}
FINDING = {
    "rule", "title", "fingerprint", "origin", "severity", "freed_by", "collections", "retained_bytes",
    "bytes_per_step", "ranks", "first_step", "last_step", "made_at", "sightings", "trace", "cut",
    "cycle", "suggestion", "advice", "see", "see_lines", "suppressed_by",
}  # fmt: skip
HOP = {"object", "type", "kind", "where", "status", "reason", "reference", "frees_bytes"}
CUT = {"references", "frees_bytes", "proved_bytes", "after_gc"}
CUT_REFERENCE = {"written", "reference", "where", "added_at", "trace", "path"}
RANK = {
    "verdict", "peak_bytes", "avoidable_peak_bytes", "freed_by_gc_bytes", "gc_seconds", "explained_bytes",
    "counted_bytes",
}  # fmt: skip


INTERVAL = {"from_step", "to_step", "counted_bytes", "lines"}


def told(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(FORMATS["json"](*examples.ALL[name]()))
    return data


@pytest.mark.parametrize("name", examples.ALL)
def test_keys_are_exactly_those_promised(name: str) -> None:
    data = told(name)
    assert set(data) == TOP
    assert set(data["run"]) == RUN
    for ended in data["run"]["ended"].values():
        assert set(ended) == {"how", "status", "steps"}
    for finding in data["findings"] + data["suppressed"]:
        assert set(finding) == FINDING
        assert all(set(hop) == HOP for hop in finding["trace"])
        assert finding["cut"] is None or set(finding["cut"]) == CUT
        assert all(set(one) == CUT_REFERENCE for one in (finding["cut"] or {}).get("references", ()))
        assert all(set(sighting) == {"rank", "step", "bytes"} for sighting in finding["sightings"])
    assert all(set(item) == {"rule", "rank", "why"} for item in data["unjudged"])
    assert all(set(interval) == INTERVAL for intervals in data["ledger"].values() for interval in intervals)
    assert all(set(rank) == RANK for rank in data["ranks"].values())


def test_an_edit_of_several_places_lists_each() -> None:
    run, findings = examples.leaking()
    edit = Suggestion("train.py:3", "a", "b", also=(Suggestion("train.py:9", "c", ""),))
    told = json.loads(
        FORMATS["json"](run, replace(findings, findings=(replace(findings.findings[0], suggestion=edit),)))
    )
    place = {"where": "train.py:3", "before": "a", "after": "b"}
    also = [{"where": "train.py:9", "before": "c", "after": ""}]
    assert told["findings"][0]["suggestion"] == place | {"also": also}


def test_what_is_unknown_is_null() -> None:
    run, _ = examples.clean()
    data = json.loads(FORMATS["json"](run, Findings("clean", "", 0, ranks={0: RankSummary()})))
    assert data["ranks"]["0"] == {
        "verdict": None,
        "peak_bytes": None,
        "avoidable_peak_bytes": None,
        "freed_by_gc_bytes": None,
        "gc_seconds": None,
        "explained_bytes": 0,
        "counted_bytes": None,
    }


def test_figures_are_those_of_the_findings() -> None:
    data = told("leaking")
    cycle, growth = data["findings"][:2]
    assert (data["verdict"], data["exit_status"], data["run"]["steps"]) == ("leaks", 23, 12)
    assert (cycle["rule"], cycle["ranks"], cycle["first_step"], cycle["last_step"]) == ("tensor-cycle", [0, 1], 3, 11)
    assert (cycle["collections"], cycle["cut"]["proved_bytes"]) == (2, 786432)
    assert (growth["collections"], growth["cut"]["proved_bytes"]) == (None, None)
    assert growth["trace"][1]["reference"] == ".losses" and growth["trace"][2]["frees_bytes"] is None


def test_a_killed_rank_says_so() -> None:
    assert told("killed")["run"]["ended"]["1"] == {"how": "killed", "status": 137, "steps": 5}


def test_hostile_names_arrive_as_they_were() -> None:
    assert told("hostile")["findings"][0]["title"] == examples.HOSTILE
