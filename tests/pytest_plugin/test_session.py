"""Each leak of a session is reported once with its tests; a baseline is written, and kept up to date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support import ROOT
from support.examples import cycle_finding, growth_finding, run

from leakscope.errors import LeakscopeError
from leakscope.findings.model import Findings
from leakscope.pytest_plugin.judging import Judgement, LeakInTest, LeakState, PhaseOutcome
from leakscope.pytest_plugin.session import Summary, findings_text, grouped
from leakscope.report.formats.as_json import as_data, read_baseline
from leakscope.verdict import Verdict

SCHEMA = json.loads((ROOT / "leakscope/report/formats/findings.schema.json").read_text())


def left(fingerprint: str, title: str, size: int, state: LeakState, **more: Any) -> LeakInTest:
    return LeakInTest({"fingerprint": fingerprint, "retained_bytes": size}, title, state, **more)


CYCLE = left("aaaaaaaa", "a cycle", 2048, LeakState.FAILS, cut="`net.hook`: 2.00 KiB would be freed", line="a.py:3")
LARGER = left("aaaaaaaa", "a cycle", 4096, LeakState.FAILS, cut="`net.hook`")
HOOKS = left("bbbbbbbb", "a cycle of hooks", 12, LeakState.LIBRARY, library="gpytorch")
OLD = left("cccccccc", "a list", 1 << 20, LeakState.BASELINE)


def failed(*those: LeakInTest) -> Judgement:
    return Judgement(PhaseOutcome.FAILED, left=those, seconds=0.5)


JUDGEMENTS = (
    *((f"test_a.py::test[{n}]", failed(CYCLE, HOOKS)) for n in range(4)),
    ("test_a.py::test_old", Judgement(PhaseOutcome.JUDGED, left=(OLD,), seconds=0.5, processes=True)),
    ("test_a.py::test_more", failed(LARGER)),
    ("test_a.py::test_more", Judgement(PhaseOutcome.JUDGED)),
    ("test_a.py::test_dark", Judgement(PhaseOutcome.INCONCLUSIVE, "hidden by torch")),
    ("a.py::a", Judgement(PhaseOutcome.NOT_JUDGED, "doctests")),
)

SUMMARY = """\
1. a cycle [aaaaaaaa]
   cut      `net.hook`
   left     up to 4.00 KiB, 12.00 KiB in total, by 5 tests
   tests    test_a.py::test[0]
            test_a.py::test[1]
            test_a.py::test[2] and 2 more

In libraries; they fail tests with --leakscope-strict (1)
- [bbbbbbbb] gpytorch, up to 12 B, 4 tests: a cycle of hooks

In the baseline (1)
- [cccccccc] 1.00 MiB, 1 test: a list

In the baseline, and not found in this session (1)
- [dddddddd] a tuple

judged   7 tests: 5 failed, 1 inconclusive, 1 passed
leaks    1 failing tests, 1 in libraries, 1 in the baseline
unclear  hidden by torch
unjudged doctests: 1; fixtures (enable with --leakscope-fixtures); tests with child processes, in those: 1
overhead 3.0 s
Written: known.json"""


def test_the_summary_of_a_session() -> None:
    not_found = ({"fingerprint": "dddddddd", "title": "a tuple"},)
    assert (
        Summary(JUDGEMENTS, everywhere=True, not_found=not_found, notes=("Written: known.json",)).render(110) == SUMMARY
    )


def test_the_most_severe_comes_first_then_the_largest() -> None:
    assert [(group.fingerprint, len(group.tests), group.bytes) for group in grouped(JUDGEMENTS)] == [
        ("aaaaaaaa", 5, 12288),
        ("bbbbbbbb", 4, 48),
        ("cccccccc", 1, 1 << 20),
    ]


def test_of_many_leaks_some_have_a_line_and_the_rest_is_counted() -> None:
    many = tuple(("t", failed(left(f"{n:08}", "one", 100 - n, LeakState.FAILS))) for n in range(40))
    text = Summary(many).render(110)
    assert "20. one [00000019]" in text and "- [00000029] 71 B, 1 test: one" in text
    assert "00000030" not in text and "  and 10 more" in text


def test_clean_tests_with_a_marker_need_no_summary() -> None:
    clean = (("t", Judgement(PhaseOutcome.JUDGED)),)
    assert not Summary(clean).is_needed and not Summary().is_needed
    assert Summary(clean, everywhere=True).is_needed and Summary(JUDGEMENTS[:1]).is_needed


def test_what_a_session_writes_is_an_ordinary_findings_json(tmp_path: Path) -> None:
    findings = (cycle_finding(), growth_finding())
    entries = as_data(run(), Findings(Verdict.LEAKS, "", 23, findings))["findings"]
    states = (LeakState.FAILS, LeakState.IGNORED)
    lefts = [LeakInTest(json.loads(json.dumps(one)), one["title"], s) for one, s in zip(entries, states, strict=True)]
    path = tmp_path / "known.json"
    path.write_text(findings_text(grouped([("t", failed(*lefts))])))
    data, known = read_baseline(path)
    jsonschema.validate(data, SCHEMA)
    assert data["verdict"] == "leaks" and [one["fingerprint"] for one in data["findings"]] == ["b41c07e2"]
    assert [(one.pattern, one.is_baseline) for one in known] == [("b41c07e2", True), ("0f3a9c11", True)]
    path.write_text(findings_text([], data["findings"]))
    assert read_baseline(path)[0]["findings"] == data["findings"], "kept"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"findings": [3]}', '{"findings": [{"fingerprint": 3}]}'])
def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "known.json"
    path.write_text(text)
    with pytest.raises(LeakscopeError, match=r"known\.json"):
        read_baseline(path)


TESTS = """
import pytest, torch

