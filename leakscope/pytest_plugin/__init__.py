"""The markers `no_tensor_leaks` and `limit_tensor_peak`, and `pytest --leakscope`."""

from __future__ import annotations

import copy
import re
import unittest
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest

from leakscope.pytest_plugin.fixing import use_copies
from leakscope.pytest_plugin.judging import (
    WatchedPhase,
    attach_judgement,
    fail_of_leaks,
    fail_with,
    report_fault,
    shorten_summary,
)
from leakscope.pytest_plugin.session import begin_session
from leakscope.pytest_plugin.settings import (
    LEAKS_MARKER,
    PEAK_MARKER,
    Settings,
    add_options,
    peak_limit_of,
    read_settings,
    settings_of,
    settings_of_test,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and the keys of the ini file."""
    add_options(parser)
    use_copies()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and refuse invalid settings before anything runs."""
    config.addinivalue_line(
        "markers",
        f"{LEAKS_MARKER}(allowance=0, repeats=None, warmups=0, ignore=(), strict=None): fail if the test leaves more "
        "than `allowance` bytes of tensor memory unreachable and unfreed; with `repeats`, call it that many times more "
        "and also fail if it grows by more",
    )
    config.addinivalue_line(
        "markers",
        f"{PEAK_MARKER}(size): fail if tensor memory, on the CPU and on devices together, rises by more than `size` "
        "during the test",
    )
    settings = read_settings(config)
    begin_session(config)
    if settings.fixtures:
        config.pluginmanager.register(FixtureHooks(), "leakscope_fixtures")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the allowance of each test."""
    settings = settings_of(config)
    if not settings.everywhere:
        return None
    from leakscope.units import bytes_text

    judged = "judged" if settings.fixtures else "not judged (enable with --leakscope-fixtures)"
    return f"leakscope: {bytes_text(settings.allowance)} allowed per test, fixtures {judged}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse invalid markers, and an unsupported Python or torch, before any test runs."""
    from leakscope.errors import unsupported_python, unsupported_torch

    for item in items:
        for marker, read in ((LEAKS_MARKER, settings_of_test), (PEAK_MARKER, peak_limit_of)):
            try:
                is_marked = read(item) is not None
            except (TypeError, ValueError) as error:
                raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{marker}: {error}") from None
            if is_marked and marker == LEAKS_MARKER and (why := unsupported_python() or unsupported_torch()):
                raise pytest.UsageError(why)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Judge the call of a test function, without its fixtures.

    Repeats call the hook again, so that a coroutine is run by the same plugin as in the first call.
    """
    return (yield from _judge(pyfuncitem, lambda: pyfuncitem.ihook.pytest_pyfunc_call(pyfuncitem=pyfuncitem)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge what does not pass through `pytest_pyfunc_call`: methods of a TestCase with their setUp, and doctests."""
    if isinstance(item, pytest.Function) and not issubclass(item.cls or object, unittest.TestCase):
        result = yield
        if _JUDGED not in item.stash and settings_of_test(item) is not None:
            item.warn(pytest.PytestWarning(f"leakscope cannot judge a test of type {type(item).__name__}"))
        return result
    return (yield from _judge(item, _call_again_of(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the judgement to the report, and keep the details of a leak out of pytest's summary."""
    report = yield
    attach_judgement(item, report)
    shorten_summary(item, call, report)
    return report


_AGAIN = pytest.StashKey[bool]()
"""Present while a test is repeated."""
_JUDGED = pytest.StashKey[bool]()
"""Present once the call of a test has passed through `_judge`."""


class _EndedAgain(Exception):
    """A method of a TestCase failed or was skipped in a repeat; pytest reports that itself."""


def _judge(item: pytest.Item, again: Callable[[], object] | None) -> Generator[None, Any, Any]:
    """Judge the call of a test that a hook wraps; `again` repeats it, None if that is not possible."""
    item.stash[_JUDGED] = True
    if _AGAIN in item.stash:
        return (yield)
    settings = settings_of_test(item)
    if settings is None:
        return (yield from _limit_peak(item))
    with WatchedPhase(settings.allowance) as watched:
        result = yield from _limit_peak(item)
    if watched.fault is not None or not _has_ended(item):
        watched.judge(item, settings)
        if watched.fault is None and settings.repeats is not None:
            _judge_repeats(item, settings, settings.repeats, again)
    return result


def _limit_peak(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail the test if tensor memory rises above its limit."""
    limit = peak_limit_of(item)
    if limit is None:
        return (yield)
    from leakscope.profiler.block import TensorPeak

    with TensorPeak(limit) as peak:
        result = yield
    if peak.fault is not None and settings_of(item.config).strict:
        fail_with(item, f"@pytest.mark.{PEAK_MARKER}: {peak.why}")
    if peak.why:
        item.warn(pytest.PytestWarning(f"@pytest.mark.{PEAK_MARKER}: peak not measured: {peak.why}"))
    elif peak.rise is not None and peak.is_over and not _has_ended(item):
        from leakscope.report.run_text import rise_text

        fail_with(item, rise_text(peak.rise))
    return result


def _call_again_of(item: pytest.Item) -> Callable[[], object] | None:
    """Repeats an item that does not pass through `pytest_pyfunc_call`; None if that is not possible.

    Each repeat runs a copy that is made before the first call, because a unittest.IsolatedAsyncioTestCase can be called
    only once (unittest/async_case.py), and so that setUp finds the same state.
    """
    found = getattr(item, "instance", None)
    if not isinstance(found, unittest.TestCase):
        return None
    found = copy.copy(found)

    def again() -> None:
        copy.copy(found)(cast(unittest.TestResult, item))  # as called by pytest
        if _has_ended(item):
            raise _EndedAgain

    return again


def _has_ended(item: pytest.Item) -> bool:
    """Whether a TestCase failed or was skipped, which raises nothing where it is called."""
    return bool(getattr(item, "_excinfo", None))


def _judge_repeats(item: pytest.Item, settings: Settings, repeats: int, again: Callable[[], object] | None) -> None:
    from leakscope.profiler.repeats import run_and_judge

    if again is None:
        kind = type(item).__name__
        item.warn(pytest.PytestWarning(f"@pytest.mark.{LEAKS_MARKER}: a {kind} cannot be repeated, growth not judged"))
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
    except _EndedAgain:
        return
    except Exception as error:
        if any(error is each for each in of_test):
            raise
        report_fault(item, settings, error)
        return
    finally:
        of_test.clear()
        del item.stash[_AGAIN]
    fail_of_leaks(item, settings, found.run, found)


_SET_UP_FOR = pytest.StashKey[pytest.Item]()
"""The test whose fixtures are being set up."""
_WATCHED = pytest.StashKey[list[tuple[str, WatchedPhase]]]()
"""The phases of a test that were watched, with their names."""
_TORN_DOWN = pytest.StashKey[dict[str, None]]()
"""Names of the fixtures that are being torn down, in order."""


class FixtureHooks:
    """Judges what fixtures leave behind at setup and teardown; registered with --leakscope-fixtures."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Mark the setup of a test; a fixture that is requested during the call belongs to the call."""
        if settings_of_test(item) is None:
            return (yield)
        item.config.stash[_SET_UP_FOR] = item
        try:
            return (yield)
        finally:
            del item.config.stash[_SET_UP_FOR]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        """Watch the setup of one fixture, together with those that it requests meanwhile."""
        stash = request.config.stash
        item = stash.get(_SET_UP_FOR, None)
        settings = None if item is None else settings_of_test(item)
        if item is None or settings is None:
            return (yield)
        del stash[_SET_UP_FOR]
        try:
            with WatchedPhase(settings.allowance) as watched:
                value = yield
        finally:
            stash[_SET_UP_FOR] = item
        item.stash.setdefault(_WATCHED, []).append((f"setup of {_fixture_name(fixturedef)}", watched))
        return value

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
        """Note which fixture was torn down."""
        names = request.config.stash.get(_TORN_DOWN, None)
        if names is not None:
            names[_fixture_name(fixturedef)] = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Watch the teardown of all fixtures that end with this test, and judge it with their setup."""
        settings = settings_of_test(item)
        if settings is None:
            return (yield)
        names: dict[str, None] = {}
        item.config.stash[_TORN_DOWN] = names
        try:
            with WatchedPhase(settings.allowance) as watched:
                result = yield
                # pytest drops them after all hooks of the teardown (`runtestprotocol`, _pytest/runner.py): until then a
                # cycle through the value of a fixture would seem to be alive
                if getattr(item, "funcargs", None):
                    item.funcargs = {}  # type: ignore[attr-defined]
        finally:
            del item.config.stash[_TORN_DOWN]
        phases = [*item.stash.get(_WATCHED, []), (f"teardown of {', '.join(names) or 'the test'}", watched)]
        item.stash[_WATCHED] = []
        messages = []
        for phase, seen in phases:
            try:
                seen.judge(item, settings)
            except pytest.fail.Exception as error:
                messages.append(f"{phase}: {error}")
        if messages:
            fail_with(item, "\n".join(messages))
        return result


def _fixture_name(fixturedef: pytest.FixtureDef[Any]) -> str:
    """`fixture made`; `setUpClass of TestNet`, which pytest calls `_unittest_setUpClass_fixture_TestNet`."""
    own = re.fullmatch(r"_(?:unittest|xunit)_(\w+?)_fixture_(.+)", fixturedef.argname)
    return f"fixture {fixturedef.argname}" if own is None else f"{own[1]} of {own[2]}"
