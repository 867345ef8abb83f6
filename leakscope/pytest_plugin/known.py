"""Leaks that fail no test: `ignore`, baselines and suppressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from leakscope.originals import Path, json

if TYPE_CHECKING:
    from leakscope.findings.model import Finding
    from leakscope.pytest_plugin.judging import Group
    from leakscope.run.suppression import Suppression

Ignored: TypeAlias = "str | Callable[[Finding], bool]"
"""A pattern as of `leakscope run --suppress`, or a function of a finding."""

SHOWN_BY = 3
"""Tests that a baseline names for each leak, chosen: they tell whether it was looked for again."""


class PredicateRaised(Exception):
    """A function that was to say what is ignored could not; the message is one sentence."""


@dataclass(frozen=True)
class BaselineLeak:
    """A leak that was there before."""

    fingerprint: str
    title: str
    """For people who read the file."""
    tests: int
    """Tests that showed it."""
    shown_by: tuple[str, ...]
    """The first of them."""


@dataclass(frozen=True)
class Baseline:
    """What a file says is known."""

    leaks: tuple[BaselineLeak, ...] = ()

    @property
    def fingerprints(self) -> frozenset[str]:
        """Those that fail no test."""
        return frozenset(leak.fingerprint for leak in self.leaks)


def patterns_in(lines: Iterable[str], source: str) -> tuple[Suppression, ...]:
    """`PATTERN [until 2027-01-31] [# reason]`, one a line, as in a file of suppressions.

    Raises ValueError with one sentence where a line cannot be taken.
    """
    text = "\n".join(lines)
    if not text:
        return ()
    from leakscope.errors import LeakscopeError
    from leakscope.run.suppression import suppressions_in

    try:
        return suppressions_in(text, source)
    except LeakscopeError as error:
        raise ValueError(str(error)) from None


def ignored_by(finding: Finding, ignore: Sequence[Ignored]) -> str:
    """What of `ignore` names this finding, as a person would write it; "" where nothing does.

    Raises PredicateRaised.
    """
    from leakscope.findings.suppressions import Known, suppression_of

    today = date.today().isoformat()
    patterns = _parsed(tuple(one for one in ignore if isinstance(one, str)))
    named = suppression_of(finding, Known(tuple(one for one in patterns if not one.has_expired(today))))
    if named is not None:
        return named.pattern
    for function in ignore:
        if not isinstance(function, str) and _says(function, finding):
            return f"{getattr(function, '__qualname__', type(function).__name__)}()"
    return ""


@lru_cache(maxsize=64)
def _parsed(patterns: tuple[str, ...]) -> tuple[Suppression, ...]:
    return patterns_in(patterns, "ignore")


def _says(function: Callable[[Finding], bool], finding: Finding) -> bool:
    try:
        return bool(function(finding))
    except Exception as error:  # noqa: BLE001 - whatever the user's own function raises
        name = getattr(function, "__qualname__", type(function).__name__)
        raise PredicateRaised(
            f"ignore={name} raised {type(error).__name__} for {finding.rule} [{finding.fingerprint}]: {error}; "
            "let it return True for a leak that may stay, and False for any other"
        ) from None


def read_baseline(path: Path) -> Baseline | None:
    """What a baseline file says; None where there is no such file. A `findings.json` is one, too.

    Raises ValueError with one sentence where it is something else.
    """
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_bytes())
        return Baseline(tuple(_leak_of(leak) for leak in data["findings"] if leak.get("severity", "leak") == "leak"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(
            f"{path} is no baseline: give a file that --leakscope-baseline wrote, or one that is not there yet"
        ) from None


def _leak_of(data: Any) -> BaselineLeak:
    shown_by = tuple(data.get("shown_by", ()))
    if not all(isinstance(text, str) for text in (data["fingerprint"], *shown_by)):
        raise TypeError
    return BaselineLeak(data["fingerprint"], str(data.get("title", "")), int(data.get("tests", 0)), shown_by)


def baseline_text(baseline: Baseline) -> str:
    """The file: sorted, so that a change of it reads as what has changed."""
    leaks = [
        {
            "fingerprint": leak.fingerprint,
            "severity": "leak",
            "title": leak.title,
            "tests": leak.tests,
            "shown_by": list(leak.shown_by),
        }
        for leak in sorted(baseline.leaks, key=lambda leak: leak.fingerprint)
    ]
    return json.dumps({"format": 2, "findings": leaks}, indent=2) + "\n"


def baseline_after(before: Baseline | None, groups: Sequence[Group], ran: frozenset[str]) -> Baseline:
    """The baseline after a session: the leaks of its tests, and those of which no test that showed them ran."""
    now = [
        BaselineLeak(group.fingerprint, group.title, len(group.tests), group.tests[:SHOWN_BY])
        for group in groups
        if group.counts
    ]
    found = {leak.fingerprint for leak in now}
    kept = [] if before is None else [leak for leak in before.leaks if not ran.intersection(leak.shown_by)]
    return Baseline((*now, *(leak for leak in kept if leak.fingerprint not in found)))


def fixed(baseline: Baseline, groups: Sequence[Group], ran: frozenset[str]) -> tuple[BaselineLeak, ...]:
    """Leaks of the baseline that no test showed, though one that had shown them ran."""
    found = {group.fingerprint for group in groups}
    return tuple(leak for leak in baseline.leaks if leak.fingerprint not in found and ran.intersection(leak.shown_by))
