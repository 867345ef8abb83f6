"""Judges tests, and groups the leaks of a session."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from leakscope.originals import os, time
from leakscope.pytest_plugin.known import ignored_by
from leakscope.pytest_plugin.settings import Settings
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
