"""Every send, receive and collective of this process, seen where Python hands it to a process group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from leakscope.capture.comm import functional_collectives as wire_functional
from leakscope.capture.comm.operation_log import Ledger
from leakscope.capture.comm.process_group import Calls
from leakscope.capture.comm.writer import WireFile
from leakscope.capture.process.dynamo import leave_us_out
from leakscope.capture.process.patches import Installed
from leakscope.graph.model import Crossing
from leakscope.record.folder import RankFolder


def watch(folder: RankFolder) -> Watch:
    """Start watching: rows go to `wire.jsonl` of the rank's folder, moments are seconds since now."""
    return Watch(folder)


class Watch:
    """Follows buffers and Works by weak references alone. Everything it installs goes with `remove()`."""

    def __init__(self, folder: RankFolder) -> None:
        self.installed = Installed()
        now = time.perf_counter()
        self._folder = folder
        self._file = WireFile(folder, now)
        self._ledger = Ledger(self._file, now)
        self._calls = Calls(self._ledger, self.installed)
        leave_us_out(self.installed)
        self._calls.install()
        wire_functional.install(self._ledger, self._calls, self.installed)

    @property
    def last_event(self) -> float:
        """When something was last issued, waited for or completed."""
        return self._ledger.last_event

    def remove(self) -> None:
        """Take everything out and write what is left to write; operations still open are written as they are."""
        self._poll()
        note = wire_functional.unseen()
        if note and self.installed.names:
            self._folder.note(note)
        self.installed.take_out()
        if self._ledger.missed:
            self._folder.note(
                f"calls on the wire that could not be noted: {self._ledger.missed}, the last for {self._ledger.why}"
            )
        self._ledger.forget()
        self._file.close()

    def step_ended(self, step: int) -> None:
        """The step of this number is over; what follows belongs to the next."""
        if self._ledger.used:  # a script that has not used the wire yet is not waiting for it
            self._ledger.last_event = time.perf_counter()
        self._ledger.settle()
        self._poll()
        self._ledger.step_ended(step)

    def beat(self) -> None:
        """Called from the watchdog's thread: what is stuck gets on disk."""
        self._ledger.settle()
        self._file.beat(time.perf_counter())

    @property
    def last_call(self) -> float:
        """When something was last issued, or somebody began to wait."""
        return self._ledger.last_call

    def last_words(self) -> str:
        """The last operation and what is being done with it, as `wire_last.bin` has it."""
        return self._file.last.words()

    def holds(self) -> Iterator[tuple[Any, Any, str]]:
        """(Work, tensor, name) for each buffer that a Work alive keeps in C++, once for each reference it took."""
        return self._ledger.holds()

    def crossed(self) -> dict[int, Crossing]:
        """Address of each storage alive to the last operation that used it."""
        self._ledger.settle()
        alive = [(address, mark) for address, mark in list(self._ledger.storages.items()) if mark() is not None]
        return {address: mark.operation.crossing() for address, mark in alive}

    def own_objects(self) -> tuple[object, ...]:
        """leakscope's objects, which no look must show."""
        parts = (self, self._ledger, self._calls)
        return (*parts, *(part.__dict__ for part in parts))

    def _poll(self) -> None:
        """See which Works and futures have completed without being waited for; those written in Python are not asked."""
        ledger = self._ledger
        asked = torch._C._distributed_c10d.Work.is_completed
        pending = [h for h in list(ledger.works.values()) if _is_pending(h.operations)]
        futures = [h for h in list(ledger.futures.values()) if _is_pending(h.operations)]
        if not (pending or futures) or _capturing():
            return
        for handle in pending:
            work = handle()
            if work is not None and type(work).is_completed is asked and work.is_completed():
                ledger.completed(handle.operations)
            del work
        for followed in futures:
            future = followed()
            if type(future) is torch._C.Future and future.done():
                ledger.completed(followed.operations)
            del future


def _is_pending(operations: tuple[Any, ...]) -> bool:
    return any(operation.waited is None and operation.completed is None for operation in operations)


def _capturing() -> bool:
    """Asking a Work for completion is not allowed while a CUDA graph is captured."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
