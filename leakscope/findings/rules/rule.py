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
        """Name in findings and reports: `step-growth`."""

    @property
    def order(self) -> float:
        """A candidate belongs to the first rule that applies, by this number; leakscope's own are 10, 20, ... 100."""

    @property
    def text(self) -> str:
        """One sentence about the rule, for code hosts (SARIF)."""

    def applies(self, candidate: Candidate) -> bool:
        """Whether the rule applies to the candidate."""

    def facts(self, candidate: Candidate, cut: str) -> Facts:
        """The facts for the sentences about the candidate; `cut` is the reference to cut, as written in code.

        Returns `StaticText`, or facts with their own `title_for` and `advice_for`.
        """


@dataclass(frozen=True)
class ToCut:
    """What is to be cut for a candidate, or its holder."""

    written: str
    """As written in code."""
    references: tuple[int, ...] = ()
    """Indexes in the candidate's graph: the references and their other instances; () if no cut frees it."""
    each: tuple[int, ...] = ()
    """One instance of each of the references to cut; () if no cut frees it."""


@dataclass(frozen=True)
class Match:
    """Recognises a group of storages as what a rule reports."""

    order: float
    """A group belongs to the first rule that applies, by this number."""
    applies: Callable[[Candidate], bool]
    facts: Callable[[Candidate, ToCut], Facts]


@dataclass(frozen=True)
class Rule:
    """What a rule matches, and what reports say about its findings beside the title and advice of their facts."""

    name: str
    """Name in findings and reports: a `RuleName`, or the name of another package's rule."""
    help: str
    """Markdown: a sentence below the name, then sections. Printed by `leakscope rule NAME`. The documentation shows it
    as a page, with the outputs of its commands; SARIF contains the sentence, the reason and the remedy.
    """
    match: Match | None = None
    """None if its findings are not made from one group of storages."""
    level: str = "error"
    """The level in SARIF: `note` if its findings are seldom leaks."""
    is_unintended: bool = False
    """Whether nobody intends what it reports, so that it is a leak however small it is."""
    is_of_comm: bool = False
    """Whether it concerns communication; its facts name the buffers."""
    may_fill: bool = False
    """Whether it reports growth of a container, which may have a bound or be emptied later."""
    at_peak: bool = False
    """Whether it reports memory that is alive at a step's peak and not used again: idle, not leaked."""
    names_holders: bool = False
    """Whether its title names the holder, so that a finding without a trace needs no remark."""
    is_native: bool = False
    """Whether it reports memory held by native code."""
    why_no_cut: str = "no single cut is enough"

    @cached_property
    def text(self) -> str:
        """What it reports, in one sentence."""
        return _paragraph(self.help.partition("\n\n")[2])

    @cached_property
    def why(self) -> str:
        """How the memory comes to be retained; "" if the help does not say it."""
        return self._section("Why is this bad?")

    @cached_property
    def cure(self) -> str:
        """What to change; "" if the help does not say it."""
        return self._section("Use instead")

    def _section(self, heading: str) -> str:
        return _paragraph(self.help.partition(f"\n## {heading}\n\n")[2])


def _paragraph(text: str) -> str:
    """The first paragraph of some Markdown, in one line."""
    return " ".join(text.partition("\n\n")[0].split())


@dataclass(frozen=True)
class BrokenRule:
    """A rule of another package that could not be loaded or applied, and the reason."""

    name: str
    why: WhyUnjudged


@cache
def rules_of_others() -> tuple[tuple[OthersRule, ...], tuple[BrokenRule, ...]]:
    """The rules of other installed packages, and those that could not be loaded."""
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
    """Why a rule of another package is not applied: its exception."""
    return WhyUnjudged(reason=reason, error=f"{type(error).__name__}: {error}")


def _checked(rule: OthersRule) -> OthersRule:
    if not (isinstance(rule.name, str) and isinstance(rule.text, str) and isinstance(rule.order, (int, float))):
        raise TypeError("name and text must be strings, order a number")
    return rule
