"""Training loops with Hugging Face's accelerate."""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from leakscope.integrations.training import Watching
from leakscope.options import Options
from leakscope.originals import Path

try:
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise ImportError("LeakTracker is for accelerate's loops: pip install accelerate") from error


class LeakTracker(Watching, GeneralTracker):  # type: ignore[misc]  # untyped where it is not installed
    """Records the training of an Accelerator, and logs its leaks with the other trackers.

        accelerator = Accelerator(log_with="tensorboard")
        leaks = LeakTracker(accelerator)

    It is a tracker of the accelerator, and ends with `accelerator.end_training()`, which every process calls. Each
    process judges itself; the main process logs `leakscope/leaks`, `leakscope/leaked_bytes`,
    `leakscope/bytes_per_step` and, if there are leaks, one line for each as the text `leakscope/report`. The Python
    logger `leakscope` gets the report of the main process and one line for each leak of the others. A step ends with
    each step of the first optimizer that takes one; without a torch optimizer, call `leaks.step()`.

    Args:
        accelerator: The Accelerator, before or after `prepare` and `init_trackers`.
        output: Folder of the run, shared by all processes; None keeps nothing on disk.
        warmup: Steps to skip before growth is measured.
        budget: Maximum share of the training time spent on heap snapshots; 0.02 is 2%.
        min_bytes: Minimum growth per step to report as a leak, in bytes or like `"64 KiB"`; None to decide by kind and
            `horizon`.
        horizon: Report growth of plain data as a leak if it would reach 1% of memory within that many steps.

    Raises:
        ValueError: `min_bytes` is not a size, `warmup` is negative, or `budget` is not between 0 and 1.

    """

    name = "leakscope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(
        self,
        accelerator: Any,
        output: str | Path | None = None,
        *,
        warmup: int = Options.warmup,
        budget: float = Options.budget,
        min_bytes: int | str | None = Options.min_bytes,
        horizon: int = Options.horizon,
    ) -> None:
        GeneralTracker.__init__(self)
        Watching.__init__(self, output, warmup=warmup, budget=budget, min_bytes=min_bytes, horizon=horizon)
        self._clock: weakref.ref[Any] | None = None
        self._logged: int | None = None
        weak = weakref.ref(accelerator)

        def log(values: dict[str, float | str]) -> None:
            if accelerator := weak():
                # W&B would drop a step before the last logged one
                accelerator.log(values, step=self._logged)

        # before those that are added later and finish later
        accelerator.trackers.insert(0, self)
        self._training.begin({}, log, aloud=accelerator.is_main_process)
        self._hook: Any = register_optimizer_step_post_hook(self._optimizer_stepped)

    @property
    def tracker(self) -> Any:
        """The result of `accelerator.get_tracker("leakscope", unwrap=True)`: the tracker itself."""
        return self

    def step(self) -> None:
        """End a step; from now on no optimizer does."""
        self._forget_optimizers()
        self._training.step()

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:  # noqa: ARG002
        """Note the number of the step that the other trackers log."""
        self._logged = step

    def finish(self) -> None:
        """Judge the recording, and log the result."""
        self._forget_optimizers()
        self._training.end()

    def _optimizer_stepped(self, optimizer: Any, *_: Any) -> None:
        if self._clock is None or self._clock() is None:
            self._clock = weakref.ref(optimizer)
        if self._clock() is optimizer:
            self._training.step()

    def _forget_optimizers(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
