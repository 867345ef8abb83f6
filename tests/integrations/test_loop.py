"""`LeakLoop` finds what a torchtitan-style trainer retains and logs it with the trainer's logger."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from leakscope.integrations.loop import LeakLoop


class Logger:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, Any]]] = []

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self.logged.append((step, metrics))


class MetricsProcessor:
    def __init__(self) -> None:
        self.logger = Logger()


class Trainer:
    def __init__(self, leaks: bool, raises_at: int = 0) -> None:
        self.model_parts = [torch.nn.Linear(64, 64)]
        self.optimizers = torch.optim.SGD(self.model_parts[0].parameters(), 0.1)
        self.metrics_processor = MetricsProcessor()
        self.step, self.leaks, self.raises_at = 0, leaks, raises_at
        self.validated: list[torch.Tensor] = []

    def train_step(self, batches: Iterator[torch.Tensor]) -> None:
        self.optimizers.zero_grad()
        self.model_parts[0](next(batches)).sum().backward()
        self.optimizers.step()
        if self.leaks:
            self.validated.append(self.model_parts[0](next(batches)).mean())
        if self.step == self.raises_at:
            raise ZeroDivisionError

    def train(self) -> None:
        batches = iter(lambda: torch.randn(512, 64), None)
        while self.step < 10:
            self.step += 1
            self.train_step(batches)


def test_a_leak_is_named_from_the_trainer_and_logged_by_its_logger() -> None:
    trainer = Trainer(leaks=True)
    with LeakLoop(trainer, budget=1.0) as leaks:
        trainer.train()
    assert leaks.findings is not None
    [finding] = leaks.findings.findings
    assert finding.cut is not None and finding.cut.written == "trainer.validated", str(leaks.findings)
    [(step, values)] = trainer.metrics_processor.logger.logged
    assert step == 10 and values["leakscope/leaks"] == 1 and values["leakscope/leaked_bytes"] > 512 * 64 * 4 * 5
    assert all(isinstance(value, float) for value in values.values())


def test_a_training_too_short_to_judge_is_a_warning_without_figures(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(leaks=True)
    trainer.step = 7
    with LeakLoop(trainer, budget=1.0):
        trainer.train()
    assert trainer.metrics_processor.logger.logged == []
    [record] = [record for record in caplog.records if record.name == "leakscope"]
    assert record.levelno == logging.WARNING and "INCONCLUSIVE" in record.getMessage()


def test_the_trainer_is_unchanged_and_released() -> None:
    trainer, logged = Trainer(leaks=False), []
    before = set(vars(trainer))
    with LeakLoop(trainer, budget=1.0, log=lambda values, step: logged.append((step, values))) as leaks:
        trainer.train()
    assert leaks.findings is not None and leaks.findings.verdict == "clean"
    assert set(vars(trainer)) == before and logged[0][0] == 10
    assert trainer.metrics_processor.logger.logged == []
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None


def test_an_error_of_the_training_is_raised_and_the_recording_judged(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(leaks=True, raises_at=9)
    with pytest.raises(ZeroDivisionError), caplog.at_level(logging.INFO, "leakscope"), LeakLoop(trainer, budget=1.0):
        trainer.train()
    assert "trainer.validated" in caplog.text and "train_step" not in vars(trainer)


def test_a_logger_that_fails_fails_no_training(caplog: pytest.LogCaptureFixture) -> None:
    def log(values: dict[str, float], step: int) -> None:
        raise OSError("disk full")

    trainer = Trainer(leaks=False)
    with LeakLoop(trainer, log=log):
        trainer.train()
    assert "disk full" in caplog.text and trainer.step == 10


def test_a_method_of_another_name_and_one_that_is_not_there() -> None:
    class Loop:
        def __init__(self) -> None:
            self.advance = lambda: None  # on the object itself, as a compiled one is

        def run(self) -> None:
            for _ in range(5):
                self.advance()

    loop = Loop()
    own = loop.advance
    with LeakLoop(loop, "advance") as leaks:
        loop.run()
    assert leaks.findings is not None and len(leaks.findings.run.ranks[0].steps) == 5 and loop.advance is own
    with pytest.raises(AttributeError, match=r"Loop has no method train_step\(\)"):
        LeakLoop(loop)
