"""Records what fixtures leave behind at setup and teardown."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest

from leakscope.pytest_plugin.judging import Watched, fail_of_leaks, fail_with, tell_fault
from leakscope.pytest_plugin.settings import settings_of_test

_SET_UP_FOR = pytest.StashKey[pytest.Item]()
"""The test whose fixtures are set up now."""
_WATCHED = pytest.StashKey[list[tuple[str, Watched]]]()
"""What was seen of each fixture of a test, and what that was."""
_TORN_DOWN = pytest.StashKey[dict[str, None]]()
"""Names of the fixtures that are torn down now, in order."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Fixtures that a test asks for while it runs belong to its call."""
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
    """Watch the set-up of one fixture; one that it asks for meanwhile is seen with it."""
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
    item.stash.setdefault(_WATCHED, []).append((f"set-up of {_name(fixturedef)}", watched))
    return value


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """Note which fixture was torn down."""
    names = request.config.stash.get(_TORN_DOWN, None)
    if names is not None:
        names[_name(fixturedef)] = None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Watch the tear-down of all fixtures that end with this test, and tell what they and their set-up left."""
    settings = settings_of_test(item)
    if settings is None:
        return (yield)
    names: dict[str, None] = {}
    item.config.stash[_TORN_DOWN] = names
    try:
        with Watched(settings.allowance) as watched:
            result = yield
            _let_go_of_values(item)
    finally:
        del item.config.stash[_TORN_DOWN]
    seen = item.stash.get(_WATCHED, [])
    item.stash[_WATCHED] = []
    _fail_of(item, [*seen, (f"tear-down of {', '.join(names) or 'the test'}", watched)])
    return result


def _let_go_of_values(item: pytest.Item) -> None:
    """Let go of what the test was given, as pytest does when all hooks of the tear-down are over.

    Until then (`runtestprotocol`, _pytest/runner.py) a cycle through the value of a fixture would seem to be alive.
    """
    if getattr(item, "funcargs", None):
        item.funcargs = {}  # type: ignore[attr-defined]


def _name(fixturedef: pytest.FixtureDef[Any]) -> str:
    """`fixture made`; `setUpClass of TestNet` where pytest calls it `_unittest_setUpClass_fixture_TestNet`."""
    own = re.fullmatch(r"_(?:unittest|xunit)_(\w+?)_fixture_(.+)", fixturedef.argname)
    return f"fixture {fixturedef.argname}" if own is None else f"{own[1]} of {own[2]}"


def _fail_of(item: pytest.Item, seen: list[tuple[str, Watched]]) -> None:
    """Fail of all of them at once."""
    settings, told = settings_of_test(item), []
    for phase, watched in seen:
        assert settings is not None
        try:
            if watched.fault is not None:
                tell_fault(item, settings, watched.fault)
                continue
            found = watched.block.findings
            fail_of_leaks(item, settings, found.run, found, watched.seconds, watched.processes)
        except pytest.fail.Exception as error:
            told.append(f"{phase}: {error}")
    if told:
        fail_with(item, "\n".join(told))
