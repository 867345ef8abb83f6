"""Steps are inferred from repeated allocations where a memory snapshot has no markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.snapshots.building import block, event, frame, freed, segment, snapshot

from leakscope.memory_snapshot.analysis import analyse
from leakscope.memory_snapshot.model import Snapshot
from leakscope.memory_snapshot.verdict import SnapshotVerdict, judge_snapshots

Read = Callable[[Any], Snapshot]
KIB = 1 << 10
FORWARD = [
    frame("/venv/lib/python3.11/site-packages/torch/nn/functional.py", 7, "linear"),
    frame("/me/net.py", 5, "forward"),
]
LOSS = [frame("/me/train.py", 30, "loss")]
KEPT = [frame("/me/train.py", 41, "remember")]
BACKWARD = [frame("??", 0, "torch::autograd::generated::AddmmBackward0::apply(x)")]
STATE = [frame("/me/my_optimizer.py", 50, "step")]


class Tape:
    """Allocations one after the other, each at an address of its own."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self.alive: dict[int, tuple[int, Any]] = {}

    def make(self, size: int, frames: Any) -> int:
        address = (len(self.trace) + 1) << 24
        self.trace.append(event("alloc", address, size, None, frames))
        self.alive[address] = (size, frames)
        return address

    def drop(self, address: int) -> None:
        self.trace += freed(address, self.alive.pop(address)[0], None)

    def judged(self, read: Read) -> SnapshotVerdict:
        held = [segment(block(address, size, frames=frames)) for address, (size, frames) in self.alive.items()]
        return judge_snapshots([analyse(read(snapshot(held, self.trace)))])


def step(tape: Tape, layers: int, keeps: int, wider: int = 0, through: Sequence[dict[str, Any]] = ()) -> None:
    """A step of training; `keeps` bytes of it stay, and `through` are frames within all of its own."""
    made = [tape.make((64 + wider + layer) * KIB, [*through, *FORWARD]) for layer in range(layers)]
    loss = tape.make(512, [*through, *LOSS])
    for activation in reversed(made):
        gradient = tape.make(64 * KIB + wider, [*through, *BACKWARD])
        tape.drop(activation)
        tape.drop(gradient)
    if keeps:
        tape.make(keeps, [*through, *KEPT])
    tape.drop(loss)


@pytest.mark.parametrize("widths", [(0,), (0, 3, 1, 7, 2)], ids=["the same sizes", "other sizes each step"])
def test_growth_over_repeated_steps_is_a_leak(read: Read, widths: tuple[int, ...]) -> None:
    tape = Tape()
    for number in range(12):
        step(tape, 4, keeps=1 << 20, wider=widths[number % len(widths)])
    judgement = tape.judged(read)
    (growth,) = judgement.concerns
    assert judgement.verdict == "leaks" and growth.site is not None
    assert (growth.site.where, growth.per_step) == ("train.py:41 remember", 1 << 20)


def test_steps_that_keep_nothing_are_clean(read: Read) -> None:
    tape = Tape()
    for _ in range(12):
        step(tape, 4, keeps=0)
    judgement = tape.judged(read)
    assert (judgement.verdict, judgement.concerns) == ("clean", ())


def layers_of_one_forward(tape: Tape) -> None:
    for _ in range(24):
        tape.make(4 << 20, FORWARD)
        tape.drop(tape.make(2 << 20, LOSS))


def states_of_one_optimizer(tape: Tape) -> None:
    for _ in range(24):
        tape.make(4 << 20, STATE)
        tape.drop(tape.make(2 << 20, STATE))


@pytest.mark.parametrize("one", [layers_of_one_forward, states_of_one_optimizer])
def test_repetition_within_one_step_is_no_step(read: Read, one: Callable[[Tape], None]) -> None:
    tape = Tape()
    one(tape)
    judgement = tape.judged(read)
    assert (judgement.verdict, judgement.concerns) == ("inconclusive", ())
