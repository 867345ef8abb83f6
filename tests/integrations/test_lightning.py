"""The Lightning callback finds what a module retains and reports it to the trainer's loggers."""

from __future__ import annotations

import csv
import json
import logging
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning.pytorch")
import lightning.pytorch as pl
import pytorch_lightning
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from torchmetrics.classification import BinaryAUROC

from leakscope.integrations.lightning import LeakCallback
from leakscope.report.finding_text import advice

pytestmark = pytest.mark.integrations


class Net(pl.LightningModule):
    """Leaks in as many ways as it is told to."""

    def __init__(self, *leaks: str, thresholds: int | None = None) -> None:
        super().__init__()
        self.leaks = leaks
        self.layer = torch.nn.Linear(512, 1)
        self.metrics = torch.nn.ModuleDict({"auroc": BinaryAUROC(thresholds=thresholds)})
        self.losses: list[torch.Tensor] = []
        self.validated = 0

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        inputs, targets = batch
        output = self.layer(inputs)[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output, targets.float())
        if "metric" in self.leaks:
            self.metrics["auroc"].update(output.detach().sigmoid(), targets)
        if "graph" in self.leaks:
            self.losses.append(loss)
        if "tensors" in self.leaks:
            self.losses.append(inputs.clone())
        if "raises" in self.leaks and self.trainer.global_step == 20:
            raise ZeroDivisionError
        self.log("loss", loss)
        return loss

    def validation_step(self, _batch: Any, _: int) -> None:
        self.validated += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def loader(batches: int = 24) -> torch.utils.data.DataLoader[Any]:
    inputs, targets = torch.randn(64 * batches, 512), torch.randint(0, 2, (64 * batches,))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=64)


def fit(net: Any, callback: LeakCallback, module: Any = pl, **changes: Any) -> Any:
    quiet = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"), False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = module.Trainer(accelerator="cpu", max_epochs=1, callbacks=[callback], **{**quiet, **changes})
        trainer.fit(net, loader(), **({"val_dataloaders": loader(2)} if "val_check_interval" in changes else {}))
    return trainer


def leaks_in(*kinds: str, **changes: Any) -> Any:
    callback = LeakCallback(budget=1.0, min_bytes=0)
    fit(Net(*kinds), callback, **changes)
    assert callback.findings is not None
    return callback.findings


@pytest.mark.parametrize(
    ("kind", "cut", "word"),
    [
        ("metric", "trainer.model.metrics['auroc'].", "thresholds=100"),
        ("graph", "trainer.model.losses", "on_epoch=True"),
        ("tensors", "trainer.model.losses", "append value.detach() and clear"),
    ],
)
def test_what_a_module_keeps_is_found_and_told_in_lightning_s_words(kind: str, cut: str, word: str) -> None:
    findings = leaks_in(kind)
    assert findings.verdict == "leaks"
    for finding in findings.findings:
        assert finding.cut is not None and finding.cut.written.startswith(cut)
        assert word in advice(finding)


def test_a_module_that_took_the_advice_is_clean() -> None:
    callback = LeakCallback(budget=1.0, min_bytes=0)
    fit(Net("metric", thresholds=10), callback)
    assert callback.findings is not None and callback.findings.verdict == "clean", str(callback.findings)


def test_gradients_accumulated_make_one_step_and_a_validation_none() -> None:
    callback, net = LeakCallback(budget=1.0), Net()
    fit(net, callback, accumulate_grad_batches=3, val_check_interval=6)
    assert callback.findings is not None and net.validated
    assert len(callback.findings.run.ranks[0].steps) == 8


def test_the_loggers_of_the_trainer_tell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb = WandbLogger(save_dir=tmp_path, offline=True)
    board, table = TensorBoardLogger(tmp_path, name="board"), CSVLogger(tmp_path, name="table")
    leaks_in("graph", logger=[board, table, wandb], log_every_n_steps=5)
    reported = EventAccumulator(board.log_dir).Reload()
    assert reported.Scalars("leakscope/leaks")[0].value == 1
    [text] = reported.Tensors("leakscope/report/text_summary")
    assert b"trainer.model.losses" in text.tensor_proto.string_val[0]
    rows = list(csv.DictReader((Path(table.log_dir) / "metrics.csv").open()))
    assert [row["leakscope/leaks"] for row in rows if row["leakscope/leaks"]] == ["1.0"] and len(rows) > 1
    assert wandb.experiment.summary["leakscope/leaks"] == 1
    [written] = tmp_path.rglob("report_*.table.json")
    assert "trainer.model.losses" in json.loads(written.read_text())["data"][0][0]
    wandb.experiment.finish()


def test_a_training_that_raises_raises_its_own_error_and_is_judged(caplog: pytest.LogCaptureFixture) -> None:
    callback = LeakCallback(budget=1.0, min_bytes=0)
    with caplog.at_level(logging.INFO, "leakscope"), pytest.raises(ZeroDivisionError):
        fit(Net("graph", "raises"), callback)
    assert callback.findings is not None and callback.findings.verdict == "leaks"
    [reported] = [record for record in caplog.records if record.name == "leakscope"]
    assert "trainer.model.losses" in reported.getMessage()


def test_an_error_of_ours_is_a_warning_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("")
    callback = LeakCallback(tmp_path / "run")
    trainer = fit(Net(), callback)
    assert trainer.state.finished and callback.findings is None
    assert "this training is not recorded" in caplog.text


def test_it_is_a_callback_of_either_lightning() -> None:
    class Older(pytorch_lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.kept = torch.nn.Linear(512, 1), []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = self.layer(batch[0]).mean()
            self.kept.append(loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    callback = LeakCallback(budget=1.0, min_bytes=0)
    assert isinstance(callback, pl.Callback) and isinstance(callback, pytorch_lightning.Callback)
    fit(Older(), callback, pytorch_lightning)
    assert callback.findings is not None
    [finding] = callback.findings.findings
    assert finding.cut is not None and finding.cut.written == "trainer.model.kept" and "on_epoch" in advice(finding)


DISTRIBUTED = """
    import logging, sys, warnings
    warnings.simplefilter("ignore")
    logging.basicConfig(format="%(name)s: %(message)s", stream=sys.stdout)
    from test_lightning import LeakCallback, Net, fit

    if __name__ == "__main__":
        callback = LeakCallback(sys.argv[1], budget=1.0, min_bytes=0)
        trainer = fit(Net("graph"), callback, strategy="ddp", devices=2)
        [finding] = callback.findings.findings
        with open(f"{sys.argv[1]}/cut_{trainer.global_rank}", "w") as file:
            file.write(finding.cut.written)
"""


def test_each_rank_of_ddp_records_itself_and_one_tells(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(DISTRIBUTED))
    path = {"PYTHONPATH": f"{Path(__file__).parent}:{Path(sys.modules['leakscope'].__file__ or '').parents[1]}"}
    command = [sys.executable, str(script), str(tmp_path / "run")]

    ran = subprocess.run(command, env={**os.environ, **path}, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {(tmp_path / "run" / f"cut_{rank}").read_text() for rank in (0, 1)} == {"trainer.lightning_module.losses"}
    assert ran.stdout.count("leakscope: Verdict") == 1 and "leakscope: rank 1: trainer.lightning_module" in ran.stdout
    assert sorted(folder.name for folder in (tmp_path / "run").glob("rank_*")) == ["rank_0000", "rank_0001"]
