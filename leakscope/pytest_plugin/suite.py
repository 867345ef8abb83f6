"""Runs tests under the plugin: calls, repeats, peaks and the summary of the session."""

from __future__ import annotations

import copy
import unittest
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, cast

import pytest

from leakscope.originals import Path, os
from leakscope.pytest_plugin.judging import (
    BASELINE,
    CARRIED,
    WORDS,
    Group,
    Judgement,
    Outcome,
    State,
    Watched,
    fail_of_leaks,
    fail_with,
    grouped,
    judgement_of,
    pages_of,
    tell_fault,
)
from leakscope.pytest_plugin.settings import MARKER as MARKEROfCalls
from leakscope.pytest_plugin.settings import (
    Baseline,
    BaselineLeak,
    Settings,
    baseline_after,
    baseline_text,
    fixed,
    read_baseline,
    settings_of,
    settings_of_test,
)

if TYPE_CHECKING:
    from leakscope.report.rendering import Line


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
        told = (
            f"@pytest.mark.{MARKEROfCalls}: a {type(item).__name__} cannot be called again: its growth was not judged"
        )
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


TESTS = 3
"""Tests that are named for a leak, chosen."""
AT_LENGTH = 20
"""Leaks that fail tests with half a dozen lines each, chosen; the others have one."""
IN_A_LINE = 10
"""Leaks of one kind that fail nothing, a line each; chosen."""
_ASIDE = {
    State.OF_LIBRARY: "Closed by libraries: they fail a test with --leakscope-strict",
    State.ALLOWED: "Within the allowance of each test",
    State.KNOWN: "In the baseline",
    State.IGNORED: "Ignored",
}
_INDENT, _COLUMN = "   ", 9


@dataclass(frozen=True)
class Session:
    """All that is known of the tests of a session."""

    judgements: tuple[tuple[str, Judgement], ...] = ()
    """(node id, judgement) of every phase that was judged, in order."""
    everywhere: bool = False
    """All tests were to be judged, not only those with a marker."""
    fixtures: bool = False
    """What fixtures leave was judged, too."""
    fixed: tuple[BaselineLeak, ...] = ()
    """Of the baseline, what no test shows any more."""
    said: tuple[str, ...] = ()
    """What else there is to say: files that were written, or could not be."""

    @property
    def is_worth_telling(self) -> bool:
        """Whether there is more to say than that a few marked tests left nothing."""
        found = any(j.left or j.outcome != Outcome.JUDGED for _, j in self.judgements)
        return found or bool(self.said) or bool(self.judgements and self.everywhere)


def summary_text(session: Session, width: int) -> str:
    """The summary, so many columns wide."""
    from leakscope.report.rendering import laid_out

    return "\n".join(line.rstrip() for line in laid_out(_lines(session), width)).rstrip()


def _lines(session: Session) -> Iterator[Line]:
    groups = grouped(session.judgements)
    by_state = {state: [group for group in groups if group.states[0] == state] for state in State}
    yield from _failing(by_state[State.FAILS])
    for state, heading in _ASIDE.items():
        yield from _aside(heading, by_state[state])
    if session.fixed:
        yield f"Fixed: in the baseline, and no test shows them any more ({len(session.fixed)})"
        yield from _cropped(f"- [{leak.fingerprint}] {leak.title}" for leak in session.fixed)
        yield ""
    yield from _table(session, by_state)
    for sentence in session.said:
        yield from _wrapped(sentence)


def _failing(groups: Sequence[Group]) -> Iterator[Line]:
    from leakscope.report.rendering import Cropped, field_lines, wrapped

    for number, group in enumerate(groups[:AT_LENGTH], 1):
        left = group.largest
        yield from wrapped(f"{number}. {left.title} [{left.fingerprint}]", "", _INDENT)
        yield from field_lines("cut", left.cut, _INDENT, _COLUMN)
        if left.line:
            yield from field_lines("edit", left.line, _INDENT, _COLUMN)
        if left.library:
            yield from field_lines("library", left.library, _INDENT, _COLUMN)
        yield from field_lines("left", _sizes(group), _INDENT, _COLUMN)
        for index, test in enumerate(group.tests[:TESTS]):
            more = f" and {len(group.tests) - TESTS} more" if index == TESTS - 1 and len(group.tests) > TESTS else ""
            yield Cropped(f"{_INDENT}{'' if index else 'tests':{_COLUMN}}{test}{more}")
        yield ""
    yield from _in_a_line(groups[AT_LENGTH:], IN_A_LINE)
    if groups[AT_LENGTH:]:
        yield ""


def _sizes(group: Group) -> str:
    """`2.00 KiB by a test`; `5.76 KiB at most, 120.50 KiB in all, by 33 tests`."""
    from leakscope.units import bytes_text

    if len(group.tests) == 1:
        return f"{bytes_text(group.largest.bytes)} by one test"
    return f"{bytes_text(group.largest.bytes)} at most, {bytes_text(group.bytes)} in all, by {len(group.tests)} tests"


