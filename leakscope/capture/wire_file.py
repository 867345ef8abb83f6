"""Which operations go to disk, and when: the first steps whole, later what is late, at the end what came last."""

from __future__ import annotations

import _thread
import json
import mmap
import os
from collections import deque
from pathlib import Path
from typing import Any

from leakscope.capture.wire_records import Channel, Operation
from leakscope.record import RankFolder

FULL_STEPS = 16
"""Steps whose operations are all written; a long run keeps what is late, and its last steps."""
LAST_STEPS = 3
STUCK = 1.0
"""Seconds after which an operation is written although its step is not over."""
_SLOT = 2048
_MOST_KINDS = 4096



class LastOperation:
    """A small mapped file that says what a rank was doing on the wire; it is right even after SIGKILL."""

    def __init__(self, path: Path, zero: float) -> None:
        path.write_bytes(b"{}".ljust(_SLOT))
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(file, _SLOT)
        finally:
            os.close(file)
        self._zero = zero
        self._size = 0
        self._told = 0
        self._kinds: dict[tuple[Channel, int, str], bytes] = {}

    def say(self, operation: Operation, state: bytes) -> None:
        """`state` is one of the four below, all of one length."""
        if self._told == operation.id:
            self._map[10:16] = state
            return
        o = operation
        kind = (o.channel, o.bytes, o.lines[0])
        what = self._kinds.get(kind)  # the same operation comes again each step; only its numbers are new
        if what is None:
            what = self._kind(kind)
        text = b'{"state":"%b","id":%d,"nth":%d,"step":%d,"microbatch":%d,"issued":%.6f,%b' % (
            state, o.id, o.nth, o.step, o.microbatch, o.issued - self._zero, what,
        )  # fmt: skip
        size = len(text)
        if size <= _SLOT:
            self._map[: max(size, self._size)] = text if size >= self._size else text.ljust(self._size)
            self._told, self._size = o.id, size

    def _kind(self, kind: tuple[Channel, int, str]) -> bytes:
        channel, size, issued_at = kind
        told = {"direction": channel.direction, "peer": channel.peer, "tag": channel.tag, "bytes": size,
                "group": channel.group, "issued_at": issued_at}  # fmt: skip
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.clear()
        what = self._kinds[kind] = json.dumps(told)[1:].encode()
        return what

    def words(self) -> str:
        """`recv from rank 0, tag 3, at train.py:40 forward: waits`."""
        told = json.loads(self._map[: self._size] or b"{}")
        if not told:
            return ""
        peer = "" if told["peer"] is None else f" {'to' if told['direction'] == 'send' else 'from'} rank {told['peer']}"
        at = f", at {told['issued_at']}" if told["issued_at"] else ""
        tag = f", tag {told['tag']}" if told["tag"] else ""
        return f"{told['direction']}{peer}{tag}{at}: {told['state'].strip()}"

    def close(self) -> None:
        self._map.close()


ISSUED, WAITING, WAITED, FAILED = b"issued", b"waits ", b"waited", b"failed"
"""What a rank is doing with its last operation."""


class WireFile:
    """Writes `wire.jsonl` from the main thread at step ends and from the watchdog's while an operation is stuck."""

    def __init__(self, folder: RankFolder, zero: float) -> None:
        self._folder, self._zero = folder, zero
        self._pending: list[Operation] = []
        self._recent: deque[Operation] = deque()
        self._amended: list[Operation] = []
        self._writing = _thread.allocate_lock()
        self.last = LastOperation(folder.path / "wire_last.jsonl", zero)

    def issued(self, operation: Operation) -> None:
        self._pending.append(operation)

    def amend(self, operation: Operation) -> None:
        """Something happened to an operation whose line is on disk; called from finalizers, so nothing is written here."""
        self._amended.append(operation)

    def step_ended(self, step: int) -> None:
        """Write what is due at the end of a step; operations of this one get a step more to settle."""
        with self._writing:
            waiting: list[Operation] = []
            for operation in self._pending:
                settled = operation.settled
                if operation.step >= step and not settled:
                    waiting.append(operation)
                elif operation.step <= FULL_STEPS or not settled or operation.dropped:
                    self._write(operation)
                else:
                    self._recent.append(operation)
            self._pending = waiting
            while self._recent and self._recent[0].step <= step - LAST_STEPS:
                self._recent.popleft()
            self._write_amended()

    def beat(self, now: float) -> None:
        """Write what has been waiting for long; called by the watchdog, never waits for the main thread."""
        if not self._pending or not self._writing.acquire(blocking=False):
            return
        try:
            pending = self._pending[:]
            for operation in pending:
                if not operation.written and now - operation.issued > STUCK:
                    self._write(operation)
        finally:
            self._writing.release()

    def close(self) -> None:
        """Write everything that has not been written."""
        with self._writing:
            for operation in sorted([*self._recent, *self._pending], key=lambda o: o.id):
                self._write(operation)
            self._write_amended()
            self._pending, self._recent = [], deque()
        self.last.close()

    def _write(self, operation: Operation) -> None:
        if not operation.written:
            operation.written = True
            self._folder.append("wire", operation.row(self._zero))

    def _write_amended(self) -> None:
        amended, self._amended = self._amended, []
        rows: dict[int, dict[str, Any]] = {o.id: {"id": o.id, **o.ends(self._zero)} for o in amended}
        for row in rows.values():
            self._folder.append("wire", row)
