"""Trainings that Lightning's Trainer runs."""

from __future__ import annotations

import sys
import weakref
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from leakscope.integrations.training import Watching

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""Two names of Lightning, each with its own classes."""


def _callback_classes() -> tuple[type, ...]:
    """`Callback` of each imported Lightning; if none is imported, of the first installed one."""
    imported = [name for name in _PACKAGES if name in sys.modules]
    installed = [name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None]
    if not installed:
        raise ImportError("LeakCallback is for the Trainer of Lightning: pip install lightning")
    return tuple(import_module(name).Callback for name in imported or installed[:1])


class LeakCallback(Watching, *_callback_classes()):  # type: ignore[misc]  # known once Lightning is
    """Records `Trainer.fit`, and logs its leaks with the loggers of the Trainer.

        Trainer(..., callbacks=[LeakCallback()]).fit(model, loader)

    A step ends with each optimizer step; a validation belongs to the step after it. Reference paths begin with
    `trainer`, `trainer.model` and other short names. At the end of training, `leakscope/leaks`,
    `leakscope/leaked_bytes` and `leakscope/bytes_per_step` go to every logger, and one line for each leak as
    `leakscope/report` to those that take text; the report goes to the Python logger `leakscope`. Each rank judges
    itself: the first logs its report, the others one line for each leak. With `output`, `leakscope report` combines
    all ranks.

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

    _steps = 0
    """Optimizer steps at the end of the last step."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start recording."""
        self._steps = trainer.global_step
        weak = weakref.ref(trainer)

        def log(values: dict[str, float | str]) -> None:
            if trainer := weak():
                _log(trainer, values)

        self._training.begin(_roots(trainer, pl_module), log, aloud=trainer.is_global_zero)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """End a step, unless gradients are still being accumulated."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self._training.step()

    def on_train_end(self, *_: Any) -> None:
        """Judge the recording, and log the result."""
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Judge the recording of a training that raised."""
        self._training.end(exception)

    def teardown(self, *_: Any, **__: Any) -> None:
        """End a training that ended in another way."""
        self._training.end()


def _roots(trainer: Any, module: Any) -> dict[str, object]:
    """Objects that users know by a short name, although the path to them leads through private attributes."""
    roots: dict[str, object] = {
        "trainer": trainer,
        "trainer.strategy": trainer.strategy,
        "trainer.model" if trainer.model is module else "trainer.lightning_module": module,
    }
    if trainer.datamodule is not None:
        roots["trainer.datamodule"] = trainer.datamodule
    return roots | {f"trainer.optimizers[{k}]": optimizer for k, optimizer in enumerate(trainer.optimizers)}


def _log(trainer: Any, values: dict[str, float | str]) -> None:
    """Log numbers with all loggers, and text with those that take it."""
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
