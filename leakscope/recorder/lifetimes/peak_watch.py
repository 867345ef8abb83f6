"""How high tensor memory rose since a start, and what made and held it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from leakscope.graph.model import HeapGraph
from leakscope.heap.snapshot import inspect
from leakscope.heap.storages import storage_object
from leakscope.process.guard import is_the_scripts
from leakscope.process.torch_compat import StorageBase, address_of_storage, compiles
from leakscope.recorder.lifetimes.dispatch_mode import why_not
from leakscope.recorder.lifetimes.storage_table import GONE, Record
from leakscope.recorder.lifetimes.tracker import LifetimeTracker
from leakscope.run.kinds import Occasion

_NEXT_LOOK = 1.25
"""How much more than at the last look must be alive for another one, chosen: what is told of is most of the peak."""
_MOST_LOOKS = 8
"""Looks at the most, chosen: a second each."""
_FORGET_EVERY = 1 << 16
"""Operations, chosen, after which what no longer counts is let go of: some 20 MB."""


@dataclass(frozen=True)
class Held:
    """A look while much was alive."""

    bytes: int
    """Above what was there when the watch began."""
    heap: HeapGraph
    storages: tuple[int, ...]
    """Indexes in the heap of those that came since, but for what the operation under way was about to return."""
    returned: tuple[str, int]
    """That operation, and the bytes it was about to return."""
    devices: tuple[tuple[str, int], ...]
    """Bytes of these by device."""


@dataclass(frozen=True)
class Rise:
    """The moment at which most was alive, as plain data."""

    bytes: int
    """Above what was there when the watch began."""
    at: str
    """The operation after which it was reached, "" where nothing was made."""
    made: tuple[tuple[str, int, int], ...]
    """(where, bytes, storages) of what was alive then and came since the watch began, the largest first; "" where
    nobody saw it being made: in another thread, by numpy, from a file."""
    held: Held | None
    """The last look; None where no more was alive than what is looked at."""


class RiseWatch(LifetimeTracker):
    """Counts every storage between `begin` and `end`; looks at who holds them when more than so many bytes are alive.

    Storages alone count, on every device: not what an operation needs while it runs, nor what an allocator keeps.
    """

    def __init__(self, look_above: int) -> None:
        super().__init__(0, inspect)
        self._look_above, self._looks_left = look_above, _MOST_LOOKS
        self._start, self._top, self._at = 0, 0, -1
        self._there: list[Record] = []
        self._held: Held | None = None

    def begin(self) -> str:
        """Watch what this thread runs from here on; the sentence that says why that would change what runs, else ""."""
        reason = why_not(self.compile_called or compiles())
        if not reason:
            self._patches.call_before_tracing(lambda *_, **__: self.script_compiles())
            self._watch(lambda: "cpu")  # which is every device
            self._start, self._there = self._table.live, list(self._table.records)
        return reason

    def end(self) -> Rise | str:
        """What was seen until now, or the sentence that says why it was not."""
        if self.compile_called:
            return why_not(True)
        if not self.leave():
            return "a dispatch mode that was entered meanwhile still runs"
        why = self._patches.guard.why or self._failure
        table, at = self._table, self._at
        sizes: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for record in self._new(table.records):
            if record.born <= at < record.died:
                where = table.operations[record.born].where() if record.born >= 0 else ""
                sizes[where] += record.bytes
                counts[where] += 1
        made = tuple((where, size, counts[where]) for where, size in sizes.most_common() if size)
        rise = Rise(self._top, table.operations[at].where() if at >= 0 else "", made, self._held)
        self.forget()
        self._there.clear()
        return why or rise

    def _new(self, records: list[Record]) -> list[Record]:
        return records[len(self._there) :]

    def _counted(self) -> None:
        table = self._table
        risen = table.live - self._start
        if risen > self._top:
            self._top, self._at = risen, len(table.operations) - 1
            if risen > self._look_above and self._looks_left:
                self._look_above, self._looks_left = int(risen * _NEXT_LOOK), self._looks_left - 1
                self._look_at_holders(risen)
        if not len(table.operations) % _FORGET_EVERY:
            self._forget_dead()

    def _look_at_holders(self, risen: int) -> None:
        alive, there = self._table.alive, {id(record) for record in self._there}
        now = len(self._table.operations) - 1
        devices: Counter[str] = Counter()
        found, returned = [], 0
        try:
            with inspect(0, Occasion.PEAK) as live:
                heap = live.look.heap
                for index in heap.storages.tolist():
                    storage = storage_object(live.objects[index])
                    record = alive.get(int(address_of_storage(storage)))
                    if record is not None and id(record) not in there:
                        if record.born == now:
                            returned += record.bytes
                        else:
                            found.append(index)
                        devices[str(StorageBase.device.__get__(storage))] += record.bytes
                returning = self._table.operations[now].where(), returned
                self._held = Held(risen, heap, tuple(found), returning, tuple(devices.most_common()))
        except Exception as error:  # told: the test must not fail of our looking
            if is_the_scripts(error):
                raise
            self._deaf = True
            self._failure = f"the look at the peak failed: {type(error).__name__}: {error}"

    def _forget_dead(self) -> None:
        """Let go of what is dead and was not there at the peak, and of the operations that made nothing of the rest."""
        table, at = self._table, self._at
        left = [r for r in self._new(table.records) if r.died == GONE or r.born <= at < r.died]
        table.records[:] = self._there + left
        table.curve.clear()
        needed = {n for record in table.records for n in (record.born, record.last)} | {at}
        nothing = table.operations[-1]
        for number in range(len(table.operations) - 1):
            if number not in needed:
                table.operations[number] = nothing
