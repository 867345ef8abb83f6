"""Strings, numbers, records and their like that something keeps gaining: how many bytes of them are there?"""

from __future__ import annotations

from leakscope.record.model import Look, Rank
from leakscope.record.rows.objects import GainingContainer, GainingType


def objects_of(look: Look) -> int:
    """Bytes of objects that are no tensors, which the process has gained since it was first looked at."""
    return sum(row.bytes for row in _rows(look))


def counted_objects_of(look: Look) -> int:
    """Those of the bytes that the host's counter counts: what Python's own arenas serve is not in its count."""
    return sum(row.counted_bytes for row in _rows(look))


def objects_by_look(rank: Rank) -> dict[int, int]:
    """The step of each look to the counted bytes of objects that the process has gained until then."""
    return {look.step: counted_objects_of(look) for look in rank.looks}


def _rows(look: Look) -> tuple[GainingContainer | GainingType, ...]:
    return (*look.containers, *look.gaining_types)
