"""`@pytest.mark.no_tensor_leaks`: a test that fails when it leaves tensor memory behind."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Generator
from typing import Any

import pytest

MARKER = "no_tensor_leaks"
_LEFT = pytest.StashKey[str]()
"""What a test that failed of it left behind."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --leakscope[=SIZE]`: the whole suite is judged."""
    group = parser.getgroup("leakscope", "tensor memory leaks")
    group.addoption(
        "--leakscope",
        nargs="?",
        const="0",
        default=None,
        metavar="SIZE",
        help="every test fails that leaves more than SIZE (0) of tensor memory behind",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, so that `--strict-markers` and `--markers` have it."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(allowance=0, repeats=None): fail when the test leaves more than that much tensor memory "
        "unreachable; with repeats the test is run that many times and must not grow either",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse a marker with wrong arguments before any test runs."""
    marker = item.get_closest_marker(MARKER)
    if marker is not None:
        from leakscope.profiler.repeats import require_repeats
        from leakscope.units import parse_bytes

        try:
            allowance, repeats = _settings(marker)
            parse_bytes(allowance)
            if repeats is not None:
                require_repeats(repeats)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{MARKER}: {error}") from None


def _settings(marker: pytest.Mark) -> tuple[str | int, int | None]:
    return _arguments(*marker.args, **marker.kwargs)


def _arguments(allowance: str | int = 0, repeats: int | None = None) -> tuple[str | int, int | None]:
    return allowance, repeats


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Judge what a test function leaves, its fixtures apart."""
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    return (yield from _judged(pyfuncitem, lambda: pyfuncitem.obj(**arguments)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge the methods of a unittest.TestCase, which do not come through `pytest_pyfunc_call`.

    Each repeat has a set-up of its own.
    """
    if not issubclass(getattr(item, "cls", None) or object, unittest.TestCase):
        return (yield)
    return (yield from _judged(item, item.runtest))


def _judged(item: pytest.Item, again: Callable[[], object]) -> Generator[None, Any, Any]:
    marker = item.get_closest_marker(MARKER)
    everywhere = item.config.getoption("--leakscope")
    if marker is None and everywhere is None:
        return (yield)
    allowance, repeats = (everywhere, None) if marker is None else _settings(marker)
    from leakscope.profiler import LeaksFound, watch

    try:
        with watch(fail=True, allowance=allowance):
            result = yield
            if getattr(item, "_excinfo", None):  # a TestCase that failed or was skipped, which raises nothing here
                return result
        if repeats is not None:
            _repeat(again, repeats)
    except LeaksFound as error:
        item.stash[_LEFT] = str(error)
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Only the sum goes into pytest's summary, which on a CI (and with -vv) repeats a failure's whole message."""
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    left = item.stash.get(_LEFT, None)
    if left is not None and crash is not None and call.excinfo is not None and str(call.excinfo.value) == left:
        crash.message = left.partition("\n")[0]
    return report


def _repeat(again: Callable[[], object], repeats: int) -> None:
    """Call the test again and again with the same fixtures; what grows every time is a leak."""
    from leakscope.profiler.leaks import LeaksFound, leaks_of, leaks_text
    from leakscope.profiler.repeats import run_and_judge

    run, findings = run_and_judge(again, repeats, warmup=0, min_bytes=0)
    if leaks_of(findings):
        raise LeaksFound(leaks_text(run, findings), findings)
