"""Stands where a Work or its future is waited for, asked or handed on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from leakscope.capture.comm.operation_log import Ledger
from leakscope.capture.process.forks import in_forked_child
from leakscope.record.last_operation import WAITED, WAITING

_clock = time.perf_counter
Call = Callable[..., Any]


class Waits:
    """Wrappers for the methods of a Work and of a future; each takes the method and gives what stands in its place."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._in_forked_child = ledger, in_forked_child()

    def wait(self, called: Call) -> Call:
        ledger, works, last, waits = self._ledger, self._ledger.works, self._ledger.last, self._ledger.waits
        forked = self._in_forked_child

        # written out, as what follows a wait runs with the caches as cold as they get
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            work = args[0]
            handle = works.get(id(work))
            if handle is None or handle() is not work or forked:
                del work
                return called(*args, **kwargs)
            ledger.last_call = _clock()
            if last.told == handle.number:
                last.map[:6] = WAITING
            else:
                last.say(handle.operations[-1], WAITING)
            try:
                result = called(*args, **kwargs)
            except BaseException as error:
                ledger.failed(handle.operations, error)
                del work, args, kwargs
                raise
            if handle.asks:
                ledger.ask(handle, work)
            ledger.last_event = now = _clock()
            waits.append((handle, now))
            if last.told == handle.number:
                last.map[:6] = WAITED
            else:
                last.say(handle.operations[-1], WAITED)
            return result

        return wrapper

    def ask(self, called: Call) -> Call:
        """`is_completed`: true once is true for ever."""
        return self._answered(called, self._ledger.works)

    def ask_future(self, called: Call) -> Call:
        return self._answered(called, self._ledger.futures)

    def _answered(self, called: Call, handles: dict[int, Any]) -> Call:
        ledger = self._ledger

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            answer = called(*args, **kwargs)
            if answer and (operations := _of(handles, args[0])):
                ledger.completed(operations)
            return answer

        return wrapper

    def take_future(self, called: Call) -> Call:
        return self._followed_by_future(called, self._ledger.works)

    def go_on(self, called: Call) -> Call:
        """`future.then(...)` gives a future that is done later than its own."""
        return self._followed_by_future(called, self._ledger.futures)

    def _followed_by_future(self, called: Call, handles: dict[int, Any]) -> Call:
        ledger = self._ledger

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            future = called(*args, **kwargs)
            if operations := _of(handles, args[0]):
                ledger.future_taken(operations, future)
            return future

        return wrapper

    def wait_for_future(self, called: Call) -> Call:
        ledger, forked = self._ledger, self._in_forked_child

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            operations = _of(ledger.futures, args[0])
            if not operations or forked:
                return called(*args, **kwargs)
            ledger.waiting(operations)
            try:
                result = called(*args, **kwargs)
            except BaseException as error:
                ledger.failed(operations, error)
                del args, kwargs
                raise
            ledger.waited(operations)
            return result

        return wrapper


def _of(handles: dict[int, Any], handle_of: Any) -> Any:
    """The operations of a Work or future; None for one that is not known."""
    handle = handles.get(id(handle_of))
    return handle.operations if handle is not None and handle() is handle_of else None
