"""What of this process is on the wire: buffers, Works and distributed-autograd contexts, behind one door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from leakscope.capture.comm.rpc import ContextWatch
from leakscope.capture.p2p import Watch, watch
from leakscope.capture.process.import_hook import AfterImport
from leakscope.capture.process.patches import Installed
from leakscope.graph.model import Crossing
from leakscope.record.folder import RankFolder


class Holding:
    """What the wire's owners hold, read when a look asks, which is after its sweep.

    A context's Python object is made for the question, so nothing but this would hold it: kept here, where the sweep
    has not seen it, it counts as held by native code, as it is.
    """

    def __init__(self, buffers: Watch | None, contexts: ContextWatch | None) -> None:
        self._buffers, self._contexts = buffers, contexts
        self._kept: list[Any] = []

    def __iter__(self) -> Iterator[tuple[Any, Any, str]]:
        if self._buffers is not None:
            yield from self._buffers.holds()
        if self._contexts is not None:
            yield from self._contexts.holds(self._kept)


class Wire:
    """Watches both kinds of wire; without torch.distributed it watches nothing and answers nothing."""

    def __init__(self, folder: RankFolder, installed: Installed) -> None:
        self._folder = folder
        self._buffers: Watch | None = None
        self._contexts: ContextWatch | None = None
        self._step = 0
        if not torch.distributed.is_available():
            return
        self._buffers = watch(folder)
        installed.add("wire wrappers", self._buffers.remove)
        if torch.distributed.rpc.is_available():
            finder = AfterImport("torch.distributed.autograd", self._watch_contexts)
            finder.install()
            installed.add("import hook for torch.distributed.autograd", finder.remove)
            installed.add("context wrapper", self._leave_contexts)

    def _watch_contexts(self) -> None:
        self._contexts = ContextWatch(self._folder)
        self._contexts.step = self._step + 1

    def _leave_contexts(self) -> None:
        if self._contexts is not None:
            self._contexts.remove()

    def step_ended(self, step: int) -> None:
        """A step of this number is over."""
        self._step = step
        if self._buffers is not None:
            self._buffers.step_ended(step)
        if self._contexts is not None:
            self._contexts.step_ended(step)

    def beat(self) -> None:
        """From the watchdog's thread, ten times a second."""
        if self._buffers is not None:
            self._buffers.beat()

    def last_event(self) -> float:
        """Reading of the clock when something last happened on the wire; 0.0 where it is not watched."""
        return self._buffers.last_event if self._buffers is not None else 0.0

    def last_call(self) -> float:
        """Reading of the clock when the wire was last called; 0.0 where it is not watched."""
        return self._buffers.last_call if self._buffers is not None else 0.0

    def last_words(self) -> str:
        """The last operation, "" where there was none."""
        return self._buffers.last_words() if self._buffers is not None else ""

    def holds(self) -> Holding:
        """(owner, what it holds in C++, name of the reference), for one `capture.heap.look`; let go of it afterwards."""
        return Holding(self._buffers, self._contexts)

    def crossed(self) -> dict[int, Crossing]:
        """Address of each storage that the wire knows to what it was there for."""
        found: dict[int, Crossing] = {}
        if self._contexts is not None:
            found.update(self._contexts.crossed())
        if self._buffers is not None:
            found.update(self._buffers.crossed())
        return found

    def own_objects(self) -> tuple[object, ...]:
        """leakscope's objects, which no look must show."""
        buffers = () if self._buffers is None else self._buffers.own_objects()
        contexts = () if self._contexts is None else (self._contexts, self._contexts.__dict__)
        return (self, self.__dict__, *buffers, *contexts)
