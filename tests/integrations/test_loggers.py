"""TensorBoard and W&B loggers receive the findings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("wandb")
import wandb
from accelerate import Accelerator
from integrations.small_llama import train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leakscope.integrations.accelerate import LeakTracker
from leakscope.integrations.transformers import LeakCallback

pytestmark = pytest.mark.integrations


@pytest.fixture(autouse=True)
def process_as_found() -> None:
    """W&B leaves threads and hooks, offline too."""


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    yield
    wandb.finish()


def board_in(folder: Path) -> Any:
    """All is in one file: the writer was open still."""
    [events] = {path for path in folder.rglob("events.out.tfevents*") if b"leakscope" in path.read_bytes()}
    return EventAccumulator(str(events)).Reload()


def test_those_of_a_trainer(tmp_path: Path) -> None:
    trainer = train(tmp_path, "loss", LeakCallback(budget=1.0, min_bytes="1 KiB"), report_to=["tensorboard", "wandb"])
    last = trainer.state.log_history[-1]
    assert last["leakscope/leaks"] == 1 and "trainer.kept" in last["leakscope/report"] and last["step"] == 12
    board = board_in(tmp_path)
    assert [event.step for event in board.Scalars("train/loss")] == [4, 8, 12]
    assert [event.value for event in board.Scalars("train/leakscope/leaks")] == [1.0]
    [text] = board.Tensors("train/leakscope/report/text_summary")
    assert b"trainer.kept" in text.tensor_proto.string_val[0]
    assert wandb.run.summary["train/leakscope/leaks"] == 1
    assert "trainer.kept" in wandb.run.summary["train/leakscope/report"]


def test_the_trackers_of_an_accelerator(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with=["tensorboard", "wandb"], project_dir=tmp_path)
    leaks = LeakTracker(accelerator, budget=1.0)
    accelerator.init_trackers("run")
    model = torch.nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    kept = []
    for number in range(10):
        loss = model(torch.randn(512, 64)).mean()
        accelerator.backward(loss)
        optimizer.step()
        kept.append(model(torch.randn(512, 64)).mean())
        accelerator.log({"loss": loss.item()}, step=10 * number)
    accelerator.end_training()
    assert leaks.findings is not None and leaks.findings.verdict == "leaks"
    board = board_in(tmp_path)
    assert [(event.step, event.value) for event in board.Scalars("leakscope/leaks")] == [(90, 1.0)]
    [text] = board.Tensors("leakscope/report/text_summary")
    assert b"kept in test_the_trackers_of_an_accelerator()" in text.tensor_proto.string_val[0]
    # W&B goes on writing where the first run of a process was
    runs = [path.read_bytes() for path in tmp_path.parent.rglob("*.wandb")]
    assert any(b"leakscope/leaks" in run and b"kept in test_the_trackers" in run for run in runs)
