"""`@pytest.mark.limit_tensor_peak("100 MB")`: a test fails in which tensor memory rises by more than that."""

from __future__ import annotations

import unittest
from collections.abc import Generator
from typing import Any

import pytest

from leakscope.pytest_plugin.calls import has_ended, is_called_again
from leakscope.pytest_plugin.failing import fail_with
from leakscope.pytest_plugin.settings import settings_of

MARKER = "limit_tensor_peak"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(size): fail when the storages of tensors that are alive at once during the test, on the CPU and on "
        "devices, rise by more than that above what was there when it began",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a marker with wrong arguments before any test runs."""
    for item in items:
        try:
            limit_of(item)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{MARKER}: {error}") from None


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Watch a test function, its fixtures apart."""
    return (yield from _watched(pyfuncitem))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch a method of a TestCase with its set-up, and what else does not come through `pytest_pyfunc_call`."""
    if isinstance(item, pytest.Function) and not issubclass(item.cls or object, unittest.TestCase):
        return (yield)
    return (yield from _watched(item))


def limit_of(item: pytest.Item) -> int | None:
    """Bytes by which tensor memory may rise in this test; None where it has no limit.

    Raises TypeError or ValueError where its marker is wrong.
    """
    marker = item.get_closest_marker(MARKER)
    return None if marker is None else _limit(*marker.args, **marker.kwargs)


def _limit(size: str | int) -> int:
    from leakscope.units import parse_bytes

    return parse_bytes(size)


def _watched(item: pytest.Item) -> Generator[None, Any, Any]:
    """Only the first call of a test that is called again and again."""
    limit = None if is_called_again(item) else limit_of(item)
    if limit is None:
        return (yield)
    from leakscope.profiler.peak import TensorPeak

    with TensorPeak(limit) as peak:
        result = yield
    if peak.fault is not None and settings_of(item.config).strict:
        fail_with(item, f"@pytest.mark.{MARKER}: {peak.why}")
    if peak.why:
        item.warn(pytest.PytestWarning(f"@pytest.mark.{MARKER}: the peak was not watched: {peak.why}"))
    elif peak.rise is not None and peak.is_over and not has_ended(item):
        from leakscope.report.messages.memory import rise_text

        fail_with(item, rise_text(peak.rise))
    return result
