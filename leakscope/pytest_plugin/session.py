"""Collects the judgements of a session: the summary, `findings.json` and the baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from leakscope.originals import Path, os
from leakscope.pytest_plugin.fixing import fix_leaks
from leakscope.pytest_plugin.judging import (
    BASELINE,
    COUNT_WORDS,
    REPORT_ATTRIBUTE,
    Judgement,
    LeakInTest,
    LeakState,
    PhaseOutcome,
    judgement_from_data,
)
from leakscope.pytest_plugin.settings import settings_of

if TYPE_CHECKING:
    from leakscope.report.rendering import Line

Judgements = Sequence[tuple[str, Judgement]]
"""(node id, judgement) of every phase that was judged, in order."""


@dataclass(frozen=True)
class LeakGroup:
    """One distinct leak, and the tests that show it."""

    largest: LeakInTest
    """As seen in the test that leaves most."""
    tests: tuple[str, ...]
    """Node ids, in the order in which they ran."""
    bytes: int
    """Total over all tests."""
    states: tuple[LeakState, ...]
    """What it does to them, the most severe first."""

    @property
    def fingerprint(self) -> str:
        """Identity of the leak."""
        return self.largest.fingerprint

    @property
    def is_for_baseline(self) -> bool:
        """Whether it fails tests, or would without the baseline."""
        return bool({LeakState.FAILS, LeakState.BASELINE}.intersection(self.states))


def grouped(judgements: Iterable[tuple[str, Judgement]]) -> tuple[LeakGroup, ...]:
    """LeakGroup leaks by fingerprint: those that fail tests first, then by total size."""
    seen: dict[str, list[tuple[str, LeakInTest]]] = {}
    for test, judgement in judgements:
        for left in judgement.left:
            seen.setdefault(left.fingerprint, []).append((test, left))
    order = list(LeakState)
    groups = [
        LeakGroup(
            largest=max((left for _, left in those), key=lambda left: left.bytes),
            tests=tuple(dict.fromkeys(test for test, _ in those)),
            bytes=sum(left.bytes for _, left in those),
            states=tuple(sorted({left.state for _, left in those}, key=order.index)),
        )
        for those in seen.values()
    ]
    return tuple(sorted(groups, key=lambda group: (order.index(group.states[0]), -group.bytes, group.fingerprint)))


def outcomes_of(judgements: Judgements) -> dict[str, PhaseOutcome]:
    """The most severe outcome of each test, over its phases."""
    outcomes: dict[str, PhaseOutcome] = {}
    for test, judgement in judgements:
        outcomes[test] = min(outcomes.get(test, judgement.outcome), judgement.outcome, key=lambda one: one.severity)
    return outcomes


TESTS = 3
"""Test names per leak. Heuristic: with more, a leak of a shared fixture fills the screen."""
IN_FULL = 20
"""Failing leaks of half a dozen lines each. Heuristic: two screens; the rest has a line each."""
IN_A_LINE = 10
"""Leaks of each other state. Heuristic: half a screen."""
_HEADINGS = {
    LeakState.LIBRARY: "In libraries; they fail tests with --leakscope-strict",
    LeakState.ALLOWED: "Within the allowance of each test",
    LeakState.BASELINE: "In the baseline",
    LeakState.IGNORED: "Ignored",
}
_INDENT, _COLUMN = "   ", 9


@dataclass(frozen=True)
class Summary:
    """The content of leakscope's section of the terminal summary."""

    judgements: Judgements = ()
    everywhere: bool = False
    """All tests were to be judged, not only those with a marker."""
    fixtures: bool = False
    """Fixtures were judged too."""
    not_found: tuple[Mapping[str, Any], ...] = ()
    """Entries of the baseline that no test of this session showed."""
    notes: tuple[str, ...] = ()
    """Files that were written, or could not be."""

    @property
    def is_needed(self) -> bool:
        """Whether there is more to report than that a few marked tests are clean."""
        found = any(j.left or j.outcome != PhaseOutcome.JUDGED for _, j in self.judgements)
        return found or bool(self.notes) or bool(self.judgements and self.everywhere)

    def render(self, width: int) -> str:
        """The text, at most `width` columns wide."""
        from leakscope.report.rendering import laid_out

        return "\n".join(line.rstrip() for line in laid_out(self._lines(), width)).rstrip()

    def _lines(self) -> Iterator[Line]:
        from leakscope.report.rendering import Cropped, field_lines, wrapped

        groups = grouped(self.judgements)
        by_state = {state: [group for group in groups if group.states[0] == state] for state in LeakState}
        fails = by_state[LeakState.FAILS]
        for number, group in enumerate(fails[:IN_FULL], 1):
            yield from _in_full(number, group)
        yield from _in_a_line("", fails[IN_FULL:])
        for state, heading in _HEADINGS.items():
            yield from _in_a_line(heading, by_state[state])
        if self.not_found:
            yield f"In the baseline, and not found in this session ({len(self.not_found)})"
            yield from (
                Cropped(f"- [{leak['fingerprint']}] {leak.get('title', '')}".rstrip()) for leak in self.not_found
            )
            yield ""
        for name, text in self._counts(by_state).items():
            if text:
                yield from field_lines(name, text, "", _COLUMN)
        for note in self.notes:
            yield from wrapped(note, "", "  ")

    def _counts(self, by_state: Mapping[LeakState, Sequence[LeakGroup]]) -> dict[str, str]:
        from leakscope.units import plural, seconds_text

        outcomes = outcomes_of(self.judgements)
        counts = Counter(outcomes.values())
        judged = len(outcomes) - counts[PhaseOutcome.NOT_JUDGED]
        return {
            "judged": f"{plural(judged, 'test')}: {counts[PhaseOutcome.FAILED]} failed, "
            f"{counts[PhaseOutcome.INCONCLUSIVE]} inconclusive, {counts[PhaseOutcome.JUDGED]} passed",
            "leaks": ", ".join(
                f"{len(by_state[state])} {words}" for state, words in COUNT_WORDS.items() if by_state[state]
            ),
            "unclear": "; ".join(
                dict.fromkeys(j.why for _, j in self.judgements if j.outcome == PhaseOutcome.INCONCLUSIVE)
            ),
            "unjudged": "; ".join(self._unjudged()),
            "overhead": seconds_text(sum(j.seconds for _, j in self.judgements)),
        }

    def _unjudged(self) -> Iterator[str]:
        kinds = Counter(j.why for _, j in self.judgements if j.outcome == PhaseOutcome.NOT_JUDGED)
        yield from (f"{kind}: {count}" for kind, count in kinds.items())
        if self.everywhere and not self.fixtures:
            yield "fixtures (enable with --leakscope-fixtures)"
        if processes := sum(j.processes for _, j in self.judgements):
            yield f"tests with child processes, in those: {processes}"


