"""A list on the stack of a calling frame is still reported under its variable's name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import pytest
import torch

from leakscope.findings import judge
from leakscope.heap.autograd import operands_of, own_memory
from leakscope.heap.snapshot import SnapshotContext, look
from leakscope.recorder.verify_cut import verify_cuts
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

LOOKED_AT = (4, 6, 8)
LAST = LOOKED_AT[-1]
SIZE = 1 << 20
Trained = Callable[[], torch.Tensor]
pytestmark = pytest.mark.skipif(
    not (3, 11) <= sys.version_info[:2] <= (3, 13), reason="the stack of a frame is read in Python 3.11 to 3.13 only"
)


class Trainer:
    def __init__(self, step: Trained) -> None:
        self.step = step
        self.history: list[torch.Tensor] = []

    def fit(self) -> None:
        for _ in range(LAST):
            self.history += [self.step()]


def added(step: Trained) -> None:
    Trainer(step).fit()


def in_a_generator(step: Trained) -> None:
    """Its iterator is on the stack of the loop alone: no statement's end lets go of that."""

    def batches() -> Iterator[None]:
        seen = []
        for _ in range(LAST):
            seen.append(torch.ones(SIZE // 4))
            yield

    for _ in batches():
        step()


@pytest.mark.process
@pytest.mark.parametrize(
    ("train", "holder"),
    [
        (added, "self.history in Trainer.fit()"),
        (in_a_generator, "local seen of in_a_generator.<locals>.batches()"),
    ],
)
def test_the_variable_is_cut_and_frees_it_all(train: Callable[[Trained], None], holder: str) -> None:
    looks: list[HeapSnapshot] = []
    answers: dict[str, int | str] = {}
    number = 0

    def run(proved: Mapping[str, int | str]) -> Run:
        steps = tuple(Step(n, 0.1, None, None) for n in range(1, number + 1))
        return Run(
            ("train.py",), (Rank(0, steps, tuple(looks), Ended("stopped", 0, number), proved=proved),), 1, "cpu", "", ""
        )

    def step() -> torch.Tensor:
        nonlocal number
        number += 1
        if number == LAST:
            answers.update(verify_cuts(run({}), run({}).ranks[0], number, SnapshotContext(hidden=(looks,))))
        if number in LOOKED_AT:
            looks.append(look(number, "last" if number == LAST else "step", SnapshotContext(hidden=(looks,))))
        return torch.ones(SIZE // 4)

    train(step)
    (finding,) = (f for f in judge(run(answers)).findings if f.severity == "leak")
    assert finding.cut is not None
    held = LAST - (train is not in_a_generator)
    assert (finding.cut.written, finding.cut.frees_bytes, finding.cut.unproved) == (holder, held * SIZE, "")
    assert finding.cut.proved_bytes == finding.cut.frees_bytes


def test_what_a_frame_has_on_its_stack_is_read() -> None:
    def called(*given: Any) -> set[int]:
        frame: FrameType = sys._getframe(1)
        with own_memory() as words:
            return set(operands_of(frame, words))

    first, second = object(), [object()]
    free: Any = None

    def closes() -> Any:
        return free, first

    found = (first, second, called())[2]
    assert {id(first), id(second)} <= found and id(closes) not in found
    assert not {id(first), id(second)} & called()


def test_a_frame_that_calls_c_tells_nothing() -> None:
    read: list[tuple[int, ...]] = []

    def key(_: int) -> int:
        with own_memory() as words:
            read.append(operands_of(sys._getframe(1), words))
        return 0

    assert ([1], sorted([1], key=key))[1] == [1]
    assert read == [()]
