"""Processes started by accelerate and Lightning give the same findings as `--ranks`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integrations

ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
net = torch.nn.Linear(256, 256)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
kept = []
for step in range(12):
    out = net(torch.ones(512, 256)).relu()
    kept.append(out)
    accelerator.backward(out.sum())
    optimizer.step()
    optimizer.zero_grad()
"""
LIGHTNING = """
import torch, lightning
from torch.utils.data import DataLoader, TensorDataset
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(256, 256)
        self.kept = []
    def training_step(self, batch, index):
        out = self.net(batch[0]).relu()
        self.kept.append(out)
        return out.sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
if __name__ == "__main__":
    data = DataLoader(TensorDataset(torch.ones(12 * 2 * 512, 256)), batch_size=512)
    lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
    ).fit(Net(), data)
"""


def found(folder: Path, *words: str) -> list[Any]:
    """Verdict, and rule, holder, bytes and ranks of each leak, of two ranks that came to their end."""
    command = [sys.executable, "-m", "leakscope", "run", "-q", "--no-lifetimes", "-o", "run", *words]
    folder.mkdir()
    subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=200)
    data = json.loads((folder / "run" / "findings.json").read_text())
    ended = {rank: (end["kind"], end["steps"]) for rank, end in data["run"]["ended"].items()}
    assert ended == {"0": ("finished", 12), "1": ("finished", 12)}
    leaks = [finding for finding in data["findings"] if finding["severity"] == "leak"]
    return [data["verdict"], *((f["rule"], f["fingerprint"], f["retained_bytes"], f["ranks"]) for f in leaks)]


def test_of_accelerate_launch(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    script = tmp_path / "train.py"
    script.write_text(ACCELERATE)
    words = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    words += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    expected = found(tmp_path / "ranks", "--ranks", "2", str(script))
    assert found(tmp_path / "followed", "-m", "accelerate.commands.launch", *words, str(script)) == expected
    assert expected[0] == "leaks"


def test_of_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    script = tmp_path / "train.py"
    script.write_text(LIGHTNING)
    expected = found(tmp_path / "ranks", "--ranks", "2", str(script))
    assert found(tmp_path / "followed", str(script)) == expected
    assert expected[0] == "leaks"
