"""Sentences about objects that are no tensors."""

from __future__ import annotations

from leakscope.findings.model import Finding
from leakscope.findings.rules.object_growth import Collects, ObjectFacts
from leakscope.report.wording.growth import end_text
from leakscope.units import bytes_text

_FEW = 10
"""Items a step from which on they are told without a fraction."""


def objects_title(finding: Finding, facts: ObjectFacts) -> str:
    """`history in main() gains 1 str a step, 600.00 KiB a step, and lets none go`."""
    end = end_text(finding)
    pace = f"{bytes_text(finding.bytes_per_step)} a step{end if end.startswith(',') else f',{end}'}"
    return f"{finding.subject} gains {_gained(facts)}, {pace}"


def _gained(facts: ObjectFacts) -> str:
    """`12 str a step`, `attributes (1 str a step)`."""
    rate = facts.items_per_step
    count = f"{rate:,.0f}" if rate >= _FEW or rate == round(rate) else f"{rate:.1f}"
    gained = f"{count} {facts.item} a step"
    if facts.collects == Collects.CHAIN:
        return f"{gained} in a chain"
    return f"attributes ({gained})" if facts.collects == Collects.ATTRIBUTES else gained


def objects_advice(finding: Finding, facts: ObjectFacts) -> str:
    """What lets go of it, by what kind of thing gains it."""
    held = finding.subject
    return {
        Collects.LIST: f"Write what goes into {held} to a file, keep a summary (a count, a mean), or give it a bound "
        "(collections.deque(maxlen=...)).",
        Collects.DICT: f"Each step puts something under a new key into {held}: take out what is done with, write it to "
        "a file, or give it a bound.",
        Collects.SET: f"Each step puts something new in {held}: take out what is done with, or keep a count.",
        Collects.QUEUE: f"More is put into {held} than is taken out: give it a bound (maxlen=...), or write it to a "
        "file.",
        Collects.CHAIN: f"Each {facts.item} is held by the next one: keep a number or a name there instead of the "
        f"object, or end the chain that {held} leads to at some length.",
        Collects.ATTRIBUTES: f"Each step sets attributes of {held} under new names: use names that stay the same, or "
        "delete what is done with.",
    }[facts.collects]
