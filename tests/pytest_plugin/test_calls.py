"""A test that leaves tensor memory behind fails under the marker, whatever kind of test it is, and is told once."""

from __future__ import annotations

import pytest

MARKED = """
import pytest

bag = []

def leave_a_cycle():
    import torch
    kept = torch.ones(1000)
    def extract(n):
        return extract(n - 1) if n else kept
    extract(1)

@pytest.mark.no_tensor_leaks
def test_leaks():
    leave_a_cycle()

@pytest.mark.no_tensor_leaks("1 MB")
def test_allowed():
    leave_a_cycle()

def test_unmarked():
    leave_a_cycle()

@pytest.mark.no_tensor_leaks(repeats=3)
def test_grows(tmp_path):
    import torch
    bag.append(torch.ones(1 << 20))
"""


def test_the_marker_fails_the_tests_that_leak(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_marked=MARKED)
    result = pytester.runpytest_subprocess("--leakscope")  # the one without a marker leaves less than 64 KiB
    result.assert_outcomes(failed=2, passed=2)
    result.stdout.fnmatch_lines(["*FAILED*test_leaks*", "*FAILED*test_grows*"])
    result.stdout.fnmatch_lines(["*extract*"])
    everywhere = pytester.runpytest_subprocess("--leakscope", "--leakscope-allowance=3KiB", "-k", "unmarked")
    everywhere.assert_outcomes(failed=1)


TEST_CASES = """
import unittest

import pytest
from test_marked import bag, leave_a_cycle

@pytest.mark.no_tensor_leaks
class TestCases(unittest.TestCase):
    def test_leaks(self):
        leave_a_cycle()

    def test_is_clean(self):
        pass

    def test_fails(self):
        leave_a_cycle()
        self.fail("of itself")

    def test_is_skipped(self):
        self.skipTest("of itself")

    @pytest.mark.no_tensor_leaks(repeats=3)
    def test_grows(self):
        import torch
        bag.append(torch.ones(1 << 20))
"""


def test_methods_of_a_test_case_are_judged_as_functions_are(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_marked=MARKED, test_cases=TEST_CASES)
    result = pytester.runpytest_subprocess("test_cases.py", "-k", "TestCases")
    result.assert_outcomes(failed=3, passed=1, skipped=1)
    told = result.stdout.str()
    assert told.count("1 tensor leak, ") == 4 and told.count("of itself") >= 1, (
        "the report, and pytest's summary, of two tests"
    )


def test_a_failing_test_is_told_once_and_of_the_test_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_marked=MARKED)
    monkeypatch.setenv("CI", "true")  # pytest's summary holds the whole message there
    block = pytester.runpytest_subprocess("-k", "test_leaks").stdout.str()
    repeated = pytester.runpytest_subprocess("-k", "test_grows", "-n", "1").stdout.str()
    for told in (block, repeated):
        assert told.count("1 tensor leak, ") == 2 and told.count("Leaks (1)") == 1, "the report, and pytest's summary"
        assert "During handling" not in told
        assert not any(
            words in told
            for words in ("exit status", "Run   ", "same command", "0 steps", "no step detected", "rank  steps")
        )
    assert "3.91 KiB retained in 1 storage after the block" in block and "step" not in block
    assert "1 tensor leak, 12.00 MiB retained by 3 repeats, each of them a step (1 to 3)" in repeated


BROKEN = """
import leakscope.profiler.block

def fails(*_, **__):
    raise RuntimeError("a fault of leakscope's")

setattr(leakscope.profiler.block, {where!r}, fails)
"""
LEAKS = """
import pytest
import torch

@pytest.mark.no_tensor_leaks
def test_one():
    cycle = [torch.ones(10)]
    cycle.append(cycle)
"""


@pytest.mark.parametrize("where", ["look_now", "_run_of_block", "why_no_look"])
def test_a_fault_of_leakscopes_own_is_a_warning_and_fails_where_that_is_asked_for(
    pytester: pytest.Pytester, where: str
) -> None:
    pytester.makeconftest(BROKEN.format(where=where))
    pytester.makepyfile(LEAKS)
    lenient = pytester.runpytest_subprocess()
    lenient.assert_outcomes(passed=1, warnings=1)
    lenient.stdout.fnmatch_lines(["*RuntimeError: a fault of leakscope's*"])
    pytester.runpytest_subprocess("--leakscope-strict").assert_outcomes(failed=1)