def _in_full(number: int, group: LeakGroup) -> Iterator[Line]:
    from leakscope.report.rendering import Cropped, field_lines, wrapped
    from leakscope.units import bytes_text

    left, most = group.largest, bytes_text(group.largest.bytes)
    size = f"{most} by one test"
    if len(group.tests) > 1:
        size = f"up to {most}, {bytes_text(group.bytes)} in total, by {len(group.tests)} tests"
    yield from wrapped(f"{number}. {left.title} [{left.fingerprint}]", "", _INDENT)
    for name, text in {"cut": left.cut, "edit": left.line, "library": left.library, "left": size}.items():
        if text:
            yield from field_lines(name, text, _INDENT, _COLUMN)
    for index, test in enumerate(group.tests[:TESTS]):
        more = f" and {len(group.tests) - TESTS} more" if index == TESTS - 1 and len(group.tests) > TESTS else ""
        yield Cropped(f"{_INDENT}{'' if index else 'tests':{_COLUMN}}{test}{more}")
    yield ""


def _in_a_line(heading: str, groups: Sequence[LeakGroup]) -> Iterator[Line]:
    from leakscope.report.rendering import Cropped
    from leakscope.units import bytes_text, plural

    if heading and groups:
        yield f"{heading} ({len(groups)})"
    for group in groups[:IN_A_LINE]:
        left = group.largest
        by = left.library if group.states[0] == LeakState.LIBRARY else left.by
        most = "" if len(group.tests) == 1 else "up to "
        size = f"{most}{bytes_text(left.bytes)}, {plural(len(group.tests), 'test')}"
        yield Cropped(f"- [{left.fingerprint}] {', '.join(filter(None, (by, size)))}: {left.title}")
    if len(groups) > IN_A_LINE:
        yield f"  and {len(groups) - IN_A_LINE} more"
    if groups:
        yield ""


def findings_text(groups: Sequence[LeakGroup], kept: Sequence[Mapping[str, Any]] = ()) -> str:
    """The `findings.json` of a session: its leaks, those that fail no test as suppressed.

    Args:
        groups: Leaks of the session.
        kept: Entries of an earlier file to keep.

    """
    from leakscope.findings.judge import LEAKS_FOUND
    from leakscope.findings.model import Findings, Reason, Why
    from leakscope.originals import json
    from leakscope.profiler.result import run_of_rank
    from leakscope.report.formats.as_json import as_data
    from leakscope.run.model import Ended, Rank
    from leakscope.run.rows import EndKind, MadeBy
    from leakscope.verdict import Verdict

    leaks = [group for group in groups if group.is_for_baseline]
    run = run_of_rank(Rank(0, (), (), Ended(EndKind.FINISHED, 0, 0)), MadeBy.BLOCK)
    found, status = (Verdict.LEAKS, LEAKS_FOUND) if leaks else (Verdict.CLEAN, 0)
    size = sum(group.largest.bytes for group in leaks)
    why = Why(reason=Reason.LEFT_BEHIND, count=len(leaks), bytes=size) if leaks else Why(reason=Reason.CLEAN_BLOCK)
    data = as_data(run, Findings(found, why, status)) | {
        "findings": sorted([*(group.largest.finding for group in leaks), *kept], key=lambda one: one["fingerprint"]),
        "suppressed": [group.largest.finding for group in groups if not group.is_for_baseline],
    }
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


