"""What is known of memory that a library, or what runs meanwhile, keeps: `report/wording/holders.py` tells it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.facts import Facts


class Course(StrEnum):
    """How what is kept goes from look to look."""

    GROWS = "grows"
    STEADY = "steady"
    """The same at every look."""
    VARIES = "varies"
    UNKNOWN = "unknown"
    """Too few looks saw it."""


@dataclass(frozen=True)
class KeptToo:
    """Somebody else who keeps some of the storages."""

    name: str
    """As its user would write it."""
    storages: int


@dataclass(frozen=True)
class LibraryFacts(Facts):
    """What one known holder of a library keeps."""

    SUMMED = ("bytes", "storages")

    holder: str
    """As its user would write it: `PipelineStage.fwd_cache`."""
    bytes: int
    storages: int
    kept_too: tuple[KeptToo, ...]
    """Whoever keeps most of them first."""
    cure: str
    """What the script can do about it; "" where only the library can."""


@dataclass(frozen=True)
class RetentionFacts(LibraryFacts):
    """What it keeps from step to step."""

    course: Course


@dataclass(frozen=True)
class LibraryDragFacts(LibraryFacts):
    """What it keeps through a step's peak, and nothing uses again."""

    peak_at: str
    """Line at which the memory was at its highest."""