class Kept:
    pass

def close(size=1000):
    kept = Kept()
    kept.tensor, kept.itself = torch.ones(size), kept

def recurse():
    kept = torch.ones(2000)
    def again(n):
        return again(n - 1) if n else kept
    again(1)

@pytest.mark.parametrize("size", [1000, 3000])
def test_one(size): close(size)

def test_both():
    close()
    recurse()

def test_clean(): torch.ones(3)

def test_fails():
    recurse()
    assert False
"""


@pytest.mark.process
def test_a_baseline_is_written_by_workers_and_fails_no_test_after_that(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_many=TESTS)
    options = ("--leakscope", "--leakscope-allowance=0", "--leakscope-baseline=known.json")
    first = pytester.runpytest_subprocess(*options, "-n", "1", "--leakscope-report=out", "--junitxml=junit.xml")
    first.assert_outcomes(failed=4, passed=1)
    first.stdout.fnmatch_lines(["judged   4 tests: 3 failed, 0 inconclusive, 1 passed", "leaks    2 failing tests"])
    assert first.stdout.str().count("Also reported by an earlier test") == 2, "in full once for each leak"
    assert "leak" in (pytester.path / "junit.xml").read_text()
    known, report = (json.loads((pytester.path / name).read_text()) for name in ("known.json", "out/findings.json"))
    assert known["findings"] == report["findings"] and len(known["findings"]) == 2
    for finding in report["findings"]:
        alone = json.loads((pytester.path / "out" / finding["fingerprint"] / "findings.json").read_text())
        assert [one["fingerprint"] for one in alone["findings"]] == [finding["fingerprint"]]
        assert (pytester.path / "out" / finding["fingerprint"] / "report.html").exists()
    pytester.makepyfile(test_many=TESTS.replace("kept.itself", "other").replace("    assert False\n", ""))
    again = pytester.runpytest_subprocess(*options, "--leakscope-baseline-update")
    again.assert_outcomes(passed=5)
    again.stdout.fnmatch_lines(["In the baseline, and not found in this session (1)", "leaks    1 in the baseline"])
    left_over = json.loads((pytester.path / "known.json").read_text())["findings"]
    assert len(left_over) == 1 and left_over[0]["fingerprint"] in {one["fingerprint"] for one in known["findings"]}


LIBRARY = """
import torch

class Base(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self._register_load_state_dict_pre_hook(self._on_load)
        self.weight = torch.nn.Parameter(torch.ones(1000))

    def _on_load(self, *args):
        pass
"""
OF_LIBRARY = """
import pytest
from closing_library import Base

class Net(Base):
    pass

class Own(Base):
    def __init__(self):
        super().__init__()
        self.__dict__["itself"] = self

def test_note(): Net()

@pytest.mark.no_tensor_leaks(strict=True)
def test_strict(): Net()

@pytest.mark.no_tensor_leaks(strict=True, ignore="closing_library")
def test_ignored(): Net()

def test_own(): Own()
"""


def test_a_cycle_of_a_library_fails_only_strict_tests(pytester: pytest.Pytester) -> None:
    packages = pytester.mkdir("site-packages")
    (packages / "closing_library.py").write_text(LIBRARY)
    pytester.makeconftest(f"import sys; sys.path.insert(0, {str(packages)!r})")
    pytester.makepyfile(test_library=OF_LIBRARY)
    result = pytester.runpytest_subprocess("--leakscope", "--leakscope-allowance=0")
    result.assert_outcomes(failed=2, passed=2)
    result.stdout.fnmatch_lines(["FAILED *::test_strict *", "FAILED *::test_own *"])
    result.stdout.fnmatch_lines(["   library  closing_library"])


@pytest.mark.inspect
def test_a_session_that_judged_nothing_fails_on_request(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.no_tensor_leaks\ndef test_marked(): pass\ndef test_plain(): pass")
    option = "--leakscope-fail-on-inconclusive"
    assert pytester.inline_run(option, "-k", "plain").ret == pytest.ExitCode.TESTS_FAILED
    assert pytester.inline_run("-k", "plain").ret == pytest.ExitCode.OK
    assert pytester.inline_run(option).ret == pytest.ExitCode.OK