def _in_short(group: Group) -> str:
    """`5.76 KiB at most, 33 tests`."""
    from leakscope.units import bytes_text, plural

    at_most = "" if len(group.tests) == 1 else " at most"
    return f"{bytes_text(group.largest.bytes)}{at_most}, {plural(len(group.tests), 'test')}"


def _aside(heading: str, groups: Sequence[Group]) -> Iterator[Line]:
    if groups:
        yield f"{heading} ({len(groups)})"
        yield from _in_a_line(groups, IN_A_LINE)
        yield ""


def _in_a_line(groups: Sequence[Group], most: int) -> Iterator[Line]:
    yield from _cropped(f"- [{g.fingerprint}] {_by(g)}{_in_short(g)}: {g.title}" for g in groups[:most])
    if len(groups) > most:
        yield f"  and {len(groups) - most} more"


def _by(group: Group) -> str:
    """The library, or what ignores it."""
    said = group.largest.library if group.states[0] == State.OF_LIBRARY else group.largest.by
    return f"{said}, " if said else ""


def _table(session: Session, by_state: Mapping[State, Sequence[Group]]) -> Iterator[Line]:
    from leakscope.report.rendering import field_lines
    from leakscope.units import plural, seconds_text

    outcomes = outcomes_of(session.judgements)
    counts = Counter(outcomes.values())
    judged = len(outcomes) - counts[Outcome.NOT_JUDGED]
    rows = {
        "judged": f"{plural(judged, 'test')}: {counts[Outcome.FAILED]} failed, "
        f"{counts[Outcome.INCONCLUSIVE]} inconclusive, {counts[Outcome.JUDGED]} passed",
        "leaks": ", ".join(f"{len(by_state[state])} {words}" for state, words in WORDS.items() if by_state[state]),
        "unclear": "; ".join(dict.fromkeys(j.why for _, j in session.judgements if j.outcome == Outcome.INCONCLUSIVE)),
        "unjudged": "; ".join(_unjudged(session)),
        "time": f"{seconds_text(sum(j.seconds for _, j in session.judgements))} for looking and telling",
    }
    for name, text in rows.items():
        if text:
            yield from field_lines(name, text, "", _COLUMN)


def outcomes_of(judgements: Sequence[tuple[str, Judgement]]) -> dict[str, Outcome]:
    """The gravest outcome of each test, over its phases."""
    outcomes: dict[str, Outcome] = {}
    for test, judgement in judgements:
        outcomes[test] = min(outcomes.get(test, judgement.outcome), judgement.outcome, key=lambda one: one.gravity)
    return outcomes


def _unjudged(session: Session) -> Iterator[str]:
    kinds = Counter(j.why for _, j in session.judgements if j.outcome == Outcome.NOT_JUDGED)
    yield from (f"{kind}: {count}" for kind, count in kinds.items())
    if session.everywhere and not session.fixtures:
        yield "fixtures (--leakscope-fixtures judges them)"
    if processes := sum(j.processes for _, j in session.judgements):
        yield f"what processes kept that tests started: {processes}"


def _cropped(texts: Iterator[str]) -> Iterator[Line]:
    from leakscope.report.rendering import Cropped

    yield from map(Cropped, texts)


def _wrapped(text: str) -> Iterator[Line]:
    from leakscope.report.rendering import wrapped

    yield from wrapped(text, "", "  ")


_UNFINISHED = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)


def begin(config: pytest.Config) -> None:
    """Read the baseline; collect reports, but for a worker of xdist, whose controller does.

    Raises pytest.UsageError with one sentence where the file is no baseline.
    """
    baseline = settings_of(config).baseline
    try:
        config.stash[BASELINE] = None if baseline is None else read_baseline(baseline)
    except ValueError as error:
        raise pytest.UsageError(f"--leakscope-baseline: {error}") from None
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Suite(config), "leakscope-suite")


