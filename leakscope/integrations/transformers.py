"""Training with the Trainer of Hugging Face's transformers."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from leakscope.integrations.training import Watching

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise ImportError("LeakCallback is for the Trainer of transformers: pip install 'transformers[torch]'") from error


class LeakCallback(Watching, TrainerCallback):  # type: ignore[misc]  # untyped where it is not installed
    """Records the training of a Trainer, and logs its leaks where the Trainer logs its loss.

        Trainer(..., callbacks=[LeakCallback()]).train()

    A step ends with `on_step_end`, that is with each optimizer step. Reference paths begin with `trainer`. At the end
    of training, the Trainer logs `leakscope/leaks`, `leakscope/leaked_bytes`, `leakscope/bytes_per_step` and, if there
    are leaks, one line for each as the text `leakscope/report`; the report goes to the Python logger `leakscope`. Each
    process judges itself, and the first one logs.

    Args:
        output: Folder of the run, which also gets `findings.json` and `report.html`; None keeps nothing on disk.
        warmup: Steps to skip before growth is measured.
        budget: Maximum share of the training time spent on heap snapshots; 0.02 is 2%.
        min_bytes: Minimum growth per step to report as a leak, in bytes or like `"64 KiB"`; None to decide by kind and
            `horizon`.
        horizon: Report growth of plain data as a leak if it would reach 1% of memory within that many steps.

    Raises:
        ValueError: `min_bytes` is not a size, `warmup` is negative, or `budget` is not between 0 and 1.

    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Start recording."""
        trainer = _trainer_of(state)
        if trainer is None:  # the report goes to the Python logger, and reference paths begin at the model
            self._training.begin({"model": given["model"]}, lambda _: None, aloud=state.is_world_process_zero)
            return
        # its loggers close when the training ends: the findings are needed before
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop(callbacks.index(self)))
        weak = weakref.ref(trainer)

        def log(values: dict[str, float | str]) -> None:
            if trainer := weak():
                trainer.log(values)

        # a Trainer has several names for the model
        roots = {"trainer": trainer, "trainer.model": given["model"]}
        self._training.begin(roots, log, aloud=state.is_world_process_zero)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """End a step."""
        self._training.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Judge the recording, and log the result."""
        self._training.end()


def _trainer_of(state: Any) -> Trainer | None:
    """The Trainer with this state; callbacks do not get the Trainer itself (transformers/trainer_callback.py)."""
    for holder in gc.get_referrers(state):
        owners = gc.get_referrers(holder) if type(holder) is dict else [holder]
        for owner in owners:
            if issubclass(type(owner), Trainer):
                trainer: Trainer = owner
                return trainer
    return None
