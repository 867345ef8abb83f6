"""Trainings that Lightning's Trainer runs."""

from __future__ import annotations

import sys
import weakref
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from leakscope.integrations.training import Watching

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The same Lightning under two names, each with classes of its own."""


def _callback_classes() -> tuple[type, ...]:
    """`Callback` of each Lightning that is imported; where none is yet, of the first that is installed."""
    imported = [name for name in _PACKAGES if name in sys.modules]
    installed = [name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None]
    if not installed:
        raise ImportError("LeakCallback is for the Trainer of Lightning: pip install lightning")
    return tuple(import_module(name).Callback for name in imported or installed[:1])


class LeakCallback(Watching, *_callback_classes()):  # type: ignore[misc]  # known once Lightning is
    """Watches what `fit` of a Trainer runs, and logs what leaks with the Trainer's own loggers.

        Trainer(..., callbacks=[LeakCallback()]).fit(model, loader)

    A step is one of the optimizer: batches whose gradients are accumulated count as one, and a validation belongs to
    the step that it comes before. Traces start at `trainer`, `trainer.model` and what else a Trainer has by a short
    name. When the training is over, `leakscope/leaks`, `leakscope/leaked_bytes` and `leakscope/bytes_per_step` go to
    every logger, and to those that take text a line on each leak as `leakscope/report`; the report itself goes to
    Python's logger `leakscope`. On several ranks each judges itself: the first one logs and tells its report, the
    others what leaks in them, in a line; with `output`, `leakscope report` tells of all of them.

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

    _steps = 0
    """The optimizer's, when the last one was seen to end."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to record."""
        self._steps = trainer.global_step
        weak = weakref.ref(trainer)

        def tell(values: dict[str, float | str]) -> None:
            if trainer := weak():
                _log(trainer, values)

        self._training.begin(_roots(trainer, pl_module), tell, aloud=trainer.is_global_zero)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """A step is over, where the batch was the last of those whose gradients it takes."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self._training.step()

    def on_train_end(self, *_: Any) -> None:
        """Judge what was recorded, and log it."""
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """The training raised: judge what was recorded until then."""
        self._training.end(exception)

    def teardown(self, *_: Any, **__: Any) -> None:
        """A training that ended by another way is over as well."""
        self._training.end()


def _roots(trainer: Any, module: Any) -> dict[str, object]:
    """What a Trainer has by a short name that leads to it through attributes of its own, which nobody writes."""
    roots: dict[str, object] = {
        "trainer": trainer,
        "trainer.strategy": trainer.strategy,
        "trainer.model" if trainer.model is module else "trainer.lightning_module": module,
    }
    if trainer.datamodule is not None:
        roots["trainer.datamodule"] = trainer.datamodule
    return roots | {f"trainer.optimizers[{k}]": optimizer for k, optimizer in enumerate(trainer.optimizers)}


def _log(trainer: Any, values: dict[str, float | str]) -> None:
    """Numbers go to all loggers; text in the way that each has for it, or not at all."""
    numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if numbers:
            logger.log_metrics(numbers, step=trainer.global_step)
        for name, text in texts.items():
            if hasattr(logger, "log_text"):  # W&B
                logger.log_text(key=name, columns=[name], data=[[text]])
            elif hasattr(logger.experiment, "add_text"):  # TensorBoard
                logger.experiment.add_text(name, text.replace("\n", "  \n"), trainer.global_step)
        logger.save()
