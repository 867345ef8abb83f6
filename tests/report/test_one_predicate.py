"""Verdict, exit status and every format say alike whether what was found is a failure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from support import ROOT, examples

from leakscope.findings.facts import Origin, Severity
from leakscope.findings.judge import Policy, judge
from leakscope.findings.model import Findings
from leakscope.report import FORMATS
from leakscope.report.notebook import render as in_notebook
from leakscope.run.model import Run
from leakscope.run.reader import read_run
from leakscope.verdict import Returned, Verdict

pytestmark = pytest.mark.process  # graphviz draws on the page

Reported = tuple[Run, Findings]


def of_a_library() -> Reported:
    run, findings = examples.leaking()
    leak = replace(examples.growth_finding(), origin=Origin.LIBRARY, library="pytest")
    return run, replace(findings, findings=(leak,))


def avoidable() -> Reported:
    run, findings = examples.clean()
    idle = replace(examples.growth_finding(), severity=Severity.AVOIDABLE, bytes_per_step=0.0)
    return run, replace(findings, findings=(idle,))


def too_much_avoidable() -> Reported:
    run, findings = avoidable()
    return run, replace(findings, avoidable_over=findings.findings[0].retained_bytes, exit_status=23)


def unjudged_fails() -> Reported:
    run, findings = examples.inconclusive()
    return run, replace(findings, fail_on_inconclusive=True, exit_status=2)


def recorded(variant: str, **how: object) -> Callable[[], Reported]:
    def reported() -> Reported:
        run = read_run(ROOT / "sample_runs" / "p2p_pipeline" / variant)
        return run, judge(run, Policy(**how))  # type: ignore[arg-type]

    return reported


CASES: dict[str, tuple[Callable[[], Reported], bool]] = {
    "leaking": (examples.leaking, True),
    "clean": (examples.clean, False),
    "inconclusive": (examples.inconclusive, False),
    "no step": (examples.no_step, False),
    "of a library": (of_a_library, True),
    "avoidable": (avoidable, False),
    "too much avoidable": (too_much_avoidable, True),
    "unjudged fails": (unjudged_fails, True),
    "recorded leak": (recorded("kept-outputs"), True),
    "recorded, suppressed": (recorded("kept-outputs", suppress=("*",)), False),
    "recorded, clean": (recorded("none"), False),
    "recorded, avoidable": (recorded("engine", fail_on_avoidable=0), True),
}


@pytest.mark.parametrize("case", CASES)
def test_every_format_fails_where_the_exit_status_does(case: str) -> None:
    made, fails = CASES[case]
    run, findings = made()
    assert findings.failed is fails
    assert (findings.exit_status != 0) is fails
    assert (findings.verdict == Verdict.LEAKS) is bool(findings.leaks)
    reported = {name: form(run, findings) for name, form in FORMATS.items()}

    data = json.loads(reported["json"])
    assert (data["verdict"], data["exit_status"]) == (findings.verdict, findings.exit_status)
    assert sum(each["severity"] == "leak" for each in data["findings"]) == len(findings.leaks)

    suite = ElementTree.fromstring(reported["junit"]).find("testsuite")
    assert suite is not None
    assert (int(suite.get("failures", "0")) > 0) is fails
    assert not findings.leaks or suite.get("failures") == str(len(findings.leaks))

    log = json.loads(reported["sarif"])["runs"][0]
    assert log["invocations"][0]["exitCode"] == findings.exit_status
    errors = [one for one in log["results"] if one["level"] == "error" and not one.get("suppressions")]
    assert bool(errors) is (fails and not findings.unjudged_fails), "no result says that nothing could be judged"

    assert ("❌" in reported["markdown"].splitlines()[0]) is fails
    page = re.search(r'<section class="verdict (\w+)"', reported["html"])
    assert page is not None and (page[1] == "leaks") is fails
    text = reported["text"].splitlines()
    assert {line.split()[1].rstrip(":") for line in text if line.startswith("Verdict")} == {findings.verdict.upper()}
    assert ("distinct leak" in text[0]) is bool(findings.leaks)
    assert f"(exit status {findings.exit_status}" in text[0]
    assert in_notebook(run, findings)


@pytest.mark.parametrize("returned", Returned)
def test_the_text_gives_an_exit_status_only_where_it_is_returned(returned: Returned) -> None:
    run, findings = examples.inconclusive()
    text = FORMATS["text"](run, replace(findings, returned=returned))
    assert ("exit status" in text) is (returned != Returned.NOT)
    assert ("--fail-on-inconclusive" in text) is (returned == Returned.OWN)
