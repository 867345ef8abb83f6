"""The rise of tensor memory in a block of code."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from leakscope.findings.oom import MOST_LINES, MadeAt, RiseFacts, holders_then
from leakscope.profiler.result import why_no_look
from leakscope.shield import ending_with
from leakscope.units import parse_bytes

if TYPE_CHECKING:
    from leakscope.recorder.lifetimes.tracker import PeakRise, PeakWatch


class TensorPeak:
    """Measures the peak of tensor memory in a block, on the CPU and on devices together.

    Counts each storage made in the block from its allocation to its end, minus earlier storages that end in it. Results
    of the block do not change; it is slower by about 50 microseconds per operation, plus 50 milliseconds to list
    existing storages (`benchmarks/peak.py`). After the block, `rise` holds the result, or `why` the reason for no
    measurement: torch was imported later, or something is compiled. Both are empty if torch was never imported.

    Raises:
        ValueError: `limit` is not a size.

    """

    def __init__(self, limit: int | str) -> None:
        self.limit = parse_bytes(limit)
        self.rise: RiseFacts | None = None
        """The rise above the memory at the start of the block."""
        self.fault: Exception | None = None
        """An error inside leakscope that ended the measurement."""
        self.why = ""
        """Why the block was not measured."""
        self._watch: PeakWatch | None = None

    def __enter__(self) -> Self:
        if "torch" in sys.modules:
            self.why = why_no_look()
            if not self.why:
                from leakscope.recorder.lifetimes.tracker import PeakWatch

                self._watch = PeakWatch(self.limit)
                try:
                    self.why = self._watch.begin()
                except BaseException:  # Python then calls no `__exit__`
                    self._leave()
                    raise
                if self.why:
                    self._watch = None
        return self

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.leave()
        self._watch = None

    @ending_with(_leave)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            try:
                seen = self._watch.end()
                self.why, self.rise = (seen, None) if isinstance(seen, str) else ("", self._facts(seen))
            except Exception as fault:  # noqa: BLE001 - the block itself has not failed
                self.fault, self.why = fault, f"leakscope failed with {type(fault).__name__}: {fault}"
        elif not self.why and "torch" in sys.modules:
            self.why = "torch was imported during the block; import it at the top of the file"

    @property
    def is_over(self) -> bool:
        """Whether memory rose above the limit."""
        return self.rise is not None and self.rise.bytes > self.limit

    def _facts(self, rise: PeakRise) -> RiseFacts:
        held = rise.snapshot
        return RiseFacts(
            bytes=rise.bytes,
            allowed_bytes=self.limit,
            at=rise.at,
            made=tuple(MadeAt(size, count, where) for where, size, count in rise.made[:MOST_LINES]),
            held=() if held is None else holders_then(held.heap, MOST_LINES, frozenset(held.storages)),
            returned=("", 0) if held is None else held.returned,
            held_bytes=0 if held is None else held.bytes,
            devices=() if held is None else held.devices,
        )
