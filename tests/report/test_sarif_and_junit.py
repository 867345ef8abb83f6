"""SARIF and JUnit reports contain the findings, their cuts, suppressions and failed ranks."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from support import examples

from leakscope.findings.facts import RuleName
from leakscope.findings.rules import RULES
from leakscope.report import FORMATS


def sarif(name: str) -> dict[str, Any]:
    log = json.loads(FORMATS["sarif"](*examples.ALL[name]()))
    assert log["version"] == "2.1.0" and len(log["runs"]) == 1
    run: dict[str, Any] = log["runs"][0]
    return run


def junit(name: str) -> ElementTree.Element:
    suite = ElementTree.fromstring(FORMATS["junit"](*examples.ALL[name]())).find("testsuite")
    assert suite is not None
    return suite


@pytest.mark.parametrize("name", examples.ALL)
def test_sarif_results_are_complete(name: str) -> None:
    run = sarif(name)
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note") and result["message"]["text"]
        assert len(result["partialFingerprints"]["leakscope/v1"]) == 8
        assert result["locations"]
        for location in result["locations"]:
            physical = location["physicalLocation"]
            assert physical["region"]["startLine"] >= 1
            assert not set(physical["artifactLocation"]["uri"]) & set('<>" {}')


def test_sarif_points_at_the_cut() -> None:
    cycle, growth, library, note = sarif("leaking")["results"]
    assert [r["level"] for r in (cycle, growth, library, note)] == ["error", "error", "note", "note"]
    place = cycle["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("stage.py", 41)
    made = growth["relatedLocations"][0]["physicalLocation"]
    assert (made["artifactLocation"]["uri"], made["region"]["startLine"]) == ("train.py", 41)
    last_resort = library["locations"][0]["physicalLocation"]
    assert (last_resort["artifactLocation"]["uri"], last_resort["region"]["startLine"]) == ("train.py", 1)


def test_sarif_marks_what_was_suppressed() -> None:
    first, second = sarif("hostile")["results"]
    assert first["suppressions"] == [] and second["suppressions"] == [{"kind": "external", "status": "accepted"}]


def test_sarif_says_which_rank_failed() -> None:
    invocation = sarif("killed")["invocations"][0]
    assert not invocation["executionSuccessful"] and invocation["exitCode"] == 137
    assert any("rank 1 killed by SIGKILL" in n["message"]["text"] for n in invocation["toolExecutionNotifications"])


def test_every_name_of_a_rule_has_one() -> None:
    assert tuple(RULES) == tuple(RuleName)


@pytest.mark.parametrize(
    ("name", "failures", "errors", "skipped"),
    [("leaking", 2, 0, 1), ("clean", 0, 0, 0), ("inconclusive", 0, 0, 2), ("killed", 0, 3, 1), ("no_step", 0, 0, 1),
     ("hostile", 1, 1, 2)],
)  # fmt: skip
def test_junit_counts(name: str, failures: int, errors: int, skipped: int) -> None:
    suite = junit(name)
    told = tuple(int(suite.get(key, "-1")) for key in ("failures", "errors", "skipped"))
    assert told == (failures, errors, skipped)
    assert tuple(len(suite.findall(f"testcase/{tag}")) for tag in ("failure", "error", "skipped")) == told
    assert int(suite.get("tests", "0")) == len(suite.findall("testcase"))


def test_junit_failure_carries_the_trace_and_the_cut() -> None:
    failure = junit("leaking").find("testcase/failure")
    assert failure is not None and failure.text is not None
    assert (
        "function extract" in failure.text
        and "cut closure extract, held at stage.py:41: frees 768.00 KiB" in failure.text
    )
