"""Command lines that are nearly right: what is understood, and what is answered with the command to write."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import leakscope_cli.run
import pytest
from click.testing import CliRunner, Result
from leakscope_cli import main
from leakscope_cli.script import Takes, missing_step_function, takes_arguments

from leakscope.launch import ExternalLauncher
from leakscope.options import Options
from leakscope.verdict import Returned

pytestmark = pytest.mark.unit

Typed = Callable[[str], tuple[Result, list[Options]]]

NO_ARGUMENTS = "import torch\nfor step in range(3):\n    torch.ones(3).sum()\n"
PARSES = "import argparse\nparser = argparse.ArgumentParser()\nparser.parse_args()\n"


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """The answer to a command line, and what a run would have been given, which is not started."""
    monkeypatch.chdir(tmp_path)
    started: list[Options] = []

    def record(options: Options, outside: ExternalLauncher | None = None, returned: Returned = Returned.OWN) -> int:
        started.append(options)
        return 2 if "args.py" in options.script else 0

    monkeypatch.setattr(leakscope_cli.run, "record_and_report", record)
    for name, text in (("train.py", NO_ARGUMENTS), ("args.py", PARSES), ("other.py", "import some_library\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "main.py").write_text("def train_step():\n    pass\n")
    (tmp_path / "nb.ipynb").write_text("{}")
    (tmp_path / "job.sh").write_text("python train.py")
    rank = tmp_path / "runs" / "one" / "rank_0003"
    rank.mkdir(parents=True)
    (rank.parent / "run.json").write_text("{}")
    (rank.parent / "report.html").write_text("")

    def answer(line: str) -> tuple[Result, list[Options]]:
        started.clear()
        return CliRunner().invoke(main, shlex.split(line), prog_name="leakscope"), list(started)

    return answer


ANSWERED = {
    "train.py --lr 1": "`leakscope run train.py --lr 1`",
    "package": "`leakscope run package`",
    "runs/one": "`leakscope report runs/one`",
    "raport": "`leakscope report`",
    "python train.py": "`leakscope run python train.py`",
    "-m package.main": "`leakscope run -m MODULE`",
    "--ranks 2 run train.py": "an option of `leakscope run`",
    "run python": "no script was given",
    "run python -u train.py": "`python -u -m leakscope run train.py`",
    "run --steps 3 python -X dev -m package.main 1": "`python -X dev -m leakscope run --steps 3 -m package.main 1`",
    "run python -c pass": "save the code",
    "run deepspeed --num_gpus 2 train.py": "`deepspeed --num_gpus 2 --no_python leakscope run -o FOLDER train.py`",
    "run -o out srun -n 2 python train.py": "`srun -n 2 leakscope run -o out train.py`",
    "run uv run train.py": "`uv run leakscope run train.py`",
    "run A=1 python train.py": "`A=1 leakscope run train.py`",
    "run bash job.sh": "bash is a program",
    "run job.sh": "job.sh is a shell script",
    "run nb.ipynb": "`jupyter nbconvert --to script nb.ipynb`",
    "run train.py --steps 12": "`leakscope run --steps 12 train.py`",
    "run train.py -q --min_bytes=1 5": "`leakscope run -q --min-bytes=1 train.py 5`",
    "run train.py --stepz 12": "`leakscope run --steps 12 train.py`",
    "run trian.py": "did you mean train.py?",
    "run train": "did you mean train.py?",
    "run ./gone/train.py": "no such folder: gone",
    "run package.main": "did you mean -m package.main?",
    "run package": "`leakscope run package/main.py`",
    "run runs/one": "`leakscope report runs/one`",
    "run --step-function trainstep package/main.py": "did you mean train_step?",
    "run --step-function trainstep -m package.main": "did you mean train_step?",
    "report runs/one/report.html": "`leakscope report runs/one`",
    "report runs/one/rank_0003": "`leakscope report runs/one --rank 3`",
    "report runs": "`leakscope report runs/one`",
    "report runs/on": "did you mean runs/one?",
    "report train.py": "`leakscope run train.py`",
    "compare runs/one/report.html runs/one": "name runs/one",
    "inspect runs": "`leakscope inspect runs/one`",
    "status runs": "`leakscope status runs/one`",
    "run --verbose train.py": "`leakscope report --verbose`",
    "run --html train.py": "--as html=FILE",
    "report --md": "--as markdown=FILE",
    "run --min_bytes 3 train.py": "use --min-bytes",
    "run --nproc-per-node 2 train.py": "use --ranks N",
    "run --out x train.py": "use --output DIR",
    "run --lr 3 train.py": "after the script",
    "report --step-function x": "an option of `leakscope run`",
    "report package": "`leakscope run train.py` records one",
    "report gone": "`leakscope run -o gone train.py` records one",
    "compare runs/one": "usage: leakscope compare [OPTIONS] BASE NEW",
    "run --steps 1.5 train.py": "'1.5' is not an integer",
}


def test_each_is_answered_in_one_sentence_that_says_what_to_write(typed: Typed) -> None:
    for line, sentence in ANSWERED.items():
        answer, started = typed(line)
        assert (answer.exit_code, answer.stdout, started) == (2, "", []), (line, answer.output)
        assert sentence in answer.stderr and answer.stderr.count("\n") == 1, (line, answer.stderr)


@pytest.mark.parametrize(
    ("line", "target", "arguments"),
    [
        ("run python train.py --lr 3", "train.py", ("--lr", "3")),
        ("run python3.11 -m package.main -x", "package.main", ("-x",)),
        ("run /usr/bin/python3 train.py", "train.py", ()),
        ("run -n 2 python train.py", "train.py", ()),
        ("run torchrun --standalone -m package.main", "torch.distributed.run", ("--standalone", "-m", "package.main")),
        ("run python -m torch.distributed.run train.py", "torch.distributed.run", ("train.py",)),
        ("run args.py --steps 12", "args.py", ("--steps", "12")),
        ("run train.py --lr 3 -x", "train.py", ("--lr", "3", "-x")),
        ("run -m package.main --steps 12", "package.main", ("--steps", "12")),
        ("run --step-function train_step package/main.py", "package/main.py", ()),
    ],
)
def test_what_can_be_meant_runs(line: str, target: str, arguments: tuple[str, ...], typed: Typed) -> None:
    _, (started,) = typed(line)
    assert (started.target, started.arguments) == (target, arguments)


def test_options_after_a_script_that_may_take_them_are_passed_on_with_a_hint(typed: Typed) -> None:
    answer, started = typed("run other.py --steps 12")
    assert answer.exit_code == 0 and started[0].arguments == ("--steps", "12")
    assert answer.stderr.count("\n") == 1 and "`leakscope run --steps 12 other.py`" in answer.stderr
    failed, _ = typed("run args.py --steps 12")
    assert failed.exit_code == 2 and "`leakscope run --steps 12 args.py`" in failed.stderr
    assert typed("run -q args.py --steps 12")[0].stderr == typed("run args.py --lr 1")[0].stderr == ""


@pytest.mark.parametrize(
    ("text", "beside", "takes"),
    [
        (NO_ARGUMENTS, "", Takes.NO),
        ("import os, json\nfrom torch import nn\nnet = nn.Linear(1, 1).eval()\n", "", Takes.NO),
        ("import helper\n", "import math\n", Takes.NO),
        ("import sys\nprint(sys.argv)\n", "", Takes.YES),
        ("from sys import argv as words\n", "", Takes.YES),
        ("import sys\ngetattr(sys, 'argv')\n", "", Takes.YES),
        ("open('/proc/self/cmdline')\n", "", Takes.YES),
        (PARSES, "", Takes.YES),
        ("import helper\n", PARSES, Takes.YES),
        ("def f():\n    from helper import arguments\n", "from sys import argv\n", Takes.YES),
        ("import click\n", "", Takes.UNKNOWN),
        ("import helper\n", "import hydra\n", Takes.UNKNOWN),
        ("exec(open('x').read())\n", "", Takes.UNKNOWN),
        ("import importlib\n", "", Takes.UNKNOWN),
        ("from . import other\n", "", Takes.UNKNOWN),
        ("this is no python", "", Takes.UNKNOWN),
    ],
)
def test_a_script_takes_arguments_unless_all_of_it_is_seen_to_read_none(
    text: str, beside: str, takes: Takes, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "helper.py").write_text(beside)
    assert takes_arguments(tmp_path / "train.py") == takes


SOURCE = """
import engine as e
from loops import fit

