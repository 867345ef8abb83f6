"""Which operations go to disk, and when: the first steps whole, later what is late, at the end what came last."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import Any

from leakscope.capture.comm.operation import Channel, Operation
from leakscope.originals import Path, _thread, json, mmap, os
from leakscope.record.descriptors import open_private
from leakscope.record.folder import RankFolder
from leakscope.record.kinds import Direction
from leakscope.record.last_operation import NAME, SIZE, packer, unpack
from leakscope.record.rows.comm import CommOperation

FULL_STEPS = 16
"""Steps whose operations are all written; a long run keeps what is late, and its last steps."""
LAST_STEPS = 3
"""Last steps whose operations are all written as well."""
_MAX_TEXTS = 1000
"""Texts kept of one channel; a script may send tensors of ever new sizes."""
STUCK_AFTER_S = 1.0
"""Seconds after which an operation is written although its step is not over."""


class LastOperationFile:
    """A small mapped file that says which comm operation a rank was at; it is right even after SIGKILL."""

    def __init__(self, path: Path, zero: float) -> None:
        self.map: mmap.mmap | bytearray
        try:
            self.map = _mapped(path)
        except OSError:  # the disk is full, or all files are open that may be: then only this process knows
            self.map = bytearray(SIZE)
        self.zero = zero
        self.shown = 0
        """Number of the operation that it is about."""

    def update(self, operation: Operation, state: bytes) -> None:
        """`state` is one of those of `leakscope.record.last_operation`."""
        if self.shown != operation.id:
            self.shown, o = operation.id, operation
            pack, text = text_of(o.channel, o.lines[0], o.bytes)
            pack(self.map, 0, state, o.id, o.nth, o.step, o.microbatch, o.issued - self.zero, len(text), text)
        else:
            self.map[:6] = state

    def words(self) -> str:
        """`recv from rank 0, tag 3, at train.py:40 forward: waits`."""
        last = unpack(bytes(self.map))
        if last is None:
            return ""
        peer = "" if last.peer is None else f" {'to' if last.direction == Direction.SEND else 'from'} rank {last.peer}"
        at = f", at {last.issued_at}" if last.issued_at else ""
        tag = f", tag {last.tag}" if last.tag else ""
        return f"{last.direction}{peer}{tag}{at}: {last.state}"

    def close(self) -> None:
        """Leave the file as it is; another thread that still waits goes on telling nobody."""
        mapped, self.map = self.map, bytearray(self.map)
        if isinstance(mapped, mmap.mmap):
            mapped.close()


def _mapped(path: Path) -> mmap.mmap:
    file = open_private(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        if os.write(file, bytes(SIZE)) < SIZE:  # all of it is there before it is mapped: a page that the disk refuses
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # is a SIGBUS
        return mmap.mmap(file, SIZE)
    finally:
        os.close(file)


def text_of(channel: Channel, issued_at: str, size: int) -> tuple[Callable[..., None], bytes]:
    """What the file says of an operation besides its numbers, and what packs it: the same whenever it comes again."""
    known = channel.texts.get((issued_at, size))
    if known is not None:
        return known
    values = {
        "direction": channel.direction,
        "peer": channel.peer,
        "tag": channel.tag,
        "bytes": size,
        "group": channel.group,
        "issued_at": issued_at,
    }
    if len(channel.texts) > _MAX_TEXTS:
        channel.texts.clear()
    text = json.dumps(values).encode()
    what = channel.texts[issued_at, size] = packer(text), text
    return what


class CommFile:
    """Writes `wire.jsonl` from the main thread at step ends and from the watchdog's while an operation is stuck."""

    def __init__(self, folder: RankFolder, zero: float) -> None:
        self._folder, self._zero = folder, zero
        self.pending: list[Operation] = []
        """Operations issued and not yet told; whoever issues one appends it."""
        self._recent: deque[Operation] = deque()
        self._amended: list[Operation] = []
        self._writing = _thread.allocate_lock()
        self.last = LastOperationFile(folder.path / NAME, zero)

    def amend(self, operation: Operation) -> None:
        """Something happened to an operation whose line is on disk; called from finalizers, so it is written later."""
        self._amended.append(operation)

    def step_ended(self, step: int) -> None:
        """Write what is due at the end of a step; operations of this one get a step more to settle."""
        with self._writing:
            waiting: list[Operation] = []
            for operation in self.pending:
                settled = operation.settled
                if operation.step >= step and not settled:
                    waiting.append(operation)
                elif operation.step <= FULL_STEPS or not settled or operation.dropped:
                    self._write(operation)
                else:
                    self._recent.append(operation)
            self.pending[:] = waiting
            while self._recent and self._recent[0].step <= step - LAST_STEPS:
                self._recent.popleft()
            self._write_amended()

    def tick(self, now: float) -> None:
        """Write what has been waiting for long; called by the watchdog, never waits for the main thread."""
        if not self.pending or not self._writing.acquire(blocking=False):
            return
        try:
            pending = self.pending[:]
            for operation in pending:
                if not operation.written and now - operation.issued > STUCK_AFTER_S:
                    self._write(operation)
        finally:
            self._writing.release()

    def close(self) -> None:
        """Write everything that has not been written, and nothing more."""
        self.write_all()
        self.last.close()

    def write_all(self) -> None:
        """Write everything that has not been written."""
        with self._writing:
            for operation in sorted([*self._recent, *self.pending], key=lambda o: o.id):
                self._write(operation)
            self._write_amended()
            self.pending.clear()
            self._recent.clear()

    def _write(self, operation: Operation) -> None:
        if not operation.written:
            operation.written = True
            self._folder.append_line(CommOperation.FILE, operation.row(self._zero))

    def _write_amended(self) -> None:
        amended, self._amended = self._amended, []
        rows: dict[int, dict[str, Any]] = {o.id: {"id": o.id, **o.ends(self._zero)} for o in amended}
        for row in rows.values():
            self._folder.append_line(CommOperation.FILE, row)
