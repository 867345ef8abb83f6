"""Frames that ended or wait, and keep their locals."""

from __future__ import annotations

import asyncio
import concurrent.futures
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
    tells = r"local batch in _divide.*ExceptionsKept.*\.failed"

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


def _divide_again(batch: torch.Tensor) -> float:
    return batch.numel() / 0


class TracebacksKept(HeldFrame):
    tells = r"local batch in _divide_again.*TracebacksKept.*\.traces"

    def begin(self) -> None:
        self.traces: list[Any] = []

    def leak(self) -> None:
        try:
            _divide_again(self.tensor())
        except ZeroDivisionError:
            self.traces.append(sys.exc_info()[2])

    def clean(self) -> None:
        try:
            _divide_again(self.tensor())
        except ZeroDivisionError:
            self.traces.append(str(sys.exc_info()[1]))


class ChainedExceptionsKept(HeldFrame):
    tells = r"_divide.*ChainedExceptionsKept.*\.failed.*__context__|ChainedExceptionsKept.*\.failed"

    def begin(self) -> None:
        self.failed: list[Any] = []

    def leak(self) -> None:
        self.failed.append(self._raised(self.tensor()))

    def clean(self) -> None:
        self.failed.append(str(self._raised(self.tensor())))

    def _raised(self, batch: torch.Tensor) -> BaseException:
        try:
            try:
                _divide(batch)
            except ZeroDivisionError as error:
                raise RuntimeError("the step failed") from error
        except RuntimeError as outer:
            return outer.with_traceback(None)
        raise AssertionError


def _own_frame(batch: torch.Tensor) -> Any:
    assert batch is not None
    return sys._getframe()


class FramesKept(HeldFrame):
    tells = r"local batch in _own_frame.*FramesKept.*\.frames"

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
    tells = r"generator _batches.*local batch.*SuspendedGenerators.*\.started"

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


class _Pause:
    def __await__(self) -> Any:
        yield


async def _waiting(batch: torch.Tensor) -> None:
    await _Pause()
    batch.sum()


class SuspendedCoroutines(HeldFrame):
    tells = r"coroutine _waiting.*local batch.*SuspendedCoroutines.*\.started"

    def begin(self) -> None:
        self.started: list[Any] = []

    def leak(self) -> None:
        one = _waiting(self.tensor())
        one.send(None)
        self.started.append(one)

    def clean(self) -> None:
        one = _waiting(self.tensor())
        one.send(None)
        one.close()
        self.started.append(one)


async def _streaming(batch: torch.Tensor) -> Any:
    yield batch.numel()
    yield batch.sum()


class SuspendedAsyncGenerators(HeldFrame):
    tells = r"async generator _streaming.*local batch.*SuspendedAsyncGenerators.*\.started"

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


async def _upload(batch: torch.Tensor, told: asyncio.Event) -> float:
    await told.wait()
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

    def _start(self, told: asyncio.Event) -> None:
        task = self.loop.create_task(_upload(self.tensor(), told))
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)
        self.loop.run_until_complete(asyncio.sleep(0))

    def end(self) -> None:
        self.never.set()
        for task in list(self.pending):
            self.loop.run_until_complete(task)
        self.loop.close()


class _Summing(threading.Thread):
    def __init__(self, batch: torch.Tensor) -> None:
        super().__init__()
        self.batch = batch

    def run(self) -> None:
        self.total = float(self.batch.sum())


class FinishedThreads(HeldFrame):
    tells = r"_Summing thread.*FinishedThreads.*\.workers"

    def begin(self) -> None:
        self.workers: list[Any] = []

    def leak(self) -> None:
        worker = _Summing(self.tensor())
        worker.start()
        worker.join()
        self.workers.append(worker)

    def clean(self) -> None:
        worker = _Summing(self.tensor())
        worker.start()
        worker.join()
        self.workers.append(worker.total)


class ThreadsWithArguments(HeldFrame):
    tells = r"Thread thread.*ThreadsWithArguments.*\.pending"

    def begin(self) -> None:
        self.pending: list[Any] = []

    def leak(self) -> None:
        self.pending.append(threading.Thread(target=id, args=(self.tensor(),)))

    def clean(self) -> None:
        worker = threading.Thread(target=id, args=(self.tensor(),))
        worker.start()
        worker.join()
        self.pending.append(worker)


class FutureResults(HeldFrame):
    tells = r"Future.*FutureResults.*\.futures"

    def begin(self) -> None:
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.futures: list[Any] = []

    def leak(self) -> None:
        future = self.pool.submit(self.tensor)
        future.result()
        self.futures.append(future)

    def clean(self) -> None:
        future = self.pool.submit(self.tensor)
        self.futures.append(float(future.result().sum()))

    def end(self) -> None:
        self.pool.shutdown()


class BlockedThreads(HeldFrame):
    tells = r"calls of _wait_with\(\).*local batch.*frame of _wait_with @\S*frames.py:\d+ local batch"
    frees = False  # the thread holds its arguments as well

    def begin(self) -> None:
        self.gate = threading.Event()
        self.running: list[threading.Thread] = []

    def leak(self) -> None:
        ready = threading.Event()
        worker = threading.Thread(target=_wait_with, args=(self.tensor(), ready, self.gate), daemon=True)
        worker.start()
        ready.wait()
        self.running.append(worker)

    def clean(self) -> None:
        ready = threading.Event()
        worker = threading.Thread(target=_wait_with, args=(self.tensor(), ready, ready), daemon=True)
        worker.start()
        worker.join()

    def end(self) -> None:
        self.gate.set()
        for worker in self.running:
            worker.join()


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


def _wait_with(batch: torch.Tensor, ready: threading.Event, gate: threading.Event) -> None:
    ready.set()
    gate.wait()
    assert batch is not None
