"""Which Python objects that are no tensors does the process keep gaining, and who has them?"""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.record.rows.row import rare


@dataclass(frozen=True)
class GainingContainer:
    """A container that has gained items since looks have seen it, or the first of a chain of linked objects that has
    grown longer; what the heap graph has is not in its bytes.
    """

    container: int
    """Its index in the heap graph of the same look."""
    items: int
    """How many it has."""
    gained: int
    """Items that it has more than when it was first seen."""
    bytes: int
    """Of what it has gained, the newest items measured: strings, numbers, records and all that they alone hold."""
    counted_bytes: int
    """Those of the bytes that the host's counter counts: blocks that Python asks malloc for."""
    item: str
    """What an item is: `str`, `dict of str and float`, `list of float`."""
    earlier_bytes: int = rare(0)
    """Of the items that it had when it was first seen, some of them measured."""
