"""At which moment of a step was most alive, and what was there then?"""

from __future__ import annotations

from dataclasses import dataclass, field

from leakscope.capture.heap.look import Live
from leakscope.capture.heap.native.storages import storage_object
from leakscope.capture.lifetimes.table import Table
from leakscope.capture.source.user_frames import arguments_of_running_calls


@dataclass
class Peak:
    """The moment of a step at which most was alive."""

    operation: int
    """Number in its step of the operation after which it was reached, -1 where the step makes nothing."""
    sign: int
    """What `Table.sign` said then."""
    start: int
    """Bytes alive when the second step began."""
    live: int = 0
    """Bytes alive then, in the second step."""
    unseen: int = 0
    """Bytes then of storages that nobody saw being made or used."""
    arguments: list[tuple[str, str]] = field(default_factory=list)
    """(function, argument) of the user's calls that ran then."""


def begin_peak(peak: Peak, table: Table) -> None:
    """Note what is alive now, at the peak of the second step."""
    peak.live = table.live
    for record in table.alive.values():
        record.at_peak = record.bytes
    peak.arguments = arguments_of_running_calls()


def match_storages(live: Live, peak: Peak, table: Table) -> None:
    """Find the storages of the look at the peak among the records; those without one are unseen."""
    graph = live.look.heap
    for index in graph.storages.tolist():
        record = table.alive.get(int(storage_object(live.objects[index])._cdata))
        if record is None and table.counts(graph.device.get(index, "cpu")):
            peak.unseen += int(graph.bytes[index])
        elif record is not None:
            record.storage = index
