"""Functions, methods of a TestCase, coroutines and doctests are judged, repeated and limited alike."""

from __future__ import annotations

import re

import pytest

MARKED = """
import pytest, torch

KEPT, RAN = [torch.zeros(1 << 20)], []

def leave_a_cycle():
    kept = torch.ones(1000)
    def extract(n):
        return extract(n - 1) if n else kept
    extract(1)

@pytest.fixture
def made():
    RAN.append("fixture")
    return object()

@pytest.mark.no_tensor_leaks
def test_leaks():
    leave_a_cycle()

@pytest.mark.no_tensor_leaks("1 MB")
def test_within_its_allowance():
    leave_a_cycle()

def test_unmarked():
    leave_a_cycle()

@pytest.mark.no_tensor_leaks("12 KiB", repeats=3, warmups=2)
def test_grows_within_its_allowance(made):
    RAN.append(id(made))
    KEPT.append(torch.zeros(1024))

def test_was_repeated_with_the_same_fixture():
    assert len(RAN) == 7 and len(set(RAN)) == 2

@pytest.mark.no_tensor_leaks("11 KiB", repeats=3)
def test_grows():
    KEPT.append(torch.zeros(1024))

@pytest.mark.no_tensor_leaks(repeats=3)
def test_fails_when_repeated():
    RAN.append("again")
    assert RAN.count("again") < 3, "of itself"

@pytest.mark.no_tensor_leaks(ignore=lambda finding: finding.retained_bytes < 4001)
def test_ignored():
    leave_a_cycle()

@pytest.mark.no_tensor_leaks(ignore=lambda finding: finding.no_such_thing)
def test_predicate_raises():
    leave_a_cycle()
"""

TEST_CASES = """
import unittest
from collections import Counter
import pytest, torch
from test_marked import KEPT, leave_a_cycle

RAN = []

@pytest.mark.no_tensor_leaks
class TestCases(unittest.TestCase):
    def test_leaks(self):
        leave_a_cycle()

    def test_is_clean(self):
        pass

    def test_fails(self):
        leave_a_cycle()
        self.fail("of itself")

    @pytest.mark.no_tensor_leaks(repeats=3)
    def test_grows(self):
        KEPT.append(torch.ones(1 << 20))

class Isolated(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        RAN.append("setUp")

    @pytest.mark.no_tensor_leaks(repeats=3)
    async def test_grows(self):
        RAN.append("grows")
        KEPT.append(torch.zeros(65536))

    @pytest.mark.no_tensor_leaks(repeats=3)
    async def test_fails_when_repeated(self):
        RAN.append("fails")
        self.assertLess(RAN.count("fails"), 3)

def test_each_was_repeated():
    assert Counter(RAN) == {"grows": 4, "fails": 3, "setUp": 7}
"""

ASYNC = """
import asyncio
import pytest, torch
from test_marked import KEPT

LOOPS = []

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.asyncio
@pytest.mark.no_tensor_leaks(repeats=3)
async def test_asyncio_grows():
    LOOPS.append(id(asyncio.get_running_loop()))
    KEPT.append(torch.zeros(65536))

@pytest.mark.anyio
@pytest.mark.no_tensor_leaks(repeats=3)
async def test_anyio_grows():
    await asyncio.sleep(0)
    KEPT.append(torch.zeros(65536))

def test_all_in_one_loop():
    assert len(LOOPS) == 4 and len(set(LOOPS)) == 1
"""

PEAKS = """
import asyncio, unittest
import pytest, torch

@pytest.fixture
def there():
    return torch.zeros(8 << 20)

@pytest.mark.limit_tensor_peak("1 MB")
def test_fixture_does_not_count(there):
    there.add_(1)

@pytest.mark.limit_tensor_peak("8 MB")
@pytest.mark.no_tensor_leaks(repeats=3)
def test_rises():
    made = torch.zeros(4 << 20)

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.limit_tensor_peak("8 MB")
@pytest.mark.anyio
async def test_rises_in_a_coroutine():
    first = torch.zeros(1 << 20)
    await asyncio.sleep(0)
    second = torch.zeros(2 << 20)

@pytest.mark.limit_tensor_peak("1 MB")
class TestCase(unittest.TestCase):
    def setUp(self):
        self.made = torch.zeros(1 << 20)

    def test_rises_in_its_setup(self):
        pass

    def test_fails(self):
        self.fail("of itself")
"""

