"""A test that is called again grows by what these calls add, is run as its own plugin runs it, and ends as it ends."""

from __future__ import annotations

import pytest

SETTINGS = "import pytest, torch\nKEPT = [torch.zeros(1 << 20)]\nRAN = []\n"
GROWS = (
    SETTINGS
    + """
@pytest.fixture
def made():
    RAN.append("fixture")
    return object()

def grow():
    KEPT.append(torch.zeros(1024))

@pytest.mark.no_tensor_leaks("12 KiB", repeats=3, warmups=2)
def test_allowed(made):
    RAN.append(id(made))
    grow()

def test_was_called_with_the_same_fixture():
    assert len(RAN) == 7 and len(set(RAN)) == 2

@pytest.mark.no_tensor_leaks("11 KiB", repeats=3)
def test_more_than_allowed():
    grow()

@pytest.mark.no_tensor_leaks(repeats=3)
def test_fails_when_called_again():
    RAN.append("again")
    assert RAN.count("again") < 3, "of itself"
"""
)


def test_only_what_these_calls_add_is_growth(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_grows=GROWS)
    result = pytester.runpytest_subprocess("-p", "no:asyncio")
    result.assert_outcomes(passed=2, failed=2)
    told = result.stdout.str()
    assert "1 tensor leak, 12.00 KiB retained by 3 repeats, each of them a step (1 to 3), 11.00 KiB allowed" in told
    assert "of itself" in told and "test_allowed" not in told.partition("short test summary")[2]


ASYNC = (
    SETTINGS
    + """
import asyncio, unittest
from collections import Counter

LOOPS = set()

async def run(name):
    RAN.append(name)
    LOOPS.add((name, id(asyncio.get_running_loop())))
    await asyncio.sleep(0)

async def grow(name):
    await run(name)
    KEPT.append(torch.zeros(65536))

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.asyncio
@pytest.mark.no_tensor_leaks(repeats=3)
async def test_asyncio_grows():
    await grow("asyncio")

@pytest.mark.anyio
@pytest.mark.no_tensor_leaks(repeats=3)
async def test_anyio_grows():
    await grow("anyio")

class Isolated(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        RAN.append("set-up")

    @pytest.mark.no_tensor_leaks(repeats=3)
    async def test_grows(self):
        await grow("unittest")

    @pytest.mark.no_tensor_leaks(repeats=3)
    async def test_fails_when_called_again(self):
        await run("fails")
        self.assertLess(RAN.count("fails"), 3)

def test_each_was_run_as_often():
    assert Counter(RAN) == {"asyncio": 4, "anyio": 4, "unittest": 4, "fails": 3, "set-up": 7}
    assert [name for name, _ in LOOPS].count("asyncio") == 1, "all in one loop, as pytest-asyncio runs one test"
"""
)


def test_a_coroutine_is_called_again_by_the_plugin_that_runs_it(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_asyncio")
    pytest.importorskip("anyio")
    pytester.makepyfile(test_async=ASYNC)
    result = pytester.runpytest_subprocess("-W", "ignore")
    result.assert_outcomes(passed=1, failed=4)
    for name in ("test_asyncio_grows", "test_anyio_grows", "Isolated::test_grows"):
        result.stdout.fnmatch_lines([f"FAILED test_async.py::{name} - 1 tensor leak,*"])
    result.stdout.fnmatch_lines(["*AssertionError: 3 not less than 3"])


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
'''
CONFTEST = """
import pytest

class OwnWay(pytest.Function):
    def runtest(self):
        self.obj()

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.no_tensor_leaks("1 KiB", repeats=3))

def pytest_pycollect_makeitem(collector, name, obj):
    if name == "own_way":
        return OwnWay.from_parent(collector, name=name, callobj=obj)
"""


def test_doctests_are_judged_and_what_cannot_be_judged_or_called_again_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(cycles=DOCTEST, test_own="def own_way(): pass\n")
    pytester.makeconftest(CONFTEST)
    result = pytester.runpytest_inprocess("--doctest-modules", "-p", "no:asyncio")
    result.assert_outcomes(passed=2, failed=1, warnings=2)
    result.stdout.fnmatch_lines(["1 tensor leak, 4.00 MiB retained, 1.00 KiB allowed"])
    result.stdout.fnmatch_lines(["*no_tensor_leaks: a DoctestItem cannot be called again: its growth was not judged"])
    result.stdout.fnmatch_lines(["*leakscope did not judge it: a OwnWay runs in a way of its own"])
