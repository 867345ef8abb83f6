"""`leakscope fix` repeats a package with edited copies, keeps what is proved, and says why the rest was refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FILES = {
    "job/__init__.py": "",
    "job/history.py": """
class History:
    def __init__(self):
        self.losses = []
        self.outputs = []

    def add(self, loss, output):
        self.losses.append(loss)
        self.outputs.append(output)

    def mean(self):
        return sum(float(loss) for loss in self.losses) / len(self.losses)

    def last(self):
        return self.outputs[-1].shape
""",
    "job/train.py": """
import os
from pathlib import Path

import torch
from job.history import History

torch.manual_seed(0)
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
history = History()
for step in range(12):
    output = net(torch.randn(32, 64))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.add(loss, output)
    torch.save(net.state_dict(), "last.pt")
    with open("log.txt", "a") as log:
        log.write(f"{step}\\n")
print(f"{history.mean():.6f}", history.last(), os.environ["DATA_ROOT"])
""",
}


def leakscope(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leakscope", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


def plain(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "job.train"], cwd=folder, capture_output=True, text=True, timeout=200, check=True
    )
    return done.stdout


@pytest.mark.process
def test_two_leaks_of_a_package_are_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_ROOT", "somewhere")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert leakscope(tmp_path, "run", "-q", "-o", "run", "-m", "job.train").returncode == 23
    written = {name: (tmp_path / name).read_bytes() for name in ("last.pt", "log.txt")}
    monkeypatch.delenv("DATA_ROOT")  # it is as recorded

    fixed = leakscope(tmp_path, "fix", "run", "--json")
    found: dict[str, Any] = json.loads(fixed.stdout)
    assert fixed.returncode == 0, fixed.stderr
    fixes = [finding["fix"] for finding in found["findings"] if finding["severity"] == "leak"]
    assert [fix["status"] for fix in fixes] == ["verified", "verified"]
    assert all(fix["title"] and fix["diff"] for fix in fixes)
    assert found["fix"]["deterministic"]
    assert found["fix"]["compared_steps"] == 12
    assert json.loads((tmp_path / "run" / "findings.json").read_text()) == found
    assert "Verified fix" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert {name: (tmp_path / name).read_bytes() for name in written} == written
    assert all((tmp_path / name).read_text(encoding="utf-8") == text for name, text in FILES.items())

    subprocess.run(["git", "apply", "run/fix.patch"], cwd=tmp_path, check=True)
    monkeypatch.setenv("DATA_ROOT", "somewhere")
    patched = plain(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert plain(tmp_path) == patched


UNREPEATABLE = {
    "reads input": ("input()", "EOFError"),
    "changes its files": ("import os; os.makedirs('made')", "FileExistsError"),
}


@pytest.mark.process
@pytest.mark.parametrize("name", UNREPEATABLE)
def test_a_run_that_cannot_be_repeated_is_said_to_be(tmp_path: Path, name: str) -> None:
    line, error = UNREPEATABLE[name]
    text = FILES["job/train.py"].replace("history = History()", f"history = History()\n{line}")
    (tmp_path / "job").mkdir()
    for file, content in {**FILES, "job/train.py": text.replace('os.environ["DATA_ROOT"]', '""')}.items():
        (tmp_path / file).write_text(content, encoding="utf-8")
    command = [sys.executable, "-m", "leakscope", "run", "-q", "-o", "run", "-m", "job.train"]
    subprocess.run(command, cwd=tmp_path, input=b"yes\n", capture_output=True, timeout=500, check=False)
    refused = leakscope(tmp_path, "fix", "run")
    assert refused.returncode == 2
    assert error in refused.stderr
    assert "Traceback" not in refused.stderr
