"""The interface of a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Protocol

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts
from leakscope.findings.model import UnjudgedReason, WhyUnjudged

ENTRY_POINTS = "leakscope.rules"
"""Entry point group in which other packages name their rules."""


class OthersRule(Protocol):
    """The rule of another package."""

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

        They return `Said`, or facts of their own with `title_for` and `advice_for`.
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
class Match:
    """How a group of storages is recognised as what a rule reports."""

    order: float
    """A group belongs to the first rule that applies, by this number."""
    applies: Callable[[Candidate], bool]
    facts: Callable[[Candidate, ToCut], Facts]


@dataclass(frozen=True)
class Rule:
    """What a rule matches, and what reports say of its findings beside the title and advice of their facts."""

    name: str
    """As findings and reports name it: a `RuleName`, or the name of another package's rule."""
    help: str
    """Markdown: a sentence below the name, then sections. `leakscope rule NAME` prints it. The documentation has it as
    a page, with the outputs of its commands; SARIF has the sentence, why it matters and what to use instead.
    """
    match: Match | None = None
    """None where its findings are not made from one group of storages."""
    level: str = "error"
    """The level of SARIF: `note` where its findings are seldom leaks."""
    is_unintended: bool = False
    """Nobody intends what it reports, so that it is a leak however small it is."""
    is_of_comm: bool = False
    """It reports what communication is in the middle of, and its facts say which buffers those are."""
    may_fill: bool = False
    """It reports what a container gains, which may have a bound or be emptied later."""
    at_peak: bool = False
    """What it reports is alive at a step's peak and not used again: idle, not leaked."""
    names_holders: bool = False
    """Its title names what holds the memory, so that a finding without a trace does not say that it has none."""
    is_native: bool = False
    """What it reports is held by native code."""
    why_no_cut: str = "no single cut is enough"

    @cached_property
    def text(self) -> str:
        """What it reports, in one sentence."""
        return _paragraph(self.help.partition("\n\n")[2])

    @cached_property
    def why(self) -> str:
        """How the memory comes to be kept; "" where the help does not say it."""
        return self._section("Why is this bad?")

    @cached_property
    def cure(self) -> str:
        """What to change; "" where the help does not say it."""
        return self._section("Use instead")

    def _section(self, heading: str) -> str:
        return _paragraph(self.help.partition(f"\n## {heading}\n\n")[2])


def _paragraph(text: str) -> str:
    """The first paragraph of some Markdown, in one line."""
    return " ".join(text.partition("\n\n")[0].split())


@dataclass(frozen=True)
class BrokenRule:
    """A rule of another package that could not be loaded or applied, and why."""

    name: str
    why: WhyUnjudged


@cache
def rules_of_others() -> tuple[tuple[OthersRule, ...], tuple[BrokenRule, ...]]:
    """The rules that other installed packages name, and those of them that could not be loaded."""
    loaded: list[OthersRule] = []
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


def _checked(rule: OthersRule) -> OthersRule:
    if not (isinstance(rule.name, str) and isinstance(rule.text, str) and isinstance(rule.order, (int, float))):
        raise TypeError("name and text must be strings, order a number")
    return rule
