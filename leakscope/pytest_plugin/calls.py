"""Runs a test once or several times and records what it leaves behind or adds."""

from __future__ import annotations

import copy
import unittest
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest

from leakscope.pytest_plugin.failing import fail_of_leaks, tell_fault
from leakscope.pytest_plugin.judging import Watched
from leakscope.pytest_plugin.settings import MARKER, Settings, settings_of_test

_AGAIN = pytest.StashKey[bool]()
"""There while a test is called again."""
_JUDGED = pytest.StashKey[bool]()
"""There once a test's call has gone through `judge_call`."""

Call = Callable[[], object]


class _Ended(Exception):
    """A method of a TestCase failed or was skipped when it was called again: what pytest tells of it stands."""


def judge_call(item: pytest.Item, again: Call | None) -> Generator[None, Any, Any]:
    """Judge the call of a test that a hook wraps; `again` calls it once more, None where nothing can."""
    item.stash[_JUDGED] = True
    settings = None if is_called_again(item) else settings_of_test(item)
    if settings is None:
        return (yield)
    with Watched(settings.allowance) as watched:
        result = yield
    if watched.fault is not None:
        tell_fault(item, settings, watched.fault)
    elif not has_ended(item):
        block = watched.block
        fail_of_leaks(item, settings, block.run, block.findings, watched.seconds, watched.processes)
        if settings.repeats is not None:
            _judge_repeats(item, settings, settings.repeats, again)
    return result


def call_again_of(item: pytest.Item) -> Call | None:
    """Calls an item once more that does not come through `pytest_pyfunc_call`; None where nothing can.

    A TestCase is called as it was before its first call, in a copy: unittest.IsolatedAsyncioTestCase can be called but
    once (unittest/async_case.py), and a set-up is to find what it found then.
    """
    found = getattr(item, "instance", None)
    if not isinstance(found, unittest.TestCase):
        return None
    found = copy.copy(found)

    def again() -> None:
        copy.copy(found)(cast(unittest.TestResult, item))  # as pytest itself calls it
        if has_ended(item):
            raise _Ended

    return again


def warn_if_unjudged(item: pytest.Item) -> None:
    """Say of a test that was to be judged and whose call came through no hook that it was not."""
    if _JUDGED not in item.stash and settings_of_test(item) is not None:
        item.warn(pytest.PytestWarning(f"leakscope did not judge it: a {type(item).__name__} runs in a way of its own"))


def is_called_again(item: pytest.Item) -> bool:
    """Whether the call under way is one of the repeats."""
    return _AGAIN in item.stash


def has_ended(item: pytest.Item) -> bool:
    """Whether a TestCase failed or was skipped, which raises nothing where it is called."""
    return bool(getattr(item, "_excinfo", None))


def _judge_repeats(item: pytest.Item, settings: Settings, repeats: int, again: Call | None) -> None:
    from leakscope.profiler.repeats import run_and_judge

    if again is None:
        told = f"@pytest.mark.{MARKER}: a {type(item).__name__} cannot be called again: its growth was not judged"
        item.warn(pytest.PytestWarning(told))
        return
    of_test: list[BaseException] = []

    def called() -> object:
        try:
            return again()
        except BaseException as error:
            of_test.append(error)
            raise

    item.stash[_AGAIN] = True
    try:
        found = run_and_judge(called, repeats, settings.warmups, min_bytes=0)
    except _Ended:
        return
    except Exception as error:
        if any(error is each for each in of_test):
            raise
        tell_fault(item, settings, error)
        return
    finally:
        of_test.clear()
        del item.stash[_AGAIN]
    fail_of_leaks(item, settings, found.run, found)
