"""`--step-function` ends a step at each outermost return and changes nothing else."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakscope.process.patches import Patches
from leakscope.recorder.steps.step_function import StepFunction

SCRIPT = '''
import inspect
from functools import wraps

def doubled(function):
    @wraps(function)
    def inner(*args):
        return 2 * function(*args)
    return inner

def train_step(x):
    """The user's own."""
    return train_step(x - 1) if x > 3 else x

@doubled
def decorated(x):
    return x

async def awaited(x):
    return x

def fails(x):
    raise ValueError(x)

class Trainer:
    def training_step(self, x):
        return x, self.__class__.__name__

    @classmethod
    def of_class(cls, x):
        return x, cls.__name__

def main():
    def nested(x):
        return x
    return [nested(1), nested(2)]
'''


class Run:
    """A script run with a step function named."""

    def __init__(self, name: str, patches: Patches, folder: Path) -> None:
        self.steps = 0
        self.function = StepFunction(name, self._returned)
        self.function.install(patches)
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.folder = folder

    def _returned(self) -> None:
        self.steps += 1

    def execute(self, source: str, package: str = "") -> dict[str, object]:
        path = self.folder / "train.py"
        path.write_text(source)
        exec(self.function.compiled(source.encode(), str(path), package), self.names)
        return self.names

    def evaluate(self, expression: str) -> object:
        return eval(expression, self.names)


@pytest.fixture
def patches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Patches]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules), dict(vars(builtins)), list(sys.meta_path)
    patches = Patches()
    yield patches
    patches.take_out()
    for name in set(sys.modules) - before[0]:
        del sys.modules[name]
    assert dict(vars(builtins)) == before[1] and sys.meta_path == before[2]


@pytest.mark.parametrize(
    ("name", "expression", "value", "steps"),
    [
        ("train_step", "train_step(5)", 3, 1),
        ("decorated", "decorated(5)", 10, 1),
        ("Trainer.training_step", "Trainer().training_step(1)", (1, "Trainer"), 1),
        ("training_step", "[Trainer().training_step(n)[0] for n in (1, 2)]", [1, 2], 2),
        ("Trainer.of_class", "Trainer.of_class(1)", (1, "Trainer"), 1),
        ("main.nested", "main()", [1, 2], 2),
    ],
)
def test_each_outermost_return_ends_a_step_and_gives_what_it_gave(
    patches: Patches, tmp_path: Path, name: str, expression: str, value: object, steps: int
) -> None:
    ran = Run(name, patches, tmp_path)
    ran.execute(SCRIPT)
    assert (ran.evaluate(expression), ran.steps, ran.function.seen) == (value, steps, True)


def test_a_function_that_raises_or_is_awaited_ends_a_step_too(patches: Patches, tmp_path: Path) -> None:
    ran = Run("fails", patches, tmp_path)
    with pytest.raises(ValueError, match="7"):
        ran.execute(SCRIPT)["fails"](7)  # type: ignore[operator]
    assert ran.steps == 1
    ran = Run("awaited", patches, tmp_path)
    waiting = ran.execute(SCRIPT)["awaited"](7)  # type: ignore[operator]
    assert ran.steps == 0
    assert asyncio.run(waiting) == 7 and ran.steps == 1


def test_the_script_reads_the_same_of_itself(patches: Patches, tmp_path: Path) -> None:
    ran = Run("train_step", patches, tmp_path)
    function = ran.execute(SCRIPT)["train_step"]
    assert callable(function) and function.__name__ == "train_step" and function.__doc__ == "The user's own."
    assert str(inspect.signature(function)) == "(x)"
    assert inspect.getsource(function) == SCRIPT[SCRIPT.index("def train_step") : SCRIPT.index("\n@doubled")]
    plain: dict[str, object] = {"__name__": "__main__"}
    exec(compile(SCRIPT, "train.py", "exec"), plain)
    assert list(plain) == list(ran.names), "no name of ours is among the script's"


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("engine.parts.train_step", "from engine.parts import train_step\ntrain_step(1)"),
        ("step", "from engine import train_step as step\nstep(1)"),
        ("parts.train_step", "import engine.parts as parts\nparts.train_step(1)"),
        ("Own.inherited", "from engine.parts import Own\nOwn().inherited(1)"),
    ],
)
def test_an_imported_function_is_found_by_any_of_its_names(
    patches: Patches, tmp_path: Path, name: str, script: str
) -> None:
    package = tmp_path / "engine"
    package.mkdir()
    (package / "__init__.py").write_text("from engine.parts import train_step\n")
    (package / "parts.py").write_text(
        "def train_step(x):\n    return x\n"
        "class Base:\n    def inherited(self, x):\n        return x\n"
        "class Own(Base):\n    pass\n"
    )
    ran = Run(name, patches, tmp_path)
    ran.execute(script)
    assert ran.steps == 1 and ran.function.seen