class Suite:
    """The tests of one session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._judgements: dict[tuple[str, str], Judgement] = {}
        """By node id and phase: of a test that is run again the last."""
        self._said: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a report carries."""
        if (data := getattr(report, CARRIED, None)) is not None:
            self._judgements[report.nodeid, report.when] = judgement_of(data)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the baseline and the report that were asked for, and fail a session that has judged nothing."""
        settings = settings_of(self._config)
        if exitstatus in _UNFINISHED or self._config.getoption("collectonly"):
            return
        if settings.baseline is not None and (settings.update_baseline or self._baseline is None):
            self._written(settings.baseline, self._write_baseline)
        if settings.report is not None:
            self._written(settings.report, self._write_report)
        if settings.fail_on_inconclusive and exitstatus == pytest.ExitCode.OK and not self._judged():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._said.append("No test could be judged, which fails the session (--leakscope-fail-on-inconclusive).")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell each leak once."""
        session = self.session()
        if session.is_worth_telling:
            terminalreporter.section("leakscope")
            terminalreporter.write_line(summary_text(session, terminalreporter._tw.fullwidth))

    def session(self) -> Session:
        """All that is known by now."""
        settings = settings_of(self._config)
        judgements = self._all()
        baseline = self._baseline
        return Session(
            judgements,
            everywhere=settings.everywhere,
            fixtures=settings.fixtures,
            fixed=fixed(baseline, grouped(judgements), self._ran()) if baseline else (),
            said=tuple(self._said),
        )

    @property
    def _baseline(self) -> Baseline | None:
        return self._config.stash[BASELINE]

    def _all(self) -> tuple[tuple[str, Judgement], ...]:
        return tuple((test, judgement) for (test, _), judgement in self._judgements.items())

    def _ran(self) -> frozenset[str]:
        outcomes = outcomes_of(self._all())
        return frozenset(test for test, outcome in outcomes.items() if outcome != Outcome.NOT_JUDGED)

    def _judged(self) -> bool:
        """Whether any test has a verdict."""
        return any(outcome in (Outcome.JUDGED, Outcome.FAILED) for outcome in outcomes_of(self._all()).values())

    def _written(self, path: Path, write: Callable[[Path], str]) -> None:
        """Write something, and keep what is to be said of it."""
        try:
            self._said.append(write(path))
        except OSError as error:
            self._said.append(f"{_short(path)} could not be written: {error.strerror}")

    def _write_baseline(self, path: Path) -> str:
        from leakscope.run.descriptors import write_whole_for_all
        from leakscope.units import plural

        after = baseline_after(self._baseline, grouped(self._all()), self._ran())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_for_all(path, baseline_text(after).encode())
        return f"Written: {_short(path)}, a baseline with {plural(len(after.leaks), 'leak')}."

    def _write_report(self, path: Path) -> str:

        return f"Written: {_short(write_pages(path, self.session()))}"


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>leakscope: what the tests left behind</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }}
body {{ max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid #8886 }}
td.number {{ text-align: right; white-space: nowrap }}
code, pre {{ font: 13px/1.45 ui-monospace, monospace }}
pre {{ overflow-x: auto }}
ul {{ margin: .2rem 0 0; padding-left: 1.2rem }}
</style></head><body>
<h1>What the tests left behind</h1>
{table}
<h2>As told in the terminal</h2>
<pre>{text}</pre>
</body></html>
"""
_WIDTH = 110


def write_pages(folder: Path, session: Session) -> Path:
    """Write all of it into a folder, which may be there; gives the index. Raises OSError where it cannot be written."""
    from leakscope.run.descriptors import write_whole_for_all

    folder.mkdir(parents=True, exist_ok=True)
    groups, text = grouped(session.judgements), summary_text(session, _WIDTH)
    pages = pages_of(session.judgements)
    for fingerprint, files in pages.items():
        own = folder / fingerprint
        own.mkdir(exist_ok=True)
        for name, content in files.items():
            write_whole_for_all(own / name, content.encode())
    table = _page_table(groups, frozenset(pages))
    write_whole_for_all(folder / "index.txt", f"{text}\n".encode())
    write_whole_for_all(folder / "index.html", _PAGE.format(table=table, text=escape(text)).encode())
    return folder / "index.html"


def _page_table(groups: tuple[Group, ...], with_page: frozenset[str]) -> str:
    if not groups:
        return "<p>No leaks.</p>"
    head = "<tr><th>Leak</th><th>Does</th><th>At most</th><th>In all</th><th>Tests</th></tr>"
    return "\n".join(("<table>", head, *(_row(group, group.fingerprint in with_page) for group in groups), "</table>"))


def _row(group: Group, has_page: bool) -> str:
    from leakscope.units import bytes_text, plural

    left = group.largest
    title = escape(left.title)
    if has_page:
        title = f'<a href="{escape(left.fingerprint)}/report.html">{title}</a>'
    line = f"<br>line to edit: <code>{escape(left.line)}</code>" if left.line else ""
    tests = "".join(f"<li><code>{escape(test)}</code></li>" for test in group.tests)
    return (
        f"<tr><td>{title} <code>[{escape(left.fingerprint)}]</code><br>cut: {escape(left.cut)}{line}"
        f"<details><summary>{plural(len(group.tests), 'test')}</summary><ul>{tests}</ul></details></td>"
        f"<td>{escape(', '.join(group.states))}</td><td class=number>{bytes_text(left.bytes)}</td>"
        f"<td class=number>{bytes_text(group.bytes)}</td><td class=number>{len(group.tests)}</td></tr>"
    )
