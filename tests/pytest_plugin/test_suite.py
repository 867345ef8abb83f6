"""Over a whole suite each leak is told once, a baseline and patterns set it apart, and workers bring all that home."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

TESTS = """
import unittest.mock
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
PREDICATES = """
import pytest
from test_many import close

@pytest.mark.no_tensor_leaks(ignore=lambda finding: finding.retained_bytes < 4001)
def test_ignored(): close(1000)

@pytest.mark.no_tensor_leaks(ignore=["torch", "Kept.itself*", "tensor-cycle"])
def test_pattern(): close(1000)

@pytest.mark.no_tensor_leaks(ignore=lambda finding: finding.no_such_thing)
def test_wrong(): close(1000)
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


EVERY = ("--leakscope", "--leakscope-allowance=0")


def lines_of(result: pytest.RunResult) -> list[str]:
    """The summary of leakscope."""
    lines = [line for line in result.outlines if line]
    begin = next(number for number, line in enumerate(lines) if re.fullmatch("=+ leakscope =+", line))
    rest = lines[begin + 1 :]
    return rest[: next(number for number, line in enumerate(rest) if line.startswith("==="))]


def field(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.startswith(name))[9:]


def test_each_leak_is_told_once_with_its_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_many=TESTS)
    result = pytester.runpytest_subprocess(*EVERY, "--leakscope-report=told", "--junitxml=junit.xml")
    result.assert_outcomes(failed=4, passed=1)
    lines = lines_of(result)
    assert [line[:2] for line in lines if re.match(r"\d\. ", line)] == ["1.", "2."]
    assert lines[3:6] == [
        "   left     11.72 KiB at most, 19.53 KiB in all, by 3 tests",
        "   tests    test_many.py::test_one[1000]",
        "            test_many.py::test_one[3000]",
    ]
    text = result.stdout.str()
    assert text.count("Freed by: ") == 2, "at length once for each leak"
    assert text.count("Told by an earlier test") == 2
    assert field(lines, "judged") == "4 tests: 3 failed, 0 inconclusive, 1 passed"
    assert field(lines, "unjudged").startswith("tests that failed otherwise: 1; fixtures")
    assert "leak" in (pytester.path / "junit.xml").read_text()
    folders = sorted(path.name for path in (pytester.path / "told").iterdir() if path.is_dir())
    index = (pytester.path / "told" / "index.html").read_text()
    assert "<summary>1 test</summary>" in index and "1 tests" not in index
    assert len(folders) == 2 and all(f'href="{name}/report.html"' in index for name in folders)
    for name in folders:
        told = json.loads((pytester.path / "told" / name / "findings.json").read_text())
        assert [finding["fingerprint"] for finding in told["findings"]] == [name]


def test_a_baseline_is_written_then_known_then_told_fixed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_many=TESTS.replace("    assert False\n", ""))
    options = (*EVERY, "--leakscope-baseline=known.json")
    first = pytester.runpytest_subprocess(*options, "-k", "one or clean")
    first.assert_outcomes(failed=2, passed=1)
    assert lines_of(first)[-1] == "Written: known.json, a baseline with 1 leak."
    second = pytester.runpytest_subprocess(*options)
    second.assert_outcomes(failed=2, passed=3)
    assert field(lines_of(second), "leaks") == "1 that fail tests, 1 in the baseline"
    written = (pytester.path / "known.json").read_text()
    update = ("--leakscope-baseline-update", "-k", "fails or clean", "-p", "no:terminal")
    assert pytester.runpytest_subprocess(*options, *update).ret == pytest.ExitCode.OK
    known = json.loads((pytester.path / "known.json").read_text())["findings"]
    assert len(known) == 2 and json.loads(written)["findings"][0] in known
    pytester.makepyfile(test_many=TESTS.replace("kept.itself", "other").replace("    assert False\n", ""))
    fixed = pytester.runpytest_subprocess(*options)
    fixed.assert_outcomes(passed=5)
    lines = lines_of(fixed)
    assert "Fixed: in the baseline, and no test shows them any more (1)" in lines


def test_a_file_that_is_no_baseline_and_a_pattern_for_all_are_usage_errors(pytester: pytest.Pytester) -> None:
    pytester.makefile(".json", known="{}")
    for option, said in (("baseline=known.json", "is no baseline"), ("ignore=*", "would suppress every leak")):
        result = pytester.runpytest_inprocess(f"--leakscope-{option}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert said in next(line for line in result.errlines if line.strip())


def test_patterns_and_functions_ignore_a_leak(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_many=TESTS, test_ignore=PREDICATES)
    result = pytester.runpytest_subprocess("test_ignore.py")
    result.assert_outcomes(failed=1, passed=2)
    text = result.stdout.str()
    assert "ignore=<lambda> raised AttributeError for tensor-cycle" in text and "During handling" not in text


def test_a_fault_of_leakscopes_own_fails_no_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("leakscope.pytest_plugin.judging.judgement", broken)
    pytester.makepyfile("def test_it(): import torch")
    result = pytester.runpytest_inprocess(*EVERY)
    result.assert_outcomes(passed=1)
    lines = lines_of(result)
    assert field(lines, "judged") == "1 test: 0 failed, 1 inconclusive, 0 passed"
    assert field(lines, "unclear") == "leakscope failed with KeyError: 'lost'"


@pytest.mark.process
def test_workers_bring_what_they_found_to_one_summary(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_many=TESTS)
    Path(pytester.path, "known.json").write_text('{"findings": []}')
    result = pytester.runpytest_subprocess(
        *EVERY, "-n", "1", "--leakscope-baseline=known.json", "--leakscope-baseline-update", "--leakscope-report=told"
    )
    result.assert_outcomes(failed=1, passed=4)
    lines = lines_of(result)
    assert field(lines, "judged") == "4 tests: 0 failed, 0 inconclusive, 4 passed"
    assert field(lines, "leaks") == "2 in the baseline"
    assert len(json.loads((pytester.path / "known.json").read_text())["findings"]) == 2
    assert len(list((pytester.path / "told").glob("*/report.html"))) == 2


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

def test_own(): Own()
"""


def test_what_a_library_closes_fails_a_test_only_where_it_is_to_be_strict(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = pytester.mkdir("site-packages")
    (packages / "closing_library.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    pytester.makepyfile(test_library=OF_LIBRARY)
    result = pytester.runpytest_subprocess(*EVERY)
    result.assert_outcomes(failed=2, passed=1)
    lines = lines_of(result)
    assert "   library  closing_library" in lines
    assert field(lines, "leaks") == "2 that fail tests"
    alone = lines_of(pytester.runpytest_subprocess(*EVERY, "-k", "note"))
    assert alone[0] == "Closed by libraries: they fail a test with --leakscope-strict (1)"
    assert "closing_library, 3.91 KiB, 1 test" in alone[1]
    strict = pytester.runpytest_subprocess(*EVERY, "--leakscope-strict", "--leakscope-ignore=closing_library")
    strict.assert_outcomes(failed=1, passed=2)


def test_a_session_that_judged_nothing_fails_where_that_is_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.no_tensor_leaks\ndef test_marked(): pass\ndef test_plain(): pass")
    asked = "--leakscope-fail-on-inconclusive"
    assert pytester.inline_run(asked, "-k", "plain").ret == pytest.ExitCode.TESTS_FAILED
    assert pytester.inline_run("-k", "plain").ret == pytest.ExitCode.OK
    assert pytester.inline_run(asked).ret == pytest.ExitCode.OK
