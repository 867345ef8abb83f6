"""Scripts and modules run as they do under plain Python."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.launch import Outcome, launch
from leakscope.options import Options
from leakscope.run.model import Rank
from leakscope.run.reader import read_run

pytestmark = pytest.mark.process

Write = Callable[..., Path]

DESCRIBE = """
import inspect, json, multiprocessing, os, pickle, sys, warnings
warnings.simplefilter("ignore")
if {torch}:
    import torch
    torch.set_num_threads(1)

class Thing:
    value = 3

def double(x):
    return 2 * x

def place(_):
    import colorsys
    return dict(os.environ), sys.path, "sitecustomize" in sys.modules

if __name__ == "__main__":
    found = dict(
        argv=sys.argv, name=__name__, file=__file__, path=sys.path[0], cwd=os.getcwd(), spec=str(__spec__),
        package=__package__, env={{k: v for k, v in os.environ.items()}}, main=sys.modules["__main__"].double is double,
        pickled=pickle.loads(pickle.dumps(Thing())).value, source=inspect.getsource(double),
        loader=type(__loader__).__name__,
    )
    for how in ("fork",) if {torch} else ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            found[how] = pool.map(double, [1, 2]), pool.map(place, [1])
    if {torch}:
        found["spec of torch"] = type(torch.__spec__.loader).__name__
        found["finders"] = len(sys.meta_path)
    print(json.dumps(found))
"""


def run(folder: Path, script: Path, *arguments: str, **plan: object) -> tuple[Outcome, Rank]:
    """Launch on one rank; how it went, and what was recorded."""
    folder.mkdir(exist_ok=True)
    outcome = launch(Options.of({"script": str(script), "arguments": arguments, "folder": folder, **plan}))
    return outcome, read_run(folder).ranks[0]


@pytest.mark.parametrize("torch", [False, True])
def test_a_script_finds_what_it_finds_under_python(
    script: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str], torch: bool
) -> None:
    path = script(DESCRIBE.format(torch=torch))
    plain = subprocess.run([sys.executable, path, "a", "--b"], capture_output=True, text=True, check=True).stdout
    outcome, rank = run(tmp_path / "run", path, "a", "--b")
    assert json.loads(capfd.readouterr().out) == json.loads(plain)
    assert outcome.status == 0 and rank.ended.how == "finished"
    assert len(read_run(tmp_path / "run").ranks) == 1, "the workers must not record"
    assert not rank.processes, "they are followed, and found not to train"


def test_a_module_runs_as_with_dash_m(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(
        "import sys\nprint(sys.argv, sys.path[0], __name__, __package__, __spec__.name)\n"
    )
    monkeypatch.chdir(tmp_path)
    plain = subprocess.run([sys.executable, "-m", "pack.train", "x"], capture_output=True, text=True, check=True).stdout
    outcome, _ = run(tmp_path / "run", Path(), "x", module="pack.train")
    assert outcome.status == 0
    assert capfd.readouterr().out == plain


ENDS = {
    "def f():\n    raise KeyError(1)\ntry:\n    f()\nexcept KeyError as e:\n    raise RuntimeError('two') from e": (
        1, "raised", "RuntimeError: two",
    ),
    "import sys; sys.exit(3)": (3, "exited", ""),
    "import os; os._exit(5)": (5, "exited", None),
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": (137, "killed", None),
    "import sys\nsys.excepthook = lambda *a: print('mine', len(a))\n1 / 0": (
        1, "raised", "ZeroDivisionError: division by zero",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", ENDS, ids=range(len(ENDS)))
def test_every_end_is_as_under_python_and_is_recorded(
    script: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    status, how, error = ENDS[text]
    path = script(text)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    outcome, rank = run(tmp_path / "run", path)
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == (plain.stdout, plain.stderr)
    assert outcome.status == status == (plain.returncode if plain.returncode >= 0 else 128 - plain.returncode)
    assert (rank.ended.how, rank.ended.status) == (how, status) and error in (None, rank.ended.error)
    last = text.count("\n") + 1
    assert rank.ended.at == (f"{Path(path).name}:{last} <module>" if how == "raised" else "")
