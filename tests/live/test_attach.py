"""Does a process record itself that was not started under leakscope? CPython 3.14 would hand it the script to run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from leakscope_cli import main
from support.runs.asked import until

from leakscope.run.live import ask, last_answer
from leakscope.run.reader import read_run

Write = Callable[..., Path]

ALREADY = """
import os
{imported}
def step():
    net(torch.ones(4, 256)).sum().backward()
    optimizer.step()
    kept.append(torch.ones(50_000))
if "torch" in globals():
    net, kept = torch.nn.Linear(256, 256), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    for _ in range(5):
        step()
print("running", flush=True)
with open("handed") as handed:  # here and as it is: CPython/Python/ceval_gil.c, run_remote_debugger_source
    source = open(handed.read()).read()
namespace = {{}}
exec(compile(source, "<string>", "exec"), namespace, namespace)
del namespace
while "torch" in globals() and not os.path.exists("enough"):
    step()
if "torch" in globals():
    raise ValueError("the end")
"""


def attach(folder: Path, process: int, monkeypatch: pytest.MonkeyPatch) -> Result:
    def remote_exec(number: int, script: str) -> None:
        assert number == process
        (folder / "handed").write_text(script)

    monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    return CliRunner().invoke(main, ["attach", str(process), "-o", str(folder / "run")])


def started(folder: Path, script: Path) -> subprocess.Popen[str]:
    (folder / "handed").unlink(missing_ok=True)
    os.mkfifo(folder / "handed")
    process = subprocess.Popen(
        [sys.executable, script.name, "--lr", "0.1"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


@pytest.mark.process
def test_a_training_that_runs_already_is_recorded_from_there_on(
    script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started(tmp_path, script(ALREADY.format(imported="import torch")))
    told = attach(tmp_path, process.pid, monkeypatch)
    assert (told.exit_code, told.stderr) == (0, "")
    ask(tmp_path / "run")
    answer = until(lambda: last_answer(tmp_path / "run/rank_0000"))
    until(lambda: len(read_run(tmp_path / "run").ranks[0].looks) > 3)
    (tmp_path / "enough").touch()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1] == "ValueError: the end"
    assert "leakscope" not in said
    run = read_run(tmp_path / "run")
    assert run.command == ("train.py", "--lr", "0.1")
    (rank,) = run.ranks
    assert (rank.ended.how, rank.ended.error) == ("raised", "ValueError: the end")
    assert answer.occasion == "step"
    assert rank.clock is not None and rank.clock.name == "SGD"
    assert not rank.recording_ended


@pytest.mark.process
def test_a_process_without_torch_says_so_and_goes_on(
    script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started(tmp_path, script(ALREADY.format(imported="")))
    told = attach(tmp_path, process.pid, monkeypatch)
    assert told.exit_code == 2
    assert told.stderr == (
        f"leakscope: process {process.pid} does not record itself: it has not imported torch\n"
    )  # fmt: skip
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_where_python_cannot_be_asked_one_sentence_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    told = CliRunner().invoke(main, ["attach", "1"])
    assert told.exit_code == 2
    assert told.stderr.startswith("leakscope: attaching takes CPython 3.14 or later, and this is ")
    assert "`leakscope run train.py`" in told.stderr
    assert told.stderr.count("\n") == 1


def test_a_process_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "remote_exec", lambda *_: None, raising=False)
    told = CliRunner().invoke(main, ["attach", "4194305", "-o", str(tmp_path / "run")])
    assert (told.exit_code, told.stderr) == (2, "leakscope: there is no process 4194305\n")
    assert not (tmp_path / "run").exists()
