"""Judges tests, groups the leaks of a session, and words the failure of a test."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pytest

from leakscope.originals import os, time
from leakscope.pytest_plugin.settings import Baseline, PredicateRaised, Settings, ignored_by, settings_of
from leakscope.shield import ending_with

if TYPE_CHECKING:
    from leakscope.findings.model import Finding, Findings
    from leakscope.profiler import watch
    from leakscope.run.model import Run


class State(StrEnum):
    """What a leak does to the test that shows it; the gravest first."""

    FAILS = "fails"
    ALLOWED = "allowed"
    """All that the test left is within its allowance."""
    OF_LIBRARY = "library"
    """A library closes it, and nobody asked to be strict."""
    KNOWN = "known"
    """The baseline has it."""
    IGNORED = "ignored"


WORDS = {
    State.FAILS: "that fail tests",
    State.ALLOWED: "within the allowance",
    State.OF_LIBRARY: "closed by libraries",
    State.KNOWN: "in the baseline",
    State.IGNORED: "ignored",
}
"""What is said behind the number of leaks of each state."""


class Outcome(StrEnum):
    """What became of the judging of one test; the gravest first."""

    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    JUDGED = "judged"
    NOT_JUDGED = "not judged"

    @property
    def gravity(self) -> int:
        """0 for the gravest."""
        return list(Outcome).index(self)


@dataclass(frozen=True)
class Left:
    """One leak that one test left."""

    fingerprint: str
    rule: str
    title: str
    bytes: int
    state: State
    cut: str = ""
    """What to cut, and what that would free; why nothing can be cut."""
    line: str = ""
    """The line to edit; "" where none is known."""
    library: str = ""
    """The library that closes it; "" for the application's own."""
    by: str = ""
    """What ignores it."""
    pages: Mapping[str, str] = field(default_factory=dict)
    """Files of a report on it, by name: where a report was asked for, and it is the first of the process."""


@dataclass(frozen=True)
class Judgement:
    """What is known of one test after one of its phases."""

    outcome: Outcome
    why: str = ""
    """Why it was not judged, or is inconclusive."""
    left: tuple[Left, ...] = ()
    seconds: float = 0.0
    """What leakscope took for it."""
    processes: bool = False
    """The test started processes and waited for their end: what those left nobody looked at."""

    def as_data(self) -> dict[str, Any]:
        """Plain data, as xdist sends it from a worker along with the test's report."""
        data = asdict(self)
        return data | {
            "outcome": str(self.outcome),
            "left": [one | {"state": str(one["state"])} for one in data["left"]],
        }


def judgement_of(data: Mapping[str, Any]) -> Judgement:
    """What `as_data` made plain."""
    left = tuple(Left(**(one | {"state": State(one["state"])})) for one in data["left"])
    return Judgement(**(dict(data) | {"outcome": Outcome(data["outcome"]), "left": left}))


@dataclass(frozen=True)
class Group:
    """One distinct leak, and the tests that show it."""

    largest: Left
    """As the test shows it that leaves most."""
    tests: tuple[str, ...]
    """Their node ids, in the order in which they ran."""
    bytes: int
    """What all of them left."""
    states: tuple[State, ...]
    """What it does to them, the gravest first."""

    @property
    def fingerprint(self) -> str:
        """The same for the same leak."""
        return self.largest.fingerprint

    @property
    def title(self) -> str:
        """Of the largest."""
        return self.largest.title

    @property
    def counts(self) -> bool:
        """Whether a baseline that is written takes it: it fails tests, or would without that baseline."""
        return bool({State.FAILS, State.KNOWN}.intersection(self.states))


def grouped(judgements: Iterable[tuple[str, Judgement]]) -> tuple[Group, ...]:
    """Leaks by fingerprint, of (node id, judgement): those that fail tests first, and of those the largest in all."""
    shown: dict[str, list[tuple[str, Left]]] = {}
    for test, judgement in judgements:
        for left in judgement.left:
            shown.setdefault(left.fingerprint, []).append((test, left))
    order = list(State)
    groups = [
        Group(
            largest=max((left for _, left in those), key=lambda left: left.bytes),
            tests=tuple(dict.fromkeys(test for test, _ in those)),
            bytes=sum(left.bytes for _, left in those),
            states=tuple(sorted({left.state for _, left in those}, key=order.index)),
        )
        for those in shown.values()
    ]
    return tuple(sorted(groups, key=lambda group: (order.index(group.states[0]), -group.bytes, group.fingerprint)))


def pages_of(judgements: Iterable[tuple[str, Judgement]]) -> dict[str, Mapping[str, str]]:
    """Fingerprint to the files of the first report on it."""
    pages: dict[str, Mapping[str, str]] = {}
    for _, judgement in judgements:
        for left in judgement.left:
            if left.pages:
                pages.setdefault(left.fingerprint, left.pages)
    return pages


@dataclass(frozen=True)
class Weighed:
    """One leak, and what it does to the test."""

    finding: Finding
    bytes: int
    """What the call left behind; of repeats, what they added to what was there before the first of them."""
    state: State
    by: str = ""
    """What ignores it."""


