"""What is known of one leak beside its figures: each rule has facts of its own, and `report/wording` makes sentences of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What one rule or producer knows of a finding."""


@dataclass(frozen=True)
class Said(Facts):
    """A third party's own words, for a leak that `report/wording` has none for."""

    title: str
    advice: str = ""


def in_words(facts: Facts) -> Said:
    """Facts that are words still."""
    assert isinstance(facts, Said), facts
    return facts
