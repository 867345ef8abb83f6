"""What did the tests of a session leave behind? Each leak once, then how many tests were judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.pytest_plugin.grouped import WORDS, Group, Judgement, Outcome, State, grouped
from leakscope.pytest_plugin.known import BaselineLeak

if TYPE_CHECKING:
    from leakscope.report.text.lines import Line

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
    from leakscope.report.text.lines import laid_out

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
    from leakscope.report.text.lines import Cropped, field_lines, wrapped

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
    from leakscope.report.wording.numbers import plural
    from leakscope.units import bytes_text

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
    from leakscope.report.text.lines import field_lines
    from leakscope.report.wording.numbers import plural
    from leakscope.units import seconds_text

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
    from leakscope.report.text.lines import Cropped

    yield from map(Cropped, texts)


def _wrapped(text: str) -> Iterator[Line]:
    from leakscope.report.text.lines import wrapped

    yield from wrapped(text, "", "  ")
