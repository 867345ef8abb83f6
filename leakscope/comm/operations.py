"""One communication operation as plain data, the process groups, and the writer of their rows."""

from __future__ import annotations

import errno
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from leakscope.graph.model import CommUse
from leakscope.originals import Path, _thread, json, mmap, os
from leakscope.process.raw_types import mro
from leakscope.process.torch_compat import c10d, group_named, ranks_of
from leakscope.run.descriptors import open_private
from leakscope.run.operations import NAME, SIZE, packer, unpack
from leakscope.run.rows import CommOperation, Direction
from leakscope.run.writer import RankFolder


class Channel:
    """Operations in one direction with one peer and tag of a group, with their count."""

    __slots__ = ("direction", "group", "microbatch", "nth", "peer", "step", "tag", "texts")

    def __init__(self, direction: str, peer: int | None, tag: int | None, group: str) -> None:
        self.direction, self.peer, self.tag, self.group = direction, peer, tag, group
        self.step = 0
        self.microbatch = -1
        """Position of the latest operation in its step."""
        self.nth = 0
        """Total number of operations."""
        self.texts: dict[tuple[str, int], tuple[Callable[..., None], bytes]] = {}
        """(line, bytes), mapped to the text of such an operation in the file of the last operation, and its packer."""


class LiveOperation:
    """A send, a receive or a collective. Times are readings of the clock, None for what has not happened.

    Holds no tensor, storage or Work: `marks` and `work` are weak references with callbacks.
    """

    # class defaults: an instance stores only differences, which halves the cost of creating one
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
    """When the same storage was passed to a later operation, which follows it from then on."""
    dropped = False
    """Whether the Work died before a wait and before it was seen to complete."""
    future = False
    """Whether the Work's future was taken, which outlives it and may be waited for instead."""
    source: int | None = None
    """The sender, for a receive from any source."""
    work: Any = None
    uses = 0
    """References to the first buffer before the operation was issued."""
    owners = 1
    """References that C++ took to a buffer for the operation."""
    tensors = storages = 0
    """Python tensors and storages that are still alive."""
    tensors_latest = storages_latest = 0.0
    """With several: when the last known one died."""
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
        """The user's line that issued it, and the line that called that function."""
        self.issued = 0.0
        self.marks: list[Any] = []

    @property
    def is_complete(self) -> bool:
        """Whether nothing more can happen to it."""
        return self.work is None and (self.storages == 0 or self.reused is not None)

    def comm_use(self) -> CommUse:
        """The description for a heap snapshot of a storage that it used."""
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
        """The row in `wire.jsonl`; times are seconds since `zero`."""
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
        """What may still change after the row was written; a later row with the same `id` has the rest."""
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


_MAX_CHANNELS = 20_000
"""Maximum channels kept per group; a script may give every message its own tag."""
_MAX_GROUPS = 1000
"""Maximum Python objects of groups kept."""


class CommGroup:
    """One group and its channels."""

    __slots__ = ("channels", "name", "ranks", "seen")

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        self.name, self.ranks = name, ranks
        self.channels: dict[tuple[str, Any, Any], Channel] = {}
        """(direction, rank in the group or None, tag), mapped to the channel."""
        self.seen: Any = None
        """Weak reference to the Python object."""

    def open(self, direction: str, other: Any, tag: Any) -> Channel:
        """Return a new channel."""
        if len(self.channels) > _MAX_CHANNELS:
            self.channels.clear()
        peer = self.rank(other) if type(other) is int else None
        channel = self.channels[direction, other, tag] = Channel(direction, peer, tag, self.name)
        return channel

    def rank(self, place: int) -> int:
        """The world rank of this rank of the group."""
        return self.ranks[place] if 0 <= place < len(self.ranks) else place

    def place(self, rank: int | None) -> int | None:
        """The rank in the group of a world rank."""
        return self.ranks.index(rank) if rank in self.ranks else rank


class Groups:
    """All groups in use."""

    def __init__(self) -> None:
        self.by_id: dict[int, CommGroup] = {}
        """Address, mapped to the group; valid if `seen` is still the same object."""
        self._by_name: dict[str, CommGroup] = {}

    def of(self, group: Any) -> CommGroup:
        """The group of a ProcessGroup or of one of its backends."""
        known = self.by_id.get(id(group))
        if known is not None and known.seen() is group:
            return known
        name = _name_of(group)
        places = ranks_of(group)
        ranks = tuple(sorted(places, key=lambda rank: places[rank]))
        known = self._by_name.get(name)
        if known is None or (
            ranks and known.ranks != ranks
        ):  # a group made after destroy_process_group may have an old name
            known = self._by_name[name] = CommGroup(name, ranks)
        if len(self.by_id) > _MAX_GROUPS:
            self.by_id.clear()
        known.seen = weakref.ref(group)
        self.by_id[id(group)] = known
        return known

    def named(self, name: Any) -> CommGroup:
        """The group that a functional operator names."""
        known = self._by_name.get(_shown(name))
        return known if known is not None else self.of(group_named(name))


