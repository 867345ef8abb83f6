"""What communication holds in this process: buffers, Work handles and distributed-autograd contexts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from leakscope.comm import patches as comm_patches
from leakscope.comm.operations import CommFile
from leakscope.comm.patches import CommPatches
from leakscope.comm.rpc import ContextMonitor
from leakscope.comm.tracking import OperationLog
from leakscope.graph.model import CommUse
from leakscope.process.guard import CLOCK
from leakscope.process.patches import Patches, exclude_from_dynamo
from leakscope.process.torch_compat import Future, RecordingPart, c10d, lacks
from leakscope.run.operations import NAME as LAST_OPERATION
from leakscope.run.writer import RankFolder


class NativeHolds:
    """What Works and contexts hold in C++, read after the sweep of a heap snapshot.

    The Python object of a context is created for this reading. It is kept here, where the sweep has not seen it, so
    that it counts as held by native code, which it is.
    """

    def __init__(self, log: OperationLog, contexts: ContextMonitor | None) -> None:
        self._log, self._contexts = log, contexts
        self._kept: list[Any] = []

    def __iter__(self) -> Iterator[tuple[Any, Any, str]]:
        yield from self._log.holds()
        if self._contexts is not None:
            yield from self._contexts.holds(self._kept)


class CommMonitor:
    """Follows what Python passes to a process group, by weak references only; requires torch.distributed.

    Rows go to `wire.jsonl` in the rank's folder; times are seconds since the monitor was created.
    """

    def __init__(self, folder: RankFolder, patches: Patches) -> None:
        self.zero = now = CLOCK.perf_counter()
        self.patches = patches.part()
        self._folder = folder
        self._file = CommFile(folder, now)
        self._log = OperationLog(self._file, now)
        self._calls = CommPatches(self._log, self.patches)
        self._contexts: ContextMonitor | None = None
        exclude_from_dynamo(self.patches, folder.note)
        self._calls.install()
        if not lacks(RecordingPart.FUNCTIONAL):
            comm_patches.install(self._log, self._calls, self.patches)
        if torch.distributed.rpc.is_available() and not lacks(RecordingPart.CONTEXTS):
            self.patches.after_import("torch.distributed.autograd", self._watch_contexts)
        patches.add("records of comm operations", self.remove)
        patches.guard.at_end.append(self._lost)

    def _watch_contexts(self) -> None:
        self._contexts = ContextMonitor(self._folder, self.patches)
        self._contexts.step = self._log.step

    def remove(self) -> None:
        """Undo all changes and write what is left; open operations are written as they are."""
        self._poll()
        note = comm_patches.unseen()
        if note and self.patches.names:
            self._folder.note(note)
        self.patches.take_out()
        if self._log.missed:
            self._folder.note(
                f"communication calls not recorded: {self._log.missed}, the last one because of {self._log.why}"
            )
        self._log.forget()
        self._file.close()

    def _lost(self, _: str) -> None:
        """Recording has ended: the last recorded operation need not be the rank's last."""
        (self._folder.path / LAST_OPERATION).unlink(missing_ok=True)

    # while the script runs

    def step_ended(self, step: int) -> None:
        """Called when this step is over; what follows belongs to the next."""
        log = self._log
        if log.used:  # a script that has not sent anything yet is not stuck
            log.last_event = CLOCK.perf_counter()
        log.settle()
        self._poll()
        log.step_ended(step)
        if self._contexts is not None:
            self._contexts.step_ended(step)

    def tick(self) -> None:
        """Called by the watchdog ten times a second: writes stuck operations."""
        self._log.settle()
        self._file.tick(CLOCK.perf_counter())

    def write_all(self) -> None:
        """Write everything not written yet, in its current state."""
        self._log.settle()
        self._file.write_all()

    def last_event(self) -> float:
        """Time of the last start, wait or completion."""
        return self._log.last_event

    def last_call(self) -> float:
        """Time of the last start of an operation or wait."""
        return self._log.last_call

    def last_words(self) -> str:
        """The last operation and its state, as in `wire_last.bin`; "" if there was none."""
        return self._file.last.words()

    def _poll(self) -> None:
        """Check which Works and futures have completed without a wait; those written in Python are not called."""
        log = self._log
        is_completed = c10d.Work.is_completed
        pending = [h for h in list(log.works.values()) if _is_pending(h.operations)]
        futures = [h for h in list(log.futures.values()) if _is_pending(h.operations)]
        if not (pending or futures) or _capturing():
            return
        for handle in pending:
            work = handle()
            if work is not None and type(work).is_completed is is_completed and work.is_completed():
                log.completed(handle.operations)
            del work
        for followed in futures:
            future: Any = followed()
            if type(future) is Future and future.done():
                log.completed(followed.operations)
            del future

    # for a snapshot

    def holds(self) -> NativeHolds:
        """Yield (owner, what it holds in C++, name of the reference) for one heap snapshot; release it afterwards."""
        return NativeHolds(self._log, self._contexts)

    def last_uses(self) -> dict[int, CommUse]:
        """Map the address of each live storage to the last operation or context that used it."""
        by_contexts = {} if self._contexts is None else self._contexts.last_uses()
        self._log.settle()
        alive = [(address, mark) for address, mark in list(self._log.storages.items()) if mark() is not None]
        return by_contexts | {address: mark.operation.comm_use() for address, mark in alive}

    def own_objects(self) -> tuple[object, ...]:
        """Objects of leakscope, which heap snapshots leave out."""
        parts = (self, self._log, self._calls, *(() if self._contexts is None else (self._contexts,)))
        return (*parts, *(part.__dict__ for part in parts))


def is_there() -> bool:
    """Whether this torch has communication that can be followed."""
    return torch.distributed.is_available() and not lacks(RecordingPart.COMM)


def _is_pending(operations: tuple[Any, ...]) -> bool:
    return any(operation.waited is None and operation.completed is None for operation in operations)


def _capturing() -> bool:
    """Whether a CUDA graph is being captured, during which a Work must not be queried."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
