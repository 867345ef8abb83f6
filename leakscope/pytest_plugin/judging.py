"""Judges tests: what each leak does to its test, and the message of a test that fails."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pytest

from leakscope.originals import json, os, time
from leakscope.pytest_plugin.fixing import note_leak
from leakscope.pytest_plugin.settings import PredicateRaised, Settings, ignored_by, settings_of
from leakscope.shield import ending_with

if TYPE_CHECKING:
    from leakscope.findings.model import Finding, Findings
    from leakscope.profiler import watch
    from leakscope.run.model import Run
    from leakscope.run.suppression import Suppression


class LeakState(StrEnum):
    """What a leak does to the test that shows it, the most severe first."""

    FAILS = "fails"
    ALLOWED = "allowed"
    """All that the test left is within its allowance."""
    LIBRARY = "library"
    """The cycle is a library's, and `strict` is off."""
    BASELINE = "baseline"
    IGNORED = "ignored"


COUNT_WORDS = {
    LeakState.FAILS: "failing tests",
    LeakState.ALLOWED: "within the allowance",
    LeakState.LIBRARY: "in libraries",
    LeakState.BASELINE: "in the baseline",
    LeakState.IGNORED: "ignored",
}
"""The words after a number of leaks."""


class PhaseOutcome(StrEnum):
    """The result of judging one test, the most severe first."""

    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    JUDGED = "judged"
    NOT_JUDGED = "not judged"

    @property
    def severity(self) -> int:
        """0 for the most severe."""
        return list(PhaseOutcome).index(self)


@dataclass(frozen=True)
class LeakInTest:
    """One leak of one test."""

    finding: Mapping[str, Any]
    """Its entry in `findings.json`."""
    title: str
    state: LeakState
    cut: str = ""
    """What to cut, and what that frees; why there is no cut."""
    line: str = ""
    """The line to edit; "" if unknown."""
    library: str = ""
    """The library that closes the cycle; "" for the application."""
    by: str = ""
    """The pattern or function that ignores it."""

    @property
    def fingerprint(self) -> str:
        """Identity of the leak over tests."""
        return str(self.finding["fingerprint"])

    @property
    def bytes(self) -> int:
        """Bytes that the test left behind, or that its repeats added."""
        return int(self.finding["retained_bytes"])


