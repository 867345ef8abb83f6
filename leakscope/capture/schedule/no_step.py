"""Says once, while a script runs, that no step has been seen."""

from __future__ import annotations

from collections.abc import Callable

import torch

from leakscope.capture.heap.raw_types import mro, type_dict
from leakscope.capture.process.child_processes import OwnProcesses
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.schedule.steps import StepClock
from leakscope.originals import os

_PATIENCE_S = 20.0
"""Seconds without a step after which it is said, chosen: a script has loaded its data and its model by then."""
_MOST_NAMED = 3
"""Functions that one sentence names."""


def say_on_stderr(text: str) -> None:
    """A line of leakscope's, past whatever the script has made of `sys.stderr`."""
    os.write(2, f"leakscope: {text}\n".encode())


def what_was_not_heard(clock: StepClock | None) -> tuple[str, ...]:
    """Sentences for a run without a step: what the script does that ends none, and what to give to --step-function."""
    if clock is None:
        return ()
    sentences = []
    named = clock.calls.step_functions()
    what = f"try --step-function {' or '.join(named[:_MOST_NAMED])}" if named else (
        "put what one step does into a function of its own and name it with --step-function"
    )  # fmt: skip
    if calls := _own_calls():
        sentences.append(
            f"calls of a module that defines __call__ itself are not seen: try --step-function {' or '.join(calls)}"
        )
    if clock.backwards:
        sentences.append(
            f"{clock.backwards} backward passes ran while an optimizer was alive that never stepped, as where "
            f"torch.autograd.grad is used: {what}"
        )
    return tuple(sentences)


def _own_calls() -> list[str]:
    """Qualified names of the `__call__` of modules that have one of their own, the script's first; runs no code of
    theirs.
    """
    waiting, leaves = [torch.nn.Module], []
    while waiting:
        kind = waiting.pop()
        below = type.__subclasses__(kind)
        waiting += below
        if not below:
            leaves.append(kind)
    found = []
    for kind in leaves:
        owner = next((each for each in mro(kind) if "__call__" in type_dict(each)), torch.nn.Module)
        module = type_dict(owner).get("__module__")
        if owner is not torch.nn.Module and type(module) is str and not module.startswith("torch."):
            name = f"{type.__dict__['__qualname__'].__get__(owner)}.__call__"
            found.append((module != "__main__", name if module == "__main__" else f"{module}.{name}"))
    return [name for _, name in sorted(set(found))][:_MOST_NAMED]


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
