"""Which functions are offered in place of a step function that is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import examples

from leakscope.findings.judge import judge
from leakscope.findings.model import Reason, Why
from leakscope.findings.source.scopes import like_in
from leakscope.run.model import Ended, Rank
from leakscope.run.rows import ClockKind, StepsBy

pytestmark = pytest.mark.unit

SOURCES = {
    "src/train.py": ("class Trainer:", "    def training_step(self): ...", "def main():", "    def inner(): ..."),
    "engine/loop.py": ("async def fit_batch(): ...",),
    "broken.py": ("def (",),
}


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("train_step", ("Trainer.training_step",)),
        ("trainer.training_step", ("Trainer.training_step",)),
        ("fit_batches", ("engine.loop.fit_batch",)),
        ("main.iner", ("main.inner", "main")),
        ("xyz", ()),
    ],
)
def test_names_are_like_those_of_the_script_and_of_its_modules(typed: str, near: tuple[str, ...]) -> None:
    found = like_in(typed, SOURCES, "/home/me/src/train.py")
    assert found[: len(near)] == near and bool(found) is bool(near)


def test_a_run_without_its_step_function_says_which_may_be_meant() -> None:
    clock = StepsBy(ClockKind.FUNCTION, "train_step", missing=True)
    rank = Rank(0, (), (), Ended("finished", 0, 0), clocks=(clock,))
    run = replace(examples.run(rank), sources=SOURCES, command=("src/train.py",))
    why = judge(run).why
    assert isinstance(why, Why)
    assert (why.reason, why.near) == (Reason.FUNCTION_MISSING, ("Trainer.training_step",))
