"""The values of `findings.json`; `formats/test_findings_schema.py` checks its keys."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from support import examples

from leakscope.findings.model import Findings, RankSummary, Suggestion
from leakscope.report import FORMATS


def told(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(FORMATS["json"](*examples.ALL[name]()))
    return data


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
        "storage_bytes": 0,
        "counted_bytes": None,
    }


def test_figures_are_those_of_the_findings() -> None:
    data = told("leaking")
    cycle, growth = data["findings"][:2]
    assert (data["verdict"], data["exit_status"], data["run"]["steps"]) == ("leaks", 23, 12)
    assert (cycle["rule"], cycle["ranks"], cycle["first_step"], cycle["last_step"]) == ("tensor-cycle", [0, 1], 3, 11)
    assert (cycle["collections"], cycle["cut"]["measured_bytes"]) == (2, 786432)
    assert (growth["collections"], growth["cut"]["measured_bytes"]) == (None, None)
    assert growth["trace"][1]["reference"] == ".losses" and growth["trace"][2]["frees_bytes"] is None


def test_a_killed_rank_says_so() -> None:
    assert told("killed")["run"]["ended"]["1"] == {"kind": "killed", "exit_status": 137, "steps": 5}


def test_hostile_names_arrive_as_they_were() -> None:
    assert told("hostile")["findings"][0]["title"] == examples.HOSTILE
