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


def in_a_generator(step: Trained) -> None:
    """Its iterator is on the stack of the loop alone: no statement's end releases it."""

    def batches() -> Iterator[None]:
        seen = []
        for _ in range(LAST):
            seen.append(torch.ones(SIZE // 4))
            yield

    for _ in batches():
        step()


@pytest.mark.process
def test_a_list_held_by_the_stack_of_a_loop_is_cut_at_its_variable() -> None:
    looks: list[HeapSnapshot] = []
    answers: dict[str, int | str] = {}
    number = 0

    def run(proved: Mapping[str, int | str]) -> Run:
        steps = tuple(Step(n, 0.1, None, None) for n in range(1, number + 1))
        rank = Rank(0, steps, tuple(looks), Ended("stopped", 0, number), proved=proved)
        return Run(("train.py",), (rank,), 1, "cpu", "", "")

    def step() -> torch.Tensor:
        nonlocal number
        number += 1
        if number == LAST:
            answers.update(verify_cuts(run({}), run({}).ranks[0], number, SnapshotContext(hidden=(looks,))))
        if number in LOOKED_AT:
            looks.append(look(number, "last" if number == LAST else "step", SnapshotContext(hidden=(looks,))))
        return torch.ones(SIZE // 4)

    in_a_generator(step)
    (finding,) = (f for f in judge(run(answers)).findings if f.severity == "leak")
    assert finding.cut is not None and finding.cut.written == "local seen of in_a_generator.<locals>.batches()"
    assert (finding.cut.frees_bytes, finding.cut.unproved) == (LAST * SIZE, "")
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
