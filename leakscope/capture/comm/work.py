"""Stands where a Work or its future is waited for, asked or handed on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from leakscope.capture.comm.operation_log import OperationLog
from leakscope.capture.process.forks import in_forked_child
from leakscope.record.last_operation import WAITED, WAITING

_clock = time.perf_counter
Call = Callable[..., Any]


class Waits:
    """Wrappers for the methods of a Work and of a future; each takes the method and gives what stands in its place."""

    def __init__(self, log: OperationLog) -> None:
        self._log, self._in_forked_child = log, in_forked_child()

    def wait(self, called: Call) -> Call:
        """`wait` and `synchronize` of a Work."""
        log, works, last, waits = self._log, self._log.works, self._log.last, self._log.waits
        forked = self._in_forked_child

        # written out, as what follows a wait runs with the caches as cold as they get
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            work = args[0]
            handle = works.get(id(work))
            if handle is None or handle() is not work or forked:
                del work
                return called(*args, **kwargs)
            log.last_call = _clock()
            if last.shown == handle.number:
                last.map[:6] = WAITING
            else:
                last.update(handle.operations[-1], WAITING)
            try:
                result = called(*args, **kwargs)
            except BaseException as error:
                log.failed(handle.operations, error)
                del work, args, kwargs
                raise
            if handle.asks:
                log.ask(handle, work)
            log.last_event = now = _clock()
            waits.append((handle, now))
            if last.shown == handle.number:
                last.map[:6] = WAITED
            else:
                last.update(handle.operations[-1], WAITED)
            return result

        return wrapper

    def ask(self, called: Call) -> Call:
        """`is_completed`: true once is true for ever."""
        return self._answered(called, self._log.works)

    def ask_future(self, called: Call) -> Call:
        """`done` of a future."""
        return self._answered(called, self._log.futures)

    def _answered(self, called: Call, handles: dict[int, Any]) -> Call:
        log = self._log

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            answer = called(*args, **kwargs)
            if answer and (operations := _of(handles, args[0])):
                log.completed(operations)
            return answer

        return wrapper

    def take_future(self, called: Call) -> Call:
        """`get_future` of a Work: whoever has it may wait for it instead."""
        return self._followed_by_future(called, self._log.works)

    def go_on(self, called: Call) -> Call:
        """`future.then(...)` gives a future that is done later than its own."""
        return self._followed_by_future(called, self._log.futures)

    def _followed_by_future(self, called: Call, handles: dict[int, Any]) -> Call:
        log = self._log

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            future = called(*args, **kwargs)
            if operations := _of(handles, args[0]):
                log.future_taken(operations, future)
            return future

        return wrapper

    def wait_for_future(self, called: Call) -> Call:
        """`wait` of a future."""
        log, forked = self._log, self._in_forked_child

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            operations = _of(log.futures, args[0])
            if not operations or forked:
                return called(*args, **kwargs)
            log.waiting(operations)
            try:
                result = called(*args, **kwargs)
            except BaseException as error:
                log.failed(operations, error)
                del args, kwargs
                raise
            log.waited(operations)
            return result

        return wrapper


def _of(handles: dict[int, Any], handle_of: Any) -> Any:
    """The operations of a Work or future; None for one that is not known."""
    handle = handles.get(id(handle_of))
    return handle.operations if handle is not None and handle() is handle_of else None