@dataclass(frozen=True)
class Judgement:
    """The result of one phase of a test."""

    outcome: PhaseOutcome
    why: str = ""
    """Why it was not judged, or is inconclusive."""
    left: tuple[LeakInTest, ...] = ()
    seconds: float = 0.0
    """Overhead of leakscope."""
    processes: bool = False
    """The test ran child processes, which are not judged."""

    def as_data(self) -> dict[str, Any]:
        """Plain data, which xdist can send from a worker along with the report of the test."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data


def judgement_from_data(data: Mapping[str, Any]) -> Judgement:
    """The inverse of `Judgement.as_data`."""
    left = tuple(LeakInTest(**(one | {"state": LeakState(one["state"])})) for one in data["left"])
    return Judgement(**(dict(data) | {"outcome": PhaseOutcome(data["outcome"]), "left": left}))


class WatchedPhase:
    """`leakscope.watch` around a test or a fixture, with its overhead in seconds.

    No heap snapshot is taken if at most `allowance` bytes can have been left behind.
    """

    block: watch
    fault: Exception | None = None
    """An error inside leakscope: the block was not judged."""

    def __init__(self, allowance: int) -> None:
        self._allowance = allowance

    def __enter__(self) -> Self:
        began = time.perf_counter()
        from leakscope.profiler import watch

        self._children = _children_seconds()
        self.block = watch(allowance=self._allowance)
        self.block._libraries_leak = True  # the settings decide what a leak in a library does
        self._entered = False
        try:
            self.block.__enter__()
            self._entered = True
        except Exception as error:  # noqa: BLE001 - reported with the test
            self.fault = error
        self.seconds = time.perf_counter() - began
        return self

    def _leave(self) -> None:
        self.block._leave()

    @ending_with(_leave)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._entered:
            return
        began = time.perf_counter()
        try:
            self.block.__exit__(kind, error, trace)
        except Exception as fault:  # noqa: BLE001 - reported with the test
            self.fault = fault
        finally:
            self.seconds += time.perf_counter() - began

    def judge(self, item: pytest.Item, settings: Settings) -> None:
        """Fail the test if the block left more than its allowance."""
        if self.fault is not None:
            report_fault(item, settings, self.fault)
        else:
            found, processes = self.block.findings, _children_seconds() > self._children
            fail_of_leaks(item, settings, found.run, found, self.seconds, processes)


def _children_seconds() -> float:
    """CPU seconds of the child processes that have ended and been waited for (times(2))."""
    times = os.times()
    return times.children_user + times.children_system


@dataclass(frozen=True)
class JudgedLeak:
    """One leak, and what it does to the test."""

    finding: Finding
    state: LeakState
    by: str = ""
    """The pattern or function that ignores it."""


def judge_leaks(findings: Findings, settings: Settings, baseline: Sequence[Suppression]) -> tuple[JudgedLeak, ...]:
    """The leaks of a test, each with what it does.

    Raises:
        PredicateRaised: A function of `ignore=` raised.

    """
    leaks = [_judge_leak(finding, settings, baseline) for finding in findings.leaks]
    if sum(leak.finding.retained_bytes for leak in leaks if leak.state == LeakState.FAILS) <= settings.allowance:
        instead = LeakState.ALLOWED
    elif settings.baseline_update:
        instead = LeakState.BASELINE
    else:
        return tuple(leaks)
    return tuple(replace(leak, state=instead) if leak.state == LeakState.FAILS else leak for leak in leaks)


def _judge_leak(finding: Finding, settings: Settings, baseline: Sequence[Suppression]) -> JudgedLeak:
    from leakscope.findings.facts import Origin
    from leakscope.findings.suppressions import Known, suppression_of

    by = ignored_by(finding, settings.ignore)
    if by:
        return JudgedLeak(finding, LeakState.IGNORED, by)
    if suppression_of(finding, Known(tuple(baseline))) is not None:
        return JudgedLeak(finding, LeakState.BASELINE)
    of_library = finding.origin == Origin.LIBRARY and not settings.strict
    return JudgedLeak(finding, LeakState.LIBRARY if of_library else LeakState.FAILS)


def judgement(run: Run, findings: Findings, leaks: Sequence[JudgedLeak]) -> Judgement:
    """The judgement that the report of the test carries."""
    from leakscope.report.verdict_text import why_text
    from leakscope.verdict import Verdict

    failed = any(leak.state == LeakState.FAILS for leak in leaks)
    unsure = findings.verdict == Verdict.INCONCLUSIVE and not failed
    return Judgement(
        PhaseOutcome.FAILED if failed else PhaseOutcome.INCONCLUSIVE if unsure else PhaseOutcome.JUDGED,
        why=why_text(findings) if unsure else "",
        left=tuple(_leak_in_test(run, findings, leak) for leak in leaks),
    )


def _leak_in_test(run: Run, findings: Findings, leak: JudgedLeak) -> LeakInTest:
    from leakscope.report.finding_text import also_text, cut_name, line_to_edit, no_cut_text, title, would_be_freed
    from leakscope.report.formats.as_json import as_data
    from leakscope.report.rendering import cleaned

    finding = cleaned(leak.finding)
    cut = no_cut_text(finding)
    if finding.cut is not None:
        cut = f"`{cut_name(finding.cut)}`{also_text(finding.cut)}: {would_be_freed(finding)}"
    return LeakInTest(
        finding=json.loads(json.dumps(as_data(run, replace(findings, findings=(leak.finding,)))["findings"][0])),
        title=title(finding),
        state=leak.state,
        cut=cut,
        line=line_to_edit(finding),
        library=finding.library,
        by=leak.by,
    )


def together(judgements: Sequence[Judgement]) -> Judgement:
    """The judgement of one phase of a test, which is judged once for its call and once for its repeats."""
    most_severe = min(judgements, key=lambda one: one.outcome.severity)
    largest: dict[str, LeakInTest] = {}
    for left in (left for one in judgements for left in one.left):
        if left.fingerprint not in largest or left.bytes > largest[left.fingerprint].bytes:
            largest[left.fingerprint] = left
    return replace(
        most_severe,
        left=tuple(largest.values()),
        seconds=sum(one.seconds for one in judgements),
        processes=any(one.processes for one in judgements),
    )


def failure_message(
    run: Run, findings: Findings, leaks: Sequence[JudgedLeak], reported: Collection[str], allowance: int
) -> str:
    """The message of a failing test: the sum, then each leak in full the first time and in one line after that."""
    from leakscope.findings.model import Reason, Why
    from leakscope.profiler.result import sum_text
    from leakscope.report.text.page import render_in_test

    fails = [leak for leak in leaks if leak.state == LeakState.FAILS]
    left = Why(reason=Reason.LEFT_BEHIND, count=len(fails), bytes=sum(leak.finding.retained_bytes for leak in fails))
    parts = [f"{sum_text(run, findings, left, allowance)}\n"]
    if new := tuple(leak.finding for leak in fails if leak.finding.fingerprint not in reported):
        parts.append(render_in_test(run, replace(findings, findings=new)))
    parts.append("\n".join(_other_leaks(fails, leaks, reported)))
    return "\n".join(part for part in parts if part)


def _other_leaks(fails: Sequence[JudgedLeak], leaks: Sequence[JudgedLeak], reported: Collection[str]) -> Iterator[str]:
    from leakscope.report.finding_text import title
    from leakscope.report.rendering import WIDTH, cleaned, cropped
    from leakscope.units import bytes_text

    before = [cleaned(leak.finding) for leak in fails if leak.finding.fingerprint in reported]
    if before:
        yield "Also reported by an earlier test:"
    for finding in before:
        yield cropped(f"- [{finding.fingerprint}] {bytes_text(finding.retained_bytes)}: {title(finding)}", WIDTH)
    counts = {state: sum(leak.state == state for leak in leaks) for state in LeakState if state != LeakState.FAILS}
    if any(counts.values()):
        yield f"Not counted: {', '.join(f'{count} {COUNT_WORDS[state]}' for state, count in counts.items() if count)}."


REPORT_ATTRIBUTE = "leakscope"
"""Attribute of the report of a test with its `Judgement` as plain data, which xdist sends to the controller."""
BASELINE = pytest.StashKey["Sequence[Suppression]"]()
"""The leaks that were known when the session began."""

_MESSAGE = pytest.StashKey[str]()
"""The message of a test that leakscope failed."""
_JUDGEMENTS = pytest.StashKey[list[Judgement]]()
"""The judgements of a test since its last report."""
_REPORTED = pytest.StashKey[set[str]]()
"""Fingerprints that a failing test of this process has reported in full."""
_WITH_PAGE = pytest.StashKey[set[str]]()
"""Fingerprints whose page this process has written."""


def fail_of_leaks(
    item: pytest.Item, settings: Settings, run: Run, findings: Findings, seconds: float = 0.0, processes: bool = False
) -> None:
    """Fail the test if its leaks are larger than its allowance, and keep the judgement for its report.

    Args:
        item: The test.
        settings: Its settings.
        run: What was recorded of it.
        findings: What was found in that.
        seconds: Overhead of leakscope so far.
        processes: The test ran child processes.

    """
    began = time.perf_counter()
    reported = item.config.stash.setdefault(_REPORTED, set())
    leaks: tuple[JudgedLeak, ...] = ()
    try:
        leaks = judge_leaks(findings, settings, item.config.stash.get(BASELINE, ()))
        found = judgement(run, findings, leaks)
        failed = found.outcome == PhaseOutcome.FAILED
        text = failure_message(run, findings, leaks, reported, settings.allowance) if failed else ""
        _write_pages(item, settings, run, findings, leaks)
    except PredicateRaised as error:
        found, text = Judgement(PhaseOutcome.FAILED), str(error)
    except Exception as error:  # noqa: BLE001 - an error inside leakscope fails a test only with `strict`
        found, text = _of_fault(item, settings, error)
    if settings.fix:
        for leak in leaks:
            if leak.state == LeakState.FAILS:
                note_leak(item, leak.finding)
    reported.update(leak.finding.fingerprint for leak in leaks if leak.state == LeakState.FAILS)
    seconds += time.perf_counter() - began
    item.stash.setdefault(_JUDGEMENTS, []).append(replace(found, seconds=seconds, processes=processes))
    if text:
        fail_with(item, text)


def _write_pages(
    item: pytest.Item, settings: Settings, run: Run, findings: Findings, leaks: Sequence[JudgedLeak]
) -> None:
    """Write the report on each new leak into a folder of its own, which is named after its fingerprint."""
    if settings.report is None:
        return
    from leakscope.report import write

    written = item.config.stash.setdefault(_WITH_PAGE, set())
    for finding in (leak.finding for leak in leaks if leak.finding.fingerprint not in written):
        written.add(finding.fingerprint)
        try:
            folder = settings.report / finding.fingerprint
            folder.mkdir(parents=True, exist_ok=True)
            write(run, replace(findings, findings=(finding,)), folder)
        except OSError as error:
            item.warn(pytest.PytestWarning(f"cannot write {folder}: {error.strerror}"))


def report_fault(item: pytest.Item, settings: Settings, error: Exception) -> None:
    """Keep an error inside leakscope for the summary; with `strict` it fails the test."""
    found, text = _of_fault(item, settings, error)
    item.stash.setdefault(_JUDGEMENTS, []).append(found)
    if text:
        fail_with(item, text)


def _of_fault(item: pytest.Item, settings: Settings, error: Exception) -> tuple[Judgement, str]:
    text = f"leakscope failed with {type(error).__name__}: {error}"
    if settings.strict:
        return Judgement(PhaseOutcome.FAILED, text), text
    item.warn(pytest.PytestWarning(text))
    return Judgement(PhaseOutcome.INCONCLUSIVE, text), ""


def fail_with(item: pytest.Item, message: str) -> None:
    """Fail the test with this message and without a traceback of leakscope."""
    item.stash[_MESSAGE] = message
    raise pytest.fail.Exception(message, pytrace=False) from None


def attach_judgement(item: pytest.Item, report: pytest.TestReport) -> None:
    """Attach the judgement to the report of one phase; under `--leakscope` also why a test was not judged."""
    judgements = item.stash.get(_JUDGEMENTS, [])
    item.stash[_JUDGEMENTS] = []
    if not judgements and report.when == "call" and not report.skipped and settings_of(item.config).everywhere:
        peak = "tests over their peak limit" if _MESSAGE in item.stash else "tests that failed otherwise"
        why = peak if report.failed else f"tests of type {type(item).__name__}"
        judgements = [Judgement(PhaseOutcome.NOT_JUDGED, why)]
    if judgements:
        setattr(report, REPORT_ATTRIBUTE, together(judgements).as_data())


def shorten_summary(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Keep only the first line for pytest's summary, which repeats the whole message on a CI and with -vv."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = item.stash.get(_MESSAGE, None)
    if message is not None and crash is not None and call.excinfo is not None and str(call.excinfo.value) == message:
        crash.message = message.partition("\n")[0]
