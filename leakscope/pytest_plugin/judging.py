"""What does a leak do to the test that shows it, and what does the test's report carry of it?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from leakscope.originals import os, time
from leakscope.pytest_plugin.grouped import Judgement, Left, Outcome, State
from leakscope.pytest_plugin.known import ignored_by
from leakscope.pytest_plugin.settings import Settings
from leakscope.shield import ending_with

if TYPE_CHECKING:
    from leakscope.findings.model import Finding, Findings
    from leakscope.profiler import watch
    from leakscope.record.model import Run


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
    from leakscope.findings.kinds import Origin

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
    from leakscope.report.wording import why_text
    from leakscope.verdict import Verdict

    failed = any(leak.state == State.FAILS for leak in leaks)
    unsure = findings.verdict == Verdict.INCONCLUSIVE and not failed
    return Judgement(
        Outcome.FAILED if failed else Outcome.INCONCLUSIVE if unsure else Outcome.JUDGED,
        why=why_text(findings) if unsure else "",
        left=tuple(_left(run, findings, leak, settings.report is not None, told) for leak in leaks),
    )


def _left(run: Run, findings: Findings, leak: Weighed, with_pages: bool, told: Collection[str]) -> Left:
    from leakscope.report.cleaning import cleaned
    from leakscope.report.wording import also_text, cut_name, line_to_edit, no_cut_text, title, would_be_freed

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
