"""Failure messages: each leak in full once, then in a line."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from leakscope.originals import time
from leakscope.pytest_plugin.judging import (
    WORDS,
    Judgement,
    Outcome,
    State,
    Weighed,
    judgement,
    together,
    unjudged,
    weighed,
)
from leakscope.pytest_plugin.known import Baseline, PredicateRaised
from leakscope.pytest_plugin.settings import Settings, settings_of

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.run.model import Run


_ASIDE = (State.OF_LIBRARY, State.KNOWN, State.IGNORED)


def failing_text(run: Run, findings: Findings, leaks: Sequence[Weighed], told: Collection[str], allowance: int) -> str:
    """What a failing test says: the sum, each leak at length that was not told before, the others in a line each."""
    from leakscope.findings.model import Reason, Why
    from leakscope.profiler.result import sum_text
    from leakscope.report.text.page import render_in_test

    fails = [leak for leak in leaks if leak.state == State.FAILS]
    left = Why(reason=Reason.LEFT_BEHIND, count=len(fails), bytes=sum(leak.bytes for leak in fails))
    parts = [f"{sum_text(run, findings, left, allowance)}\n"]
    if new := tuple(leak.finding for leak in fails if leak.finding.fingerprint not in told):
        parts.append(render_in_test(run, replace(findings, findings=new)))
    parts.append("\n".join(_beside(fails, leaks, told)))
    return "\n".join(part for part in parts if part)


def _beside(fails: Sequence[Weighed], leaks: Sequence[Weighed], told: Collection[str]) -> Iterator[str]:
    """In a line each what an earlier test told, and in one line what fails nothing."""
    from leakscope.report.escape import cleaned
    from leakscope.report.messages.sentences import title
    from leakscope.report.text.lines import WIDTH, cropped
    from leakscope.units import bytes_text

    before = [leak for leak in fails if leak.finding.fingerprint in told]
    if before:
        yield "Told by an earlier test, and in leakscope's summary:"
    for leak in before:
        finding = cleaned(leak.finding)
        yield cropped(f"- [{finding.fingerprint}] {bytes_text(leak.bytes)}: {title(finding)}", WIDTH)
    counts = {state: sum(leak.state == state for leak in leaks) for state in _ASIDE}
    if any(counts.values()):
        said = ", ".join(f"{count} {WORDS[state]}" for state, count in counts.items() if count)
        yield f"Left as well, and in leakscope's summary: {said}."


CARRIED = "leakscope"
"""Attribute of a test's report with its `Judgement` as plain data, which xdist brings to the controller."""
BASELINE = pytest.StashKey[Baseline | None]()
"""What was known when the session began; None without a file that says so."""

_TOLD = pytest.StashKey[str]()
"""What was told of a test that failed of it."""
_JUDGEMENTS = pytest.StashKey[list[Judgement]]()
"""What was found of a test since its last report."""
_AT_LENGTH = pytest.StashKey[set[str]]()
"""Fingerprints of this process that a failing test has told at length."""
_CARRIED = pytest.StashKey[set[str]]()
"""Fingerprints of this process that a report has carried."""


def fail_of_leaks(
    item: pytest.Item, settings: Settings, run: Run, findings: Findings, seconds: float = 0.0, processes: bool = False
) -> None:
    """Fail the test that left more behind, or whose repeats added more, than it is allowed to; keep it for its report.

    `seconds` is what leakscope took for it; `processes` says whether the test started some.
    """
    began = time.perf_counter()
    stash = item.config.stash
    at_length, carried = stash.setdefault(_AT_LENGTH, set()), stash.setdefault(_CARRIED, set())
    judgements = item.stash.setdefault(_JUDGEMENTS, [])
    baseline = stash.get(BASELINE, None)
    leaks: tuple[Weighed, ...] = ()
    try:
        leaks = weighed(findings, settings, baseline.fingerprints if baseline else ())
        found = judgement(run, findings, leaks, carried, settings)
        failed = found.outcome == Outcome.FAILED
        text = failing_text(run, findings, leaks, at_length, settings.allowance) if failed else ""
    except PredicateRaised as error:
        found, text = Judgement(Outcome.FAILED), str(error)
    except Exception as error:  # noqa: BLE001 - a fault of leakscope's own fails a test only where that was asked for
        found, text = _of_fault(item, settings, error)
    at_length.update(leak.finding.fingerprint for leak in leaks if leak.state == State.FAILS)
    carried.update(leak.finding.fingerprint for leak in leaks)
    judgements.append(replace(found, seconds=seconds + time.perf_counter() - began, processes=processes))
    if text:
        fail_with(item, text)


def tell_fault(item: pytest.Item, settings: Settings, error: Exception) -> None:
    """Keep a fault of leakscope's own for the summary; with `strict` it fails the test."""
    found, text = _of_fault(item, settings, error)
    item.stash.setdefault(_JUDGEMENTS, []).append(found)
    if text:
        fail_with(item, text)


def _of_fault(item: pytest.Item, settings: Settings, error: Exception) -> tuple[Judgement, str]:
    said = f"leakscope failed with {type(error).__name__}: {error}"
    if settings.strict:
        return Judgement(Outcome.FAILED, said), said
    item.warn(pytest.PytestWarning(said))
    return Judgement(Outcome.INCONCLUSIVE, said), ""


def fail_with(item: pytest.Item, told: str) -> None:
    """Fail the test in these words, without a traceback of ours."""
    item.stash[_TOLD] = told
    raise pytest.fail.Exception(told, pytrace=False) from None


def carry(item: pytest.Item, report: pytest.TestReport) -> None:
    """Give the report of one phase what was found in it; why a test was not judged, where all are to be."""
    judgements = item.stash.get(_JUDGEMENTS, [])
    item.stash[_JUDGEMENTS] = []
    if not judgements and report.when == "call" and not report.skipped and settings_of(item.config).everywhere:
        kind = f"tests of type {type(item).__name__}, which run in a way of their own"
        failed = "tests over their peak" if _TOLD in item.stash else "tests that failed otherwise"
        judgements = [unjudged(failed if report.failed else kind)]
    if judgements:
        setattr(report, CARRIED, together(judgements).as_data())


def shorten_summary(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Only the sum goes into pytest's summary, which on a CI (and with -vv) repeats a failure's whole message."""
    crash = getattr(report.longrepr, "reprcrash", None)
    told = item.stash.get(_TOLD, None)
    if told is not None and crash is not None and call.excinfo is not None and str(call.excinfo.value) == told:
        crash.message = told.partition("\n")[0]
