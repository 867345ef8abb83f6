"""Trainings that the Trainer of Hugging Face's transformers runs."""

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
    """Watches a Trainer's training, and logs what leaks where the Trainer logs its loss.

        Trainer(..., callbacks=[LeakCallback()]).train()

    A step is what ends with `on_step_end`: with gradient accumulation one step of the optimizer. Traces start at
    `trainer`. When the training is over, the Trainer logs `leakscope/leaks`, `leakscope/leaked_bytes`,
    `leakscope/bytes_per_step` and, where something leaks, a line on each leak as the text `leakscope/report`; the
    report itself goes to Python's logger `leakscope`. Of several processes each judges itself, and the first one logs.

    Args:
        output: the run's folder, which also gets `findings.json` and `report.html`; without it nothing stays on disk.
        warmup: steps that are not judged.
        budget: share of the training's time that looking may take; 0.02 is 2%.
        min_bytes: growth a step, in bytes or like `"64 KiB"`, below which it is a note; None where its kind and size
            decide.
        horizon: steps over which growth is projected; plain data that reaches 1% of the memory there is within them is
            a leak.

    Raises:
        ValueError: a size that is none, a negative warmup, or a budget that is no share between 0 and 1.

    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Start to record."""
        trainer = _trainer_of(state)
        if trainer is None:  # the report is in Python's log, and traces begin further down
            self._training.begin({"model": given["model"]}, lambda _: None, aloud=state.is_world_process_zero)
            return
        # its loggers close when the training ends: the findings have to be there before
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop(callbacks.index(self)))
        weak = weakref.ref(trainer)

        def tell(values: dict[str, float | str]) -> None:
            if trainer := weak():
                trainer.log(values)

        # a Trainer has the model under more names than one
        roots = {"trainer": trainer, "trainer.model": given["model"]}
        self._training.begin(roots, tell, aloud=state.is_world_process_zero)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """A step is over."""
        self._training.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Judge what was recorded, and log it."""
        self._training.end()


def _trainer_of(state: Any) -> Trainer | None:
    """The Trainer that has this state: no callback is handed the Trainer (transformers/trainer_callback.py)."""
    for holder in gc.get_referrers(state):
        owners = gc.get_referrers(holder) if type(holder) is dict else [holder]
        for owner in owners:
            if issubclass(type(owner), Trainer):
                trainer: Trainer = owner
                return trainer
    return None
