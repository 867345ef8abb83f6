"""Collects what the reports of all tests carry, also from xdist's workers, and tells it at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leakscope.originals import Path, os
from leakscope.pytest_plugin.failing import BASELINE, CARRIED
from leakscope.pytest_plugin.grouped import Judgement, Outcome, grouped, judgement_of
from leakscope.pytest_plugin.known import Baseline, baseline_after, baseline_text, fixed, read_baseline
from leakscope.pytest_plugin.settings import settings_of
from leakscope.pytest_plugin.summary import Session, outcomes_of, summary_text

if TYPE_CHECKING:
    from collections.abc import Callable

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
        from leakscope.record.descriptors import write_whole_for_all
        from leakscope.report.wording.numbers import plural

        after = baseline_after(self._baseline, grouped(self._all()), self._ran())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_for_all(path, baseline_text(after).encode())
        return f"Written: {_short(path)}, a baseline with {plural(len(after.leaks), 'leak')}."

    def _write_report(self, path: Path) -> str:
        from leakscope.pytest_plugin.pages import write_pages

        return f"Written: {_short(write_pages(path, self.session()))}"


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