class Trainer:
    def training_step(self): ...

def main():
    def inner_step(): ...
"""


@pytest.mark.parametrize(
    ("name", "missing", "near"),
    [
        ("training_step", False, ""),
        ("Trainer.training_step", False, ""),
        ("inner_step", False, ""),
        ("main.inner_step", False, ""),
        ("fit", False, ""),
        ("e.step", False, ""),
        ("helper.train_step", False, ""),
        ("helper.bound", False, ""),
        ("helper.Loop.step", False, ""),
        ("helper.trainstep", True, "helper.train_step"),
        ("torch.optim.SGD.step", False, ""),
        ("train_step", True, "Trainer.training_step"),
        ("Trainer.step", True, "Trainer.training_step"),
        ("trainer.training_step", True, "Trainer.training_step"),
        ("nowhere.step", True, ""),
    ],
)
def test_a_step_function_is_refused_only_where_it_is_certainly_not_there(
    name: str, missing: bool, near: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    (tmp_path / "helper.py").write_text("class Loop(list): ...\ndef train_step(): ...\nbound = train_step\n")
    folders = [str(tmp_path), *sys.path]
    reported = missing_step_function(script, name, folders)
    assert bool(reported) is missing and near in reported
    for hidden in ("from loops import *\n", "exec('')\n", "globals()['x'] = 1\n"):
        script.write_text(SOURCE + hidden)
        assert missing_step_function(script, name, folders) == ""