def _name_of(group: Any) -> str:
    try:  # by the class of torch, since a group written in Python may override it
        if c10d.ProcessGroup in mro(type(group)):
            return _shown(str(vars(c10d.ProcessGroup)["group_name"].__get__(group)))
        return _shown(str(c10d.Backend.name(group)))
    except RuntimeError:  # a group not created by torch.distributed has no name
        return type(group).__name__


def _shown(name: str) -> str:
    return "default" if name in ("0", "default_pg") else name


FULL_STEPS = 16
"""First steps whose operations are all written; a long run keeps late ones and its last steps."""
LAST_STEPS = 3
"""Last steps whose operations are all written."""
_MAX_TEXTS = 1000
"""Maximum texts kept per channel; a script may send tensors of ever new sizes."""
STUCK_AFTER_S = 1.0
"""Seconds after which an operation is written although its step is not over."""


class LastOperationFile:
    """A small mapped file with the comm operation that a rank is in; correct even after SIGKILL."""

    def __init__(self, path: Path, zero: float) -> None:
        self.map: mmap.mmap | bytearray
        try:
            self.map = _mapped(path)
        except OSError:  # the disk is full, or the limit of open files is reached: then only this process knows
            self.map = bytearray(SIZE)
        self.zero = zero
        self.shown = 0
        """Number of the operation in it."""

    def update(self, operation: LiveOperation, state: bytes) -> None:
        """Write an operation; `state` is one of those in `leakscope.run.operations`."""
        if self.shown != operation.id:
            self.shown, o = operation.id, operation
            pack, text = text_of(o.channel, o.lines[0], o.bytes)
            pack(self.map, 0, state, o.id, o.nth, o.step, o.microbatch, o.issued - self.zero, len(text), text)
        else:
            self.map[:6] = state

    def words(self) -> str:
        """The text, as `recv from rank 0, tag 3, at train.py:40 forward: waits`."""
        last = unpack(bytes(self.map))
        if last is None:
            return ""
        peer = "" if last.peer is None else f" {'to' if last.direction == Direction.SEND else 'from'} rank {last.peer}"
        at = f", at {last.issued_at}" if last.issued_at else ""
        tag = f", tag {last.tag}" if last.tag else ""
        return f"{last.direction}{peer}{tag}{at}: {last.state}"

    def close(self) -> None:
        """Keep the file as it is; later updates by a waiting thread are ignored."""
        mapped, self.map = self.map, bytearray(self.map)
        if isinstance(mapped, mmap.mmap):
            mapped.close()


def _mapped(path: Path) -> mmap.mmap:
    file = open_private(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        if os.write(file, bytes(SIZE)) < SIZE:  # written in full before it is mapped: a page that the disk refuses
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # is a SIGBUS
        return mmap.mmap(file, SIZE)
    finally:
        os.close(file)


def text_of(channel: Channel, issued_at: str, size: int) -> tuple[Callable[..., None], bytes]:
    """The text of an operation without its numbers, and its packer; the same for equal operations."""
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
    """Writes `wire.jsonl`, from the main thread at the end of steps and from the watchdog for a stuck operation."""

    def __init__(self, folder: RankFolder, zero: float) -> None:
        self._folder, self._zero = folder, zero
        self.pending: list[LiveOperation] = []
        """Operations issued and not written yet; appended by whoever issues one."""
        self._recent: deque[LiveOperation] = deque()
        self._amended: list[LiveOperation] = []
        self._writing = _thread.allocate_lock()
        self.last = LastOperationFile(folder.path / NAME, zero)

    def amend(self, operation: LiveOperation) -> None:
        """Record a change of an operation that is already written; called by finalizers, so it is written later."""
        self._amended.append(operation)

    def step_ended(self, step: int) -> None:
        """Write what is due at the end of a step; operations of this step get one more step to settle."""
        with self._writing:
            waiting: list[LiveOperation] = []
            for operation in self.pending:
                is_complete = operation.is_complete
                if operation.step >= step and not is_complete:
                    waiting.append(operation)
                elif operation.step <= FULL_STEPS or not is_complete or operation.dropped:
                    self._write(operation)
                else:
                    self._recent.append(operation)
            self.pending[:] = waiting
            while self._recent and self._recent[0].step <= step - LAST_STEPS:
                self._recent.popleft()
            self._write_amended()

    def tick(self, now: float) -> None:
        """Write what has waited for long; called by the watchdog, never waits for the main thread."""
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
        """Write everything that is left and stop."""
        self.write_all()
        self.last.close()

    def write_all(self) -> None:
        """Write everything that is left."""
        with self._writing:
            for operation in sorted([*self._recent, *self.pending], key=lambda o: o.id):
                self._write(operation)
            self._write_amended()
            self.pending.clear()
            self._recent.clear()

    def _write(self, operation: LiveOperation) -> None:
        if not operation.written:
            operation.written = True
            self._folder.append_line(CommOperation.FILE, operation.row(self._zero))

    def _write_amended(self) -> None:
        amended, self._amended = self._amended, []
        rows: dict[int, dict[str, Any]] = {o.id: {"id": o.id, **o.ends(self._zero)} for o in amended}
        for row in rows.values():
            self._folder.append_line(CommOperation.FILE, row)
