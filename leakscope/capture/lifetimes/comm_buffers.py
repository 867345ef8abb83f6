"""Until when is a buffer in use that was sent or is received into?"""

from __future__ import annotations

from leakscope.capture.lifetimes.records import Record


class CommBuffers:
    """A buffer is in use until its Work is waited for.

    Which Work it was is not seen, so every wait counts for all that were sent since the last wait.
    """

    def __init__(self) -> None:
        self._pending: list[Record] = []
        self._waited = False

    def sent(self, records: list[Record]) -> None:
        """A comm operation has got these storages."""
        if self._waited:
            self._pending.clear()
            self._waited = False
        self._pending += records

    def waited(self, operation: int) -> None:
        """Somebody waits; `operation` is the number of the last one that ran."""
        self._waited = True
        for record in self._pending:
            record.last = max(record.last, operation)

    def clear(self) -> None:
        """Forget all of them."""
        self._pending.clear()
