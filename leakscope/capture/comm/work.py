"""Stands where a Work or its future is waited for, asked or handed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leakscope.capture.comm.operation_log import OperationLog
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.guard import Guard
from leakscope.record.last_operation import WAITED, WAITING

Call = Callable[..., Any]


class Waits:
    """What stands in the place of the methods of a Work and of a future, and what is called after them."""

    def __init__(self, log: OperationLog, guard: Guard) -> None:
        self._log, self._guard = log, guard

    def wait(self, called: Call) -> Call:
        """`wait` and `synchronize` of a Work; takes the method and gives what stands in its place."""
        log, works, last, waits, guard = self._log, self._log.works, self._log.last, self._log.waits, self._guard
        deaf, failed = guard.deaf, guard.entry("failure of Work.wait", log.failed)
        begins, ended = (guard.entry(f"{moment} of Work.wait", CLOCK.perf_counter) for moment in ("beginning", "end"))

        # written out, as what follows a wait runs with the caches as cold as they get
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            work = args[0]
            handle = works.get(id(work))
            if handle is None or handle() is not work or deaf:
                del work
                return called(*args, **kwargs)
            try:
                log.last_call = begins()
                if last.shown == handle.number:
                    last.map[:6] = WAITING
                else:
                    last.update(handle.operations[-1], WAITING)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                guard.fault("Work.wait", error)
            try:
                result = called(*args, **kwargs)
            except BaseException as error:
                fail(guard, "Work.wait", failed, handle.operations, error)
                del work, args, kwargs
                raise
            try:
                if handle.asks:
                    log.ask(handle, work)
                log.last_event = now = ended()
                waits.append((handle, now))
                if last.shown == handle.number:
                    last.map[:6] = WAITED
                else:
                    last.update(handle.operations[-1], WAITED)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                guard.fault("Work.wait", error)
            return result

        return wrapper

    def wait_for_future(self, called: Call) -> Call:
        """`wait` of a future; takes the method and gives what stands in its place."""
        log, guard, name = self._log, self._guard, "Future.wait"
        deaf, failed = guard.deaf, guard.entry(f"failure of {name}", log.failed)
        begins = guard.guarded(f"beginning of {name}", self._future_waits)
        ended = guard.guarded(f"end of {name}", log.waited)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            operations = None if deaf else begins(args[0])
            if not operations:
                return called(*args, **kwargs)
            try:
                result = called(*args, **kwargs)
            except BaseException as error:
                fail(guard, name, failed, operations, error)
                del args, kwargs
                raise
            ended(operations)
            return result

        return wrapper

    def _future_waits(self, future: Any) -> Any:
        operations = _of(self._log.futures, future)
        if operations:
            self._log.waiting(operations)
        return operations

    # after a method has returned

    def answered(self, answer: object, work: Any) -> None:
        """`is_completed` of a Work: true once is true for ever."""
        if answer and (operations := _of(self._log.works, work)):
            self._log.completed(operations)

    def future_answered(self, answer: object, future: Any) -> None:
        """`done` of a future."""
        if answer and (operations := _of(self._log.futures, future)):
            self._log.completed(operations)

    def future_taken(self, future: Any, work: Any) -> None:
        """`get_future` of a Work: whoever has it may wait for it instead."""
        if operations := _of(self._log.works, work):
            self._log.future_taken(operations, future)

    def goes_on(self, later: Any, future: Any, *_: Any, **__: Any) -> None:
        """`future.then(...)` gives a future that is done later than its own."""
        if operations := _of(self._log.futures, future):
            self._log.future_taken(operations, later)


def fail(guard: Guard, name: str, failed: Callable[..., object], about: Any, error: BaseException) -> None:
    """Note that a call has raised; its error, which is being handled, is the script's and goes on."""
    if guard.deaf:
        return
    try:
        failed(about, error)
    except Exception as ours:  # noqa: BLE001 - whatever it is, it must not become the script's
        guard.fault(name, ours)


def _of(handles: dict[int, Any], handle_of: Any) -> Any:
    """The operations of a Work or future; None for one that is not known."""
    handle = handles.get(id(handle_of))
    return handle.operations if handle is not None and handle() is handle_of else None
