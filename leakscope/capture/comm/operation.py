"""One comm operation as plain data: what was sent where, and when each of its lives ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leakscope.graph.model import CommUse


class Channel:
    """Operations of one direction with one peer and tag of a group; it counts them."""

    __slots__ = ("direction", "group", "microbatch", "nth", "peer", "step", "tag", "texts")

    def __init__(self, direction: str, peer: int | None, tag: int | None, group: str) -> None:
        self.direction, self.peer, self.tag, self.group = direction, peer, tag, group
        self.step = 0
        self.microbatch = -1
        """The latest operation's place in its step."""
        self.nth = 0
        """Operations in all."""
        self.texts: dict[tuple[str, int], tuple[Callable[..., None], bytes]] = {}
        """(line, bytes) to what the file of the last operation says of such an operation, and what packs it."""


class Operation:
    """A send, a receive or a collective. Moments are readings of the clock, None for what has not happened.

    Holds no tensor, storage or Work: `marks` and `work` are weak references that tell of their deaths.
    """

    # defaults of the class: an instance stores what differs, which halves the cost of making one
    failed = ""
    bytes = buffers = 0
    shape: Sequence[int] = ()
    dtype: Any = ""
    on_host = True
    waited: float | None = None
    completed: float | None = None
    tensor_died: float | None = None
    storage_died: float | None = None
    work_died: float | None = None
    reused: float | None = None
    """When the same storage was given to a later operation, which follows it from then on."""
    dropped = False
    """The Work died before anybody waited for it and before it was seen completed."""
    future = False
    """Somebody has taken the Work's future, which outlives it and may be waited for instead."""
    source: int | None = None
    """Of a receive from anybody: who sent it."""
    work: Any = None
    uses = 0
    """References to the first buffer before the operation was issued."""
    owners = 1
    """References that C++ took to a buffer for the operation."""
    tensors = storages = 0
    """Python tensors and storages still to die."""
    tensors_latest = storages_latest = 0.0
    """Of several: when the last that is known died."""
    written = False

    def __init__(self, number: int, channel: Channel, step: int, lines: tuple[str, str]) -> None:
        self.id, self.channel, self.step, self.microbatch, self.nth = (
            number,
            channel,
            step,
            channel.microbatch,
            channel.nth,
        )
        self.lines = lines
        """The user's line that issued it, and where that function was called from."""
        self.issued = 0.0
        self.marks: list[Any] = []

    @property
    def settled(self) -> bool:
        """Nothing more can happen to it."""
        return self.work is None and (self.storages == 0 or self.reused is not None)

    def comm_use(self) -> CommUse:
        """What a look says of a storage that it used."""
        channel = self.channel
        peer = self.source if channel.peer is None else channel.peer
        return CommUse(
            channel.direction,
            peer,
            channel.tag,
            self.step,
            self.microbatch,
            self.lines[0],
            self.waited is not None,
            self.tensor_died is not None,
        )

    def row(self, zero: float) -> dict[str, Any]:
        """One line of `wire.jsonl`; moments are seconds since `zero`."""
        channel = self.channel
        row = {
            "id": self.id, "direction": channel.direction, "peer": channel.peer, "tag": channel.tag,
            "group": channel.group, "bytes": self.bytes, "shape": list(self.shape),
            "dtype": str(self.dtype).removeprefix("torch."), "buffers": self.buffers, "step": self.step,
            "microbatch": self.microbatch, "nth": self.nth, "issued_at": self.lines[0],
            "issued": _since(zero, self.issued), **self.ends(zero),
        }  # fmt: skip
        if self.lines[1]:
            row["called_from"] = self.lines[1]
        return row

    def ends(self, zero: float) -> dict[str, Any]:
        """What may still change after the line was written; a later line with the same `id` tells the rest."""
        moments = ("waited", "completed", "tensor_died", "storage_died", "work_died")
        ends: dict[str, Any] = {name: _since(zero, getattr(self, name)) for name in moments}
        if self.reused is not None:
            ends["reused"] = _since(zero, self.reused)
        if self.dropped:
            ends["dropped"] = True
        if self.failed:
            ends["failed"] = self.failed
        if self.source is not None:
            ends["source"] = self.source
        return ends


def _since(zero: float, moment: float | None) -> float | None:
    return None if moment is None else round(moment - zero, 6)
