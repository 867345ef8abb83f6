"""Says once, while a script runs, that no step has been seen."""

from __future__ import annotations

from collections.abc import Callable

from leakscope.capture.process.child_processes import OwnProcesses
from leakscope.capture.process.clock import CLOCK
from leakscope.originals import os

_PATIENCE_S = 20.0
"""Seconds without a step after which it is said, chosen: a script has loaded its data and its model by then."""


def say_on_stderr(text: str) -> None:
    """A line of leakscope's, past whatever the script has made of `sys.stderr`."""
    os.write(2, f"leakscope: {text}\n".encode())


class NoStepYet:
    """To be asked at every tick of the watchdog's thread."""

    def __init__(
        self,
        function: str | None,
        processes: OwnProcesses,
        patience_s: float = _PATIENCE_S,
        say: Callable[[str], None] = say_on_stderr,
    ) -> None:
        """`function` is that of `--step-function`; `processes` are those that the script starts."""
        self._function, self._processes, self._patience_s, self._say = function, processes, patience_s, say
        self._began = CLOCK.monotonic()
        self._over = False

    def tick(self, stepped: bool) -> None:
        """Say it where no rank has `stepped` for so long."""
        if stepped:
            self._over = True
        if self._over or CLOCK.monotonic() - self._began < self._patience_s:
            return
        self._over = True
        self._say(_sentence(self._function, self._patience_s, self._processes.count))


def _sentence(function: str | None, seconds: float, processes: int) -> str:
    began = f"no step has been seen for {seconds:g} s"
    if function is not None:
        return f"{began}: {function}() has not returned yet"
    if processes:
        return (
            f"{began}; the script has started {processes} Python process{'es' if processes > 1 else ''} of its own, "
            "which are not seen: start the training with --ranks N instead"
        )
    return (
        f"{began}: a step ends when an optimizer of torch.optim steps, without one when a backward ends, and without "
        "that when a module is called; name the function that makes one step with --step-function NAME"
    )
