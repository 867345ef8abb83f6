"""The sentences on what a library keeps, or only somebody else could let go of."""

from __future__ import annotations

from leakscope.findings.model import Finding
from leakscope.findings.ownership.facts import Course, LibraryDragFacts, LibraryFacts, RetentionFacts
from leakscope.units import bytes_text

_COURSES = {
    Course.GROWS: "It grows.",
    Course.STEADY: "It is the same at every look: it does not grow.",
    Course.VARIES: "It does not grow at every look.",
    Course.UNKNOWN: "",
}


def retention_title(_: Finding, facts: RetentionFacts) -> str:
    """What a library keeps from step to step."""
    return f"kept by torch's {facts.holder} from step to step: {bytes_text(facts.bytes)}"


def retention_advice(_: Finding, facts: RetentionFacts) -> str:
    """Who keeps it too, how it goes on, and what the script can do."""
    return _joined(facts, _COURSES[facts.course])


def drag_title(_: Finding, facts: LibraryDragFacts) -> str:
    """What a library keeps through the step's peak."""
    return f"kept by torch's {facts.holder} through the step's peak, and not used again: {bytes_text(facts.bytes)}"


def drag_advice(_: Finding, facts: LibraryDragFacts) -> str:
    """Who keeps it too, when the peak is, and what the script can do."""
    return _joined(facts, f"The step's peak is at {facts.peak_at}.")


def _joined(facts: LibraryFacts, more: str) -> str:
    parts = []
    for other in facts.kept_too:
        whole = "all of it" if other.storages == facts.storages else f"{other.storages} of {facts.storages} storages"
        parts.append(f"Kept by {other.name} too: {whole}.")
    return " ".join(part for part in (*parts, more, facts.cure) if part)
