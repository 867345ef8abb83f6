"""Which leaks did the tests of a session show, each once, with its tests?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


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