_UNFINISHED = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)


def begin_session(config: pytest.Config) -> None:
    """Read the baseline, and collect the reports; a worker of xdist leaves that to its controller.

    Raises:
        pytest.UsageError: The file is not a baseline.

    """
    path, data = settings_of(config).baseline, None
    if path is not None and path.exists():
        from leakscope.errors import LeakscopeError
        from leakscope.report.formats.as_json import read_baseline

        try:
            data, config.stash[BASELINE] = read_baseline(path)
        except LeakscopeError as error:
            raise pytest.UsageError(f"--leakscope-baseline: {error}") from None
    if not hasattr(config, "workerinput"):
        before = None if data is None else [one for one in data["findings"] if one.get("severity", "leak") == "leak"]
        config.pluginmanager.register(Suite(config, before), "leakscope-suite")


class Suite:
    """The tests of one session."""

    def __init__(self, config: pytest.Config, before: list[dict[str, Any]] | None) -> None:
        self._config = config
        self._before = before
        """Leaks of the baseline; None without a file."""
        self._judgements: dict[tuple[str, str], Judgement] = {}
        """By node id and phase; the last one if a test is run again."""
        self._notes: list[str] = []
        self._is_whole = False
        """All tests were run, so that a leak that was not found is fixed."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the judgement that a report carries."""
        if (data := getattr(report, REPORT_ATTRIBUTE, None)) is not None:
            self._judgements[report.nodeid, report.when] = judgement_from_data(data)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the baseline and the findings, and fail a session that has judged nothing."""
        settings, config = settings_of(self._config), self._config
        if exitstatus in _UNFINISHED or config.getoption("collectonly"):
            return
        selected = any(config.getoption(name, None) for name in ("keyword", "lf", "deselect"))
        stopped = session.shouldfail or session.shouldstop
        self._is_whole = not (selected or stopped or any("::" in argument for argument in config.args))
        groups = grouped(self.judgements)
        if settings.baseline is not None and (settings.baseline_update or self._before is None):
            leaks = [group for group in groups if group.is_for_baseline]
            kept = () if self._is_whole else self._not_found(groups)
            self._write(settings.baseline, lambda: findings_text(leaks, kept))
        if settings.report is not None:
            self._write(settings.report / "findings.json", lambda: findings_text(groups))
        if settings.fix:
            self._notes += fix_leaks(config, Path("leakscope_fixes"))
        if settings.fail_on_inconclusive and exitstatus == pytest.ExitCode.OK and not self._has_verdict():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._notes.append("Session failed: no test could be judged (--leakscope-fail-on-inconclusive).")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary."""
        settings = settings_of(self._config)
        summary = Summary(
            self.judgements,
            everywhere=settings.everywhere,
            fixtures=settings.fixtures,
            not_found=self._not_found(grouped(self.judgements)) if self._is_whole else (),
            notes=tuple(self._notes),
        )
        if summary.is_needed:
            terminalreporter.section("leakscope")
            terminalreporter.write_line(summary.render(terminalreporter._tw.fullwidth))

    @property
    def judgements(self) -> Judgements:
        """The judgements so far, with their tests."""
        return tuple((test, judgement) for (test, _), judgement in self._judgements.items())

    def _not_found(self, groups: Sequence[LeakGroup]) -> tuple[dict[str, Any], ...]:
        found = {group.fingerprint for group in groups}
        return tuple(leak for leak in self._before or () if leak["fingerprint"] not in found)

    def _has_verdict(self) -> bool:
        return any(
            outcome in (PhaseOutcome.JUDGED, PhaseOutcome.FAILED) for outcome in outcomes_of(self.judgements).values()
        )

    def _write(self, path: Path, render: Callable[[], str]) -> None:
        from leakscope.run.descriptors import write_whole_for_all

        relative = os.path.relpath(path)
        shown = str(path) if relative.startswith("..") else relative
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole_for_all(path, render().encode())
            self._notes.append(f"Written: {shown}")
        except OSError as error:
            self._notes.append(f"cannot write {shown}: {error.strerror}")
