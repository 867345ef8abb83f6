"""Where does a step end, and which recordings were started and not stopped yet?"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from leakscope.originals import atexit, os


class StepMark:
    """A step of the loop: the `with` block that it is entered with, or what ends where nobody enters it.

    A plain call drops it at once, which ends the step there; where it is kept, as a notebook keeps a cell's last value,
    the step ends with the next mark at the latest.
    """

    __slots__ = ("__weakref__", "_counts", "_over")

    def __init__(self, over: Callable[[], None]) -> None:
        self._over, self._counts = over, True

    def __repr__(self) -> str:
        return "<the end of a step>"

    def __enter__(self) -> None:
        self._counts = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._over()

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __del__(self) -> None:
        self.count()

    def count(self) -> None:
        """End the step here, unless it was entered or has ended."""
        if self._counts:
            self._counts = False
            self._over()


class Started(Protocol):
    """A recording that somebody has to stop."""

    def stop(self) -> object:
        """End it."""


_STARTED: dict[int, tuple[Started, int]] = {}
"""By the id of each: the recording, and the process that started it."""


def started(recording: Started) -> None:
    """Note a recording that goes on until it is stopped; one that was started before and forgotten ends here."""
    for other in _own():
        _end(other, "a Profiler that was started before was not stopped: it ends here")
    if not _STARTED:
        atexit.unregister(_end_all)
        atexit.register(_end_all)
    _STARTED[id(recording)] = recording, os.getpid()


def stopped(recording: Started) -> None:
    """It is over."""
    _STARTED.pop(id(recording), None)


def _end_all() -> None:
    for recording in _own():
        _end(recording, "")


def _own() -> list[Started]:
    """Those of this process; a forked one leaves its parent's alone."""
    return [recording for recording, process in _STARTED.values() if process == os.getpid()]


def _end(recording: Started, why: str) -> None:
    from leakscope.capture.process.guard import say_on_stderr

    if why:
        say_on_stderr(why)
    try:
        recording.stop()
    except Exception as error:  # noqa: BLE001 - it was forgotten: nobody waits for what it found
        say_on_stderr(f"what was recorded was not judged: {type(error).__name__}: {error}")
    finally:
        stopped(recording)
