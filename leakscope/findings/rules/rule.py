"""The interface of a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Protocol

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.model import UnjudgedReason, WhyUnjudged

ENTRY_POINTS = "leakscope.rules"
"""Entry point group in which other packages name their rules."""


class Rule(Protocol):
    """What knows one kind of leak."""

    @property
    def name(self) -> str:
        """As findings and reports name it: `step-growth`."""

    @property
    def order(self) -> float:
        """A candidate belongs to the first rule that applies, by this number; leakscope's own stand at 10, 20, ...
        100.
        """

    @property
    def text(self) -> str:
        """One sentence about the rule, for code hosts (SARIF)."""

    def applies(self, candidate: Candidate) -> bool:
        """Whether this is what the candidate is."""

    def facts(self, candidate: Candidate, cut: str) -> Facts:
        """What the sentences about the candidate need; `cut` is the reference to cut, as the user would write it.

        `report/wording` has no sentences for facts of other packages: they return `Said`.
        """


@dataclass(frozen=True)
class ToCut:
    """What is to be cut of a candidate, or holds it."""

    written: str
    """As the user would write it."""
    references: tuple[int, ...] = ()
    """In the candidate's graph: the references and the same ones in other instances; () where no cut frees it."""
    each: tuple[int, ...] = ()
    """One of each of the references to cut; () where no cut frees it."""


@dataclass(frozen=True)
class OwnRule:
    """One of leakscope's own rules."""

    name: RuleName
    order: float
    text: str
    applies: Callable[[Candidate], bool]
    facts: Callable[[Candidate, ToCut], Facts]


@dataclass(frozen=True)
class BrokenRule:
    """A rule of another package that could not be loaded or applied, and why."""

    name: str
    why: WhyUnjudged


@cache
def rules_of_others() -> tuple[tuple[Rule, ...], tuple[BrokenRule, ...]]:
    """The rules that other installed packages name, and those of them that could not be loaded."""
    loaded: list[Rule] = []
    broken: list[BrokenRule] = []
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda e: e.name):
        try:
            rule = entry.load()
            if not (callable(rule.applies) and callable(rule.facts)):
                raise TypeError("applies and facts must be functions")
            loaded.append(_checked(rule))
        except Exception as error:  # noqa: BLE001 - whatever another package's import raises is its own fault
            broken.append(BrokenRule(entry.name, because(UnjudgedReason.NOT_LOADED, error)))
    return tuple(loaded), tuple(broken)


def because(reason: UnjudgedReason, error: Exception) -> WhyUnjudged:
    """Why a rule of another package is not applied: what it raised."""
    return WhyUnjudged(reason=reason, error=f"{type(error).__name__}: {error}")


def _checked(rule: Rule) -> Rule:
    if not (isinstance(rule.name, str) and isinstance(rule.text, str) and isinstance(rule.order, (int, float))):
        raise TypeError("name and text must be strings, order a number")
    return rule
