"""The marker `no_tensor_leaks` and `pytest --leakscope`: a test fails that retains tensor memory."""

from __future__ import annotations

import unittest
from collections.abc import Generator
from typing import Any

import pytest

from leakscope.pytest_plugin import fixtures, suite
from leakscope.pytest_plugin.judging import carry, shorten_summary
from leakscope.pytest_plugin.settings import MARKER, add_options, read_settings, settings_of, settings_of_test
from leakscope.pytest_plugin.suite import begin, call_again_of, judge_call, warn_if_unjudged


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --leakscope` and what belongs to it."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse wrong settings before anything runs, and make the marker known to `--strict-markers` and `--markers`."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(allowance=0, repeats=None, warmups=0, ignore=(), strict=None): fail when the test leaves more than "
        "that much tensor memory unreachable; with repeats it is called that many times more, and must not grow by "
        "more either",
    )
    settings = read_settings(config)
    begin(config)
    config.pluginmanager.register(suite, "leakscope_peaks")
    if settings.fixtures:
        config.pluginmanager.register(fixtures, "leakscope_fixtures")


def pytest_report_header(config: pytest.Config) -> str | None:
    """What is judged, and what is not."""
    settings = settings_of(config)
    if not settings.everywhere:
        return None
    from leakscope.units import bytes_text

    of_fixtures = "and its fixtures" if settings.fixtures else "without its fixtures (--leakscope-fixtures)"
    return f"leakscope: each test may leave {bytes_text(settings.allowance)} of tensor memory behind, {of_fixtures}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a marker with wrong arguments before any test runs, and a Python or torch that is not supported."""
    from leakscope.errors import unsupported_python, unsupported_torch

    for item in items:
        try:
            if settings_of_test(item) is not None and (why := unsupported_python() or unsupported_torch()):
                raise pytest.UsageError(why)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{MARKER}: {error}") from None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Judge what a test function leaves, its fixtures apart.

    To call it again the hook is asked again: so a coroutine is run by the plugin that runs the first call.
    """
    return (yield from judge_call(pyfuncitem, lambda: pyfuncitem.ihook.pytest_pyfunc_call(pyfuncitem=pyfuncitem)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge what does not come through `pytest_pyfunc_call`: methods of a TestCase with their set-up, and doctests."""
    if isinstance(item, pytest.Function) and not issubclass(item.cls or object, unittest.TestCase):
        result = yield
        warn_if_unjudged(item)
        return result
    return (yield from judge_call(item, call_again_of(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep a leak's trace out of pytest's summary, and what was found for leakscope's own."""
    report = yield
    carry(item, report)
    shorten_summary(item, call, report)
    return report
