"""Frames that ended or wait, and keep their locals."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
from typing import Any

import torch

from corpus.case import LeakCase


class HeldFrame(LeakCase):
    rule = "frame-hold"
    freed_by = "program"
    per_step: Any = 1


def _divide(batch: torch.Tensor) -> float:
    return batch.numel() / 0


class ExceptionsKept(HeldFrame):
    tells = r"ExceptionsKept.*\.failed.*_divide.*local batch"

    def begin(self) -> None:
        self.failed: list[Any] = []

    def leak(self) -> None:
        try:
            _divide(self.tensor())
        except ZeroDivisionError as error:
            self.failed.append(error)

    def clean(self) -> None:
        try:
            _divide(self.tensor())
        except ZeroDivisionError as error:
            self.failed.append(error.with_traceback(None))


def _own_frame(batch: torch.Tensor) -> Any:
    assert batch is not None
    return sys._getframe()


class FramesKept(HeldFrame):
    tells = r"FramesKept.*\.frames.*_own_frame.*local batch"

    def begin(self) -> None:
        self.frames: list[Any] = []

    def leak(self) -> None:
        self.frames.append(_own_frame(self.tensor()))

    def clean(self) -> None:
        self.frames.append(_own_frame(self.tensor()).f_code)


def _batches(batch: torch.Tensor) -> Any:
    yield batch.numel()
    yield batch.sum()


class SuspendedGenerators(HeldFrame):
    tells = r"SuspendedGenerators.*\.started.*generator _batches.*local batch"

    def begin(self) -> None:
        self.started: list[Any] = []

    def leak(self) -> None:
        one = _batches(self.tensor())
        next(one)
        self.started.append(one)

    def clean(self) -> None:
        one = _batches(self.tensor())
        next(one)
        one.close()
        self.started.append(one)


async def _streaming(batch: torch.Tensor) -> Any:
    yield batch.numel()
    yield batch.sum()


class SuspendedAsyncGenerators(HeldFrame):
    tells = r"SuspendedAsyncGenerators.*\.started.*async generator _streaming.*local batch"

    def begin(self) -> None:
        self.started: list[Any] = []

    def leak(self) -> None:
        one = _streaming(self.tensor())
        try:
            one.__anext__().send(None)
        except StopIteration:
            self.started.append(one)

    def clean(self) -> None:
        one = _streaming(self.tensor())
        try:
            one.__anext__().send(None)
        except StopIteration:
            self.started.append(None)
        with contextlib.suppress(StopIteration):
            one.aclose().send(None)


async def _upload(batch: torch.Tensor, event: asyncio.Event) -> float:
    await event.wait()
    return float(batch.sum())


class WaitingTasks(HeldFrame):
    cut = "local batch"
    frees = False  # each task has a cut of its own: what it waits for holds it too

    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.never, self.now = asyncio.Event(), asyncio.Event()
        self.now.set()
        self.pending: set[asyncio.Task[float]] = set()

    def leak(self) -> None:
        self._start(self.never)

    def clean(self) -> None:
        self._start(self.now)

    def _start(self, event: asyncio.Event) -> None:
        task = self.loop.create_task(_upload(self.tensor(), event))
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)
        self.loop.run_until_complete(asyncio.sleep(0))

    def end(self) -> None:
        self.never.set()
        for task in list(self.pending):
            self.loop.run_until_complete(task)
        self.loop.close()


class CallsThatWait(HeldFrame):
    """What came through a queue is held by the waiting call alone; the clean variant is two that always wait."""

    cut = "local batch"

    def begin(self) -> None:
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.done: queue.Queue[Any] = queue.Queue()
        self.gate = threading.Event()
        self.pool = [threading.Thread(target=_serve, args=(self.inbox, self.done), daemon=True) for _ in range(2)]
        self.started: list[threading.Thread] = []

    def leak(self) -> None:
        worker = threading.Thread(target=_take_and_wait, args=(self.inbox, self.done, self.gate), daemon=True)
        worker.start()
        self._hand_over()
        self.started.append(worker)

    def clean(self) -> None:
        if not self.started:
            self.started = self.pool
            for worker in self.pool:
                worker.start()
        self._hand_over()

    def _hand_over(self) -> None:
        self.inbox.put(self.tensor())
        self.done.get()

    def end(self) -> None:
        self.gate.set()
        for _ in self.started:
            self.inbox.put(None)
        for worker in self.started:
            worker.join()


def _take_and_wait(inbox: queue.Queue[Any], done: queue.Queue[Any], gate: threading.Event) -> None:
    batch = inbox.get()
    done.put(batch.numel())
    gate.wait()


def _serve(inbox: queue.Queue[Any], done: queue.Queue[Any]) -> None:
    batch = inbox.get()
    while batch is not None:
        done.put(batch.numel())
        batch = inbox.get()
