"""Judges what fixtures leave behind at setup and teardown."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest

from leakscope.pytest_plugin.judging import Watched, fail_with
from leakscope.pytest_plugin.settings import settings_of_test

_SET_UP_FOR = pytest.StashKey[pytest.Item]()
"""The test whose fixtures are being set up."""
_WATCHED = pytest.StashKey[list[tuple[str, Watched]]]()
"""The phases of a test that were watched, with their names."""
_TORN_DOWN = pytest.StashKey[dict[str, None]]()
"""Names of the fixtures that are being torn down, in order."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
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
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Watch the setup of one fixture, together with those that it requests meanwhile."""
    stash = request.config.stash
    item = stash.get(_SET_UP_FOR, None)
    settings = None if item is None else settings_of_test(item)
    if item is None or settings is None:
        return (yield)
    del stash[_SET_UP_FOR]
    try:
        with Watched(settings.allowance) as watched:
            value = yield
    finally:
        stash[_SET_UP_FOR] = item
    item.stash.setdefault(_WATCHED, []).append((f"setup of {_name(fixturedef)}", watched))
    return value


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """Note which fixture was torn down."""
    names = request.config.stash.get(_TORN_DOWN, None)
    if names is not None:
        names[_name(fixturedef)] = None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Watch the teardown of all fixtures that end with this test, and judge it with their setup."""
    settings = settings_of_test(item)
    if settings is None:
        return (yield)
    names: dict[str, None] = {}
    item.config.stash[_TORN_DOWN] = names
    try:
        with Watched(settings.allowance) as watched:
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


def _name(fixturedef: pytest.FixtureDef[Any]) -> str:
    """`fixture made`; `setUpClass of TestNet`, which pytest calls `_unittest_setUpClass_fixture_TestNet`."""
    own = re.fullmatch(r"_(?:unittest|xunit)_(\w+?)_fixture_(.+)", fixturedef.argname)
    return f"fixture {fixturedef.argname}" if own is None else f"{own[1]} of {own[2]}"
