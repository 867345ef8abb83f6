"""SARIF logs conform to the rules of code scanning, with paths relative to the repository root."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from support import examples
from support.formats.sarif_rules import problems

from leakscope.findings.model import Findings
from leakscope.findings.rules import rule_named
from leakscope.report import FORMATS
from leakscope.report.formats.as_sarif import script_line, tree_line
from leakscope.run.model import InRepository, Run
from leakscope.run.suppression import Suppression


def sarif(run: Run, findings: Findings) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(FORMATS["sarif"](run, findings))
    assert list(problems(log)) == []
    return log


def placed(run: Run, where: str) -> tuple[str, int]:
    line = tree_line(run, where)
    assert line is not None
    return line.uri, line.line


def test_a_leak_without_a_line_is_at_the_first_of_the_script() -> None:
    run, findings = examples.leaking()
    leak = replace(findings.findings[0], trace=(), cut=None, made_at=(), cycle=())
    run = replace(run, command=("my project/train it.py",))
    (result,) = sarif(run, replace(findings, findings=(leak,)))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "my%20project/train%20it.py", "uriBaseId": "SRCROOT"}
    assert place["region"] == {"startLine": 1} and "codeFlows" not in result and "relatedLocations" not in result


def test_paths_are_from_the_repositorys_root() -> None:
    run = examples.leaking()[0]
    below = replace(run, command=("train.py",), repository=InRepository("examples/llm", "examples/llm/train.py"))
    assert placed(below, "train.py:3 main") == ("examples/llm/train.py", 3)
    assert placed(below, "data/loader.py:7") == ("examples/llm/data/loader.py", 7)
    beside = replace(run, command=("../train.py",), repository=InRepository("work", "train.py"))
    assert placed(beside, "train.py:3 main") == ("train.py", 3) and script_line(beside).path == "train.py"
    spaced = replace(run, command=("my project/train it.py",))
    assert placed(spaced, "my project/train it.py:41 forward (aten::addmm)") == ("my%20project/train%20it.py", 41)
    outside = replace(run, command=("/home/me/train.py",), repository=InRepository())
    assert script_line(outside).uri == "train.py" and placed(outside, "/odd/a b.py:3") == ("file:///odd/a%20b.py", 3)
    module = replace(run, command=("-m", "pack.train"), sources={"pack/train/__main__.py": ()})
    assert script_line(module).path == "pack/train/__main__.py"
    assert script_line(replace(module, sources={})).path == "pack/train.py"


def test_a_line_of_a_library_is_never_the_location() -> None:
    run, findings = examples.leaking()
    hops = tuple(replace(hop, where="<torch/nn/modules/module.py>:7 __call__") for hop in findings.findings[0].trace)
    leak = replace(findings.findings[0], trace=hops, cut=None, made_at=("<torch/x.py>:9 f", "stage.py:12 forward"))
    (result,) = sarif(run, replace(findings, findings=(leak,)))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "stage.py"
    (flow,) = result["codeFlows"]
    artifact = flow["threadFlows"][0]["locations"][0]["location"]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "torch/nn/modules/module.py", "uriBaseId": "PACKAGES"}


def test_a_suppression_carries_its_reason() -> None:
    run, findings = examples.leaking()
    by = Suppression("step-growth", "the cache, issue 12", "2027-01-31", "known.txt", 3)
    known = replace(findings.findings[1], suppressed_by=by)
    reported = replace(findings, findings=findings.findings[:1], suppressed=(known,), unused=(by,))
    first, second = sarif(run, reported)["runs"][0]["results"]
    assert first["suppressions"] == []
    (suppression,) = second["suppressions"]
    assert suppression["status"] == "accepted" and "the cache, issue 12" in suppression["justification"]
    assert '<skipped message="' in FORMATS["junit"](run, reported)
    data = json.loads(FORMATS["json"](run, reported))
    entry = {
        "pattern": "step-growth",
        "reason": "the cache, issue 12",
        "until": "2027-01-31",
        "file": "known.txt",
        "line": 3,
    }
    assert data["suppressed"][0]["suppressed_by"] == entry and data["unused_suppressions"] == [entry]
    assert data["findings"][0]["suppressed_by"] is None and data["expired_suppressions"] == []


def test_rules_have_their_texts() -> None:
    reported = sarif(*examples.leaking())["runs"][0]["tool"]["driver"]["rules"]
    assert ("tensor-cycle", "TensorCycle") in [(rule["id"], rule["name"]) for rule in reported]
    for rule in reported:
        known = rule_named(rule["id"])
        assert rule["shortDescription"]["text"] == known.text
        assert rule["help"]["text"] == f"{known.text}\n\n{known.why}\n\n{known.cure}"