DOCTEST = '''
def leave_a_cycle():
    """
    >>> import torch
    >>> kept = [torch.zeros(1 << 20)]
    >>> kept.append(kept)
    """

def be_clean():
    """
    >>> 1 + 1
    2
    """

def own_way(): pass
'''
CONFTEST = """
import pytest

class OwnWay(pytest.Function):
    def runtest(self):
        self.obj()

def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name == "test_doctests.py":
            item.add_marker(pytest.mark.no_tensor_leaks("1 KiB", repeats=3))

def pytest_pycollect_makeitem(collector, name, obj):
    if name == "own_way":
        return OwnWay.from_parent(collector, name=name, callobj=obj)
"""

LEAKS = {
    "test_marked.py::test_leaks": "3.91 KiB",
    "test_marked.py::test_grows": "12.00 KiB",
    "test_cases.py::TestCases::test_leaks": "3.91 KiB",
    "test_cases.py::TestCases::test_grows": "12.00 MiB",
    "test_cases.py::Isolated::test_grows": "768.00 KiB",
    "test_async.py::test_asyncio_grows": "768.00 KiB",
    "test_async.py::test_anyio_grows": "768.00 KiB",
    "test_doctests.py::test_doctests.leave_a_cycle": "4.00 MiB",
}
RISES = {
    "test_peaks.py::test_rises": "16.00 MiB",
    "test_peaks.py::test_rises_in_a_coroutine": "12.00 MiB",
    "test_peaks.py::TestCase::test_rises_in_its_setup": "4.00 MiB",
}
FAIL_THEMSELVES = {
    "test_marked.py::test_fails_when_repeated",
    "test_marked.py::test_predicate_raises",
    "test_cases.py::TestCases::test_fails",
    "test_cases.py::Isolated::test_fails_when_repeated",
    "test_peaks.py::TestCase::test_fails",
}


def test_each_kind_of_test_is_judged(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pytest_asyncio")
    pytest.importorskip("anyio")
    monkeypatch.setenv("CI", "true")  # pytest's summary holds the whole message there
    pytester.makepyfile(test_marked=MARKED, test_cases=TEST_CASES, test_async=ASYNC)
    pytester.makepyfile(test_peaks=PEAKS, test_doctests=DOCTEST)
    pytester.makeconftest(CONFTEST)
    files = [f"test_{name}.py" for name in ("marked", "cases", "async", "peaks", "doctests")]
    result = pytester.runpytest_subprocess("--doctest-modules", "-W", "ignore::DeprecationWarning", *files)
    text = result.stdout.str()
    failed = dict(re.findall(r"^FAILED (\S+) - (.*)", text, re.MULTILINE))
    assert failed.keys() == LEAKS.keys() | RISES.keys() | FAIL_THEMSELVES
    for name, size in LEAKS.items():
        assert failed[name].startswith("1 tensor leak, ") and size in failed[name], name
    for name, size in RISES.items():
        assert size in failed[name] and "test_peaks.py:" in failed[name], name
    assert text.count("leakscope cannot judge a test of type OwnWay") == 1
    assert text.count("a DoctestItem cannot be repeated") == 1, "not of the one that leaks"
    assert "During handling" not in text
    block = text.partition("_ test_leaks _")[2].partition("\n____")[0]
    assert "Leaks (1)" in block and not any(word in block for word in ("exit status", "Run   ", "rank  steps", "step"))


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("of leakscope")


@pytest.mark.inspect
@pytest.mark.parametrize(
    "where", ["profiler.block.take_snapshot", "profiler.block.why_no_snapshot", "pytest_plugin.judging.judgement"]
)
def test_an_error_inside_leakscope_fails_a_test_only_if_strict(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(f"leakscope.{where}", broken)
    pytester.makepyfile("""
        import pytest, torch

        @pytest.mark.no_tensor_leaks
        def test_lenient():
            cycle = [torch.ones(10)]
            cycle.append(cycle)

        @pytest.mark.no_tensor_leaks(strict=True)
        def test_strict():
            test_lenient()
    """)
    result = pytester.runpytest_inprocess("-p", "no:asyncio", "--assert=plain")
    result.assert_outcomes(passed=1, failed=1, warnings=1)
    result.stdout.fnmatch_lines(["judged   2 tests: 1 failed, 1 inconclusive, 0 passed"])
    result.stdout.fnmatch_lines(["unclear  leakscope failed with RuntimeError: of leakscope"])


@pytest.mark.inspect
def test_a_peak_that_cannot_be_measured_is_a_warning(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakscope.profiler.block.why_no_snapshot", lambda: "hidden by torch")
    pytester.makepyfile("""
        import pytest, torch

        @pytest.mark.limit_tensor_peak(0)
        def test_rises():
            torch.zeros(3)
    """)
    result = pytester.runpytest_inprocess("-p", "no:asyncio", "--assert=plain")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*limit_tensor_peak: peak not measured: hidden by torch"])
