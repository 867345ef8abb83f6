"""Fixtures are judged on request: a leak is an error of the teardown, and the test itself ends as it would."""

from __future__ import annotations

import pytest

TESTS = """
import unittest
import pytest, torch

def leave_a_cycle():
    kept = [torch.zeros(1 << 18)]
    kept.append(kept)

@pytest.fixture
def leaves_at_set_up():
    leave_a_cycle()
    return 1

@pytest.fixture
def leaves_at_tear_down():
    yield 1
    leave_a_cycle()

@pytest.fixture
def is_a_cycle():
    kept = [torch.zeros(1 << 18)]
    kept.append(kept)
    yield kept

@pytest.fixture(scope="session")
def of_the_session():
    leave_a_cycle()
    return 1

@pytest.fixture
def clean(tmp_path):
    yield torch.ones(3)

def test_both(leaves_at_set_up, leaves_at_tear_down):
    pass

def test_fails(leaves_at_set_up):
    assert False, "of itself"

def test_session_begins(of_the_session):
    pass

def test_session_goes_on(of_the_session):
    pass

def test_asks_while_it_runs(request):
    request.getfixturevalue("leaves_at_set_up")

@pytest.mark.no_tensor_leaks("2 MB")
def test_allowed(leaves_at_set_up, leaves_at_tear_down):
    pass

class TestCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        leave_a_cycle()

    def test_it(self):
        pass

def test_value_leaks(is_a_cycle):
    assert is_a_cycle

def test_is_clean(clean):
    pass
"""


def test_fixtures_are_judged_on_request(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_fixtures=TESTS)
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "--leakscope", "--leakscope-fixtures")
    result.assert_outcomes(passed=7, failed=2, errors=5)
    errors = {}
    reports, _, _ = result.stdout.str().partition("short test summary info")
    for section in reports.split("ERROR at teardown of ")[1:]:
        name, _, rest = section.partition(" ")
        errors[name] = [
            line.partition(": 1 tensor leak")[0] for line in rest.splitlines() if ": 1 tensor leak, " in line
        ]
    assert errors.pop("test_both")[0] == "setup of fixture leaves_at_set_up"
    assert errors == {
        "test_fails": ["setup of fixture leaves_at_set_up"],
        "test_session_begins": ["setup of fixture of_the_session"],
        "TestCase.test_it": ["setup of setUpClass of TestCase"],
        "test_value_leaks": ["teardown of fixture is_a_cycle"],
    }
    result.stdout.fnmatch_lines(["FAILED test_fixtures.py::test_asks_while_it_runs - 1 tensor leak, 1.00 MiB *"])


@pytest.mark.inspect
def test_they_are_not_by_default(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_fixtures=TESTS)
    result = pytester.runpytest_inprocess("-p", "no:asyncio", "--leakscope", "-k", "session or test_it")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["unjudged fixtures (enable with --leakscope-fixtures)"])
