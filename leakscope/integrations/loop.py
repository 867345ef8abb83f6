"""Training loops in a class, such as torchtitan's Trainer."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from leakscope.integrations.training import Watching
from leakscope.options import Options
from leakscope.originals import Path
from leakscope.profiler.loop import rank_and_world

Log = Callable[[dict[str, float], int], object]
"""Called with figures by name and the number of the step, like the loggers of torchtitan."""


class LeakLoop(Watching):
    """Records the training in a `with` block; each call of one method of the trainer is a step.

        with LeakLoop(trainer):
            trainer.train()

    The defaults fit torchtitan, whose Trainer has a `train_step` and a `metrics_processor.logger`: the figures
    `leakscope/leaks`, `leakscope/leaked_bytes` and `leakscope/bytes_per_step` are logged at the end of the block.
    Reference paths begin with `trainer`.

    Args:
        trainer: The object whose method runs a step; held weakly.
        step: Name of the method.
        log: Called with the figures and the number of the last step; None for the logger of the `metrics_processor`.
        output: Folder of the run, which also gets `findings.json` and `report.html`; None keeps nothing on disk.
        warmup: Steps to skip before growth is measured.
        budget: Maximum share of the training time spent on heap snapshots; 0.02 is 2%.
        min_bytes: Minimum growth per step to report as a leak, in bytes or like `"64 KiB"`; None to decide by kind and
            `horizon`.
        horizon: Report growth of plain data as a leak if it would reach 1% of memory within that many steps.

    Raises:
        AttributeError: The trainer has no such method.
        ValueError: `min_bytes` is not a size, `warmup` is negative, or `budget` is not between 0 and 1.

    """

    def __init__(
        self,
        trainer: Any,
        step: str = "train_step",
        log: Log | None = None,
        output: str | Path | None = None,
        *,
        warmup: int = Options.warmup,
        budget: float = Options.budget,
        min_bytes: int | str | None = Options.min_bytes,
        horizon: int = Options.horizon,
    ) -> None:
        if not callable(getattr(trainer, step, None)):
            raise AttributeError(
                f"{type(trainer).__name__} has no method {step}(); name the one that runs a step: step="
            )
        super().__init__(output, warmup=warmup, budget=budget, min_bytes=min_bytes, horizon=horizon)
        self._trainer, self._step, self._log = weakref.ref(trainer), step, log
        self._steps = 0

    def __enter__(self) -> Self:
        trainer = self._trainer()
        assert trainer is not None, "the trainer no longer exists"
        self._own = self._step in vars(trainer)
        method = getattr(trainer, self._step)

        @functools.wraps(method)
        def stepped(*args: Any, **given: Any) -> Any:
            result = method(*args, **given)
            del args, given  # they may hold the batch
            self._steps += 1
            self._training.step()
            return result

        setattr(trainer, self._step, stepped)
        self._training.begin({"trainer": trainer}, self._log_values, aloud=rank_and_world()[0] == 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trainer = self._trainer()
        if trainer is not None:
            stepped = vars(trainer).pop(self._step)
            if self._own:
                setattr(trainer, self._step, stepped.__wrapped__)
        self._training.end(error)

    def _log_values(self, values: dict[str, float | str]) -> None:
        processor = getattr(self._trainer(), "metrics_processor", None)
        log = self._log or getattr(getattr(processor, "logger", None), "log", None)
        # torchtitan's logger takes numbers only; the report is in Python's log
        numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
        if log is not None and numbers:
            log(numbers, self._steps)