class Watched:
    """`watch` around a test or a fixture, and the seconds that it takes for itself.

    Where no more than `allowance` bytes can have been left behind, no look is taken.
    """

    block: watch

    fault: Exception | None = None
    """An error of leakscope's own: the block was not judged."""

    def __init__(self, allowance: int) -> None:
        self._allowance = allowance

    def __enter__(self) -> Self:
        began = time.perf_counter()
        from leakscope.profiler import watch

        self.children = children_seconds()
        self.block = watch(allowance=self._allowance)
        self.block._libraries_leak = True  # what becomes of them is the settings' to say
        self._entered = False
        try:
            self.block.__enter__()
            self._entered = True
        except Exception as error:  # noqa: BLE001 - told by whoever judges the test
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
        except Exception as fault:  # noqa: BLE001 - told by whoever judges the test
            self.fault = fault
        finally:
            self.seconds += time.perf_counter() - began

    @property
    def processes(self) -> bool:
        """Whether processes that were started have ended meanwhile."""
        return children_seconds() > self.children


def children_seconds() -> float:
    """CPU seconds of the child processes that have ended and been waited for (times(2))."""
    times = os.times()
    return times.children_user + times.children_system


def weighed(findings: Findings, settings: Settings, known: Collection[str]) -> tuple[Weighed, ...]:
    """The leaks of a test, each with what it does; `known` are the fingerprints of the baseline.

    Raises PredicateRaised where a function of `ignore=` does.
    """
    leaks = [_weighed(f, settings, known) for f in findings.leaks]
    fails = [leak for leak in leaks if leak.state == State.FAILS]
    if sum(leak.bytes for leak in fails) <= settings.allowance:
        instead = State.ALLOWED
    elif settings.update_baseline:
        instead = State.KNOWN
    else:
        return tuple(leaks)
    return tuple(replace(leak, state=instead) if leak.state == State.FAILS else leak for leak in leaks)


def _weighed(finding: Finding, settings: Settings, known: Collection[str]) -> Weighed:
    from leakscope.findings.facts import Origin

    size, by = finding.retained_bytes, ignored_by(finding, settings.ignore)
    if by:
        return Weighed(finding, size, State.IGNORED, by)
    if finding.fingerprint in known:
        return Weighed(finding, size, State.KNOWN)
    of_library = finding.origin == Origin.LIBRARY and not settings.strict
    return Weighed(finding, size, State.OF_LIBRARY if of_library else State.FAILS)


def judgement(
    run: Run, findings: Findings, leaks: Sequence[Weighed], told: Collection[str], settings: Settings
) -> Judgement:
    """What the test's report carries; `told` are the fingerprints that an earlier report of this process carried."""
    from leakscope.report.messages.verdict import why_text
    from leakscope.verdict import Verdict

    failed = any(leak.state == State.FAILS for leak in leaks)
    unsure = findings.verdict == Verdict.INCONCLUSIVE and not failed
    return Judgement(
        Outcome.FAILED if failed else Outcome.INCONCLUSIVE if unsure else Outcome.JUDGED,
        why=why_text(findings) if unsure else "",
        left=tuple(_left(run, findings, leak, settings.report is not None, told) for leak in leaks),
    )


def _left(run: Run, findings: Findings, leak: Weighed, with_pages: bool, told: Collection[str]) -> Left:
    from leakscope.report.escape import cleaned
    from leakscope.report.messages.held import also_text, cut_name, line_to_edit, no_cut_text, would_be_freed
    from leakscope.report.messages.sentences import title

    finding = cleaned(leak.finding)
    cut = no_cut_text(finding)
    if finding.cut is not None:
        cut = f"`{cut_name(finding.cut)}`{also_text(finding.cut)}: {would_be_freed(finding)}"
    return Left(
        fingerprint=finding.fingerprint,
        rule=str(finding.rule),
        title=title(finding),
        bytes=leak.bytes,
        state=leak.state,
        cut=cut,
        line=line_to_edit(finding),
        library=finding.library,
        by=leak.by,
        pages=_pages(run, findings, leak.finding) if with_pages and finding.fingerprint not in told else {},
    )


def _pages(run: Run, findings: Findings, finding: Finding) -> dict[str, str]:
    """The report on one finding alone."""
    from leakscope.report import FORMATS

    alone = replace(findings, findings=(finding,))
    return {"findings.json": FORMATS["json"](run, alone), "report.html": FORMATS["html"](run, alone)}


def unjudged(kind: str) -> Judgement:
    """Of a test that nobody judged."""
    return Judgement(Outcome.NOT_JUDGED, why=kind)


def together(judgements: Sequence[Judgement]) -> Judgement:
    """Of one phase of a test, which may be judged more than once: as it was called, and as it was repeated."""
    gravest = min(judgements, key=lambda one: one.outcome.gravity)
    most: dict[str, Left] = {}
    for left in (left for one in judgements for left in one.left):
        if left.fingerprint not in most or left.bytes > most[left.fingerprint].bytes:
            most[left.fingerprint] = left
    return replace(
        gravest,
        left=tuple(most.values()),
        seconds=sum(one.seconds for one in judgements),
        processes=any(one.processes for one in judgements),
    )


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
    from leakscope.report.rendering import WIDTH, cropped
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
