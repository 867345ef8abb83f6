"""What fixtures leave is told on request, as an error of the tear-down, and the test itself ends as it would."""

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
    result.stdout.fnmatch_lines_random(
        [
            "leakscope: each test may leave 64.00 KiB of tensor memory behind, and its fixtures",
            "*ERROR at teardown of test_both*",
            "set-up of fixture leaves_at_set_up: 1 tensor leak, 1.00 MiB retained, 64.00 KiB allowed",
            "tear-down of fixture leaves_at_tear_down, *: 1 tensor leak, 1.00 MiB retained, 64.00 KiB allowed",
            "*ERROR at teardown of test_fails*",
            "*AssertionError: of itself*",
            "*ERROR at teardown of test_session_begins*",
            "set-up of fixture of_the_session: 1 tensor leak, *",
            "*ERROR at teardown of TestCase.test_it*",
            "set-up of setUpClass of TestCase: 1 tensor leak, *",
            "tear-down of fixture is_a_cycle: 1 tensor leak, 1.00 MiB retained, 64.00 KiB allowed",
        ]
    )
    told = result.stdout.str()
    assert (
        "ERROR at teardown of test_session_goes_on" not in told and "FAILED test_fixtures.py::test_asks_while" in told
    )


def test_without_asking_they_are_not_and_this_is_said(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_fixtures=TESTS)
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "--leakscope", "-k", "both or session or TestCase")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["leakscope: each test may *, without its fixtures (--leakscope-fixtures)"])
