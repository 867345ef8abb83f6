"""Training loops written with Hugging Face's accelerate."""

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
    """Watches the training of an Accelerator, and logs what leaks with its other trackers.

        accelerator = Accelerator(log_with="tensorboard")
        leaks = LeakTracker(accelerator)

    It is a tracker of the accelerator's, and ends with `accelerator.end_training()`, which every process calls: each
    judges itself, and the main process logs `leakscope/leaks`, `leakscope/leaked_bytes`, `leakscope/bytes_per_step`
    and, where something leaks, a line on each leak as the text `leakscope/report`. Python's logger `leakscope` gets the
    main process's report, and a line on each leak of the others. A step is one of the first optimizer that takes one,
    so that accumulated gradients count as one; without an optimizer of torch's, call `leaks.step()`.

    Args:
        accelerator: the Accelerator, before or after `prepare` and `init_trackers`.
        output: the run's folder, shared by all processes; without it nothing stays on disk.
        warmup: steps that are not judged.
        budget: share of the training's time that looking may take; 0.02 is 2%.
        min_bytes: growth a step, in bytes or like `"64 KiB"`, below which it is a note; None where its kind and size
            decide.
        horizon: steps over which growth is projected; plain data that reaches 1% of the memory there is within them is
            a leak.

    Raises:
        ValueError: a size that is none, a negative warmup, or a budget that is no share between 0 and 1.

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

        def tell(values: dict[str, float | str]) -> None:
            if accelerator := weak():
                # a step before the last one that was logged would be dropped by W&B
                accelerator.log(values, step=self._logged)

        # ahead of those that are added later and finish later
        accelerator.trackers.insert(0, self)
        self._training.begin({}, tell, aloud=accelerator.is_main_process)
        self._hook: Any = register_optimizer_step_post_hook(self._optimizer_stepped)

    @property
    def tracker(self) -> Any:
        """What `accelerator.get_tracker("leakscope", unwrap=True)` gives: the tracker itself."""
        return self

    def step(self) -> None:
        """A step is over; from now on no optimizer ends one."""
        self._forget_optimizers()
        self._training.step()

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:  # noqa: ARG002
        """Note the number of the step that the other trackers log."""
        self._logged = step

    def finish(self) -> None:
        """Judge what was recorded, and log it."""
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
