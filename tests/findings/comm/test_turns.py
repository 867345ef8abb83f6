"""Operations are assigned to microbatches for all pipeline schedules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from hypothesis import given
from hypothesis import strategies as st

from leakscope.findings.comm import turns_of
from leakscope.run.rows import CommOperation

COMPUTING, ISSUING = 4e-3, 8e-5
"""Seconds of a stage's forward or backward, and between two tensors that go together."""


class Tags(Enum):
    """What a pipeline's tags tell apart."""

    NONE = "all have one"
    TENSORS = "each tensor of a microbatch has its own"
    MICROBATCHES = "each microbatch has its own"
    BOTH = "each tensor of each microbatch has its own"


@dataclass
class Pipeline:
    """One rank that sends and receives; it knows what each operation is."""

    tensors: int
    alike: bool
    """All tensors have one shape."""
    tags: Tags
    blocking: bool
    """Each operation is waited for at once."""
    lines: bool
    """Each kind of exchange has a line of its own that asks for it."""
    now: float = 1.0
    step: int = 1
    operations: list[CommOperation] = field(default_factory=list)
    truth: list[tuple[int, int]] = field(default_factory=list)
    """For each operation its turn and its tensor."""
    open: list[int] = field(default_factory=list)

    def exchange(self, *moves: tuple[str, int, int]) -> None:
        """Tensors of (direction, peer, turn) go together, as with `batch_isend_irecv`."""
        for direction, peer, turn in moves:
            for tensor in range(self.tensors):
                self.truth.append((turn + 1, tensor + 1))
                self._issue(direction, peer, turn, tensor, str(sorted({way for way, *_ in moves})))
                if self.blocking:
                    self.wait()

    def _issue(self, direction: str, peer: int, turn: int, tensor: int, line: str) -> None:
        tag = {Tags.NONE: 0, Tags.TENSORS: tensor, Tags.MICROBATCHES: turn, Tags.BOTH: turn * self.tensors + tensor}[
            self.tags
        ]
        self.now += ISSUING
        self.open.append(len(self.operations))
        self.operations.append(
            CommOperation(
                id=len(self.operations) + 1,
                direction=direction,
                peer=peer,
                tag=tag,
                group="default",
                bytes=4,
                step=self.step,
                microbatch=0,
                nth=1,
                issued_at="train.py:3",
                issued=self.now,
                dtype="float32",
                shape=(8,) if self.alike else (8, tensor + 1),
                buffers=1,
                called_from=line if self.lines else "",
            )
        )

    def wait(self) -> None:
        for place in self.open:
            self.now += ISSUING / 4
            self.operations[place] = replace(self.operations[place], waited=self.now)
        self.open.clear()

    def compute(self) -> None:
        self.now += COMPUTING * (1 + 0.2 * (len(self.operations) % 3))

    def reported(self) -> list[tuple[int, int]]:
        turns = turns_of(self.operations)
        return [(turns[o.id].turn, turns[o.id].tensor) for o in self.operations]


PIPELINES = st.builds(
    Pipeline,
    tensors=st.integers(1, 3),
    alike=st.booleans(),
    tags=st.sampled_from(Tags),
    blocking=st.booleans(),
    lines=st.booleans(),
)


@given(PIPELINES, st.integers(3, 8), st.integers(1, 3), st.booleans())
def test_one_forward_one_backward(pipeline: Pipeline, count: int, warmup: int, lazy: bool) -> None:
    """The first of two ranks: some forwards ahead, then each backward beside a forward.

    `lazy`: the first sends are not waited for before a receive is.
    """
    for step in (1, 2):
        pipeline.step = step
        for number in range(count + warmup):
            forward, backward = number < count, number >= warmup
            if forward:
                pipeline.compute()
            moves = [("send", 1, number)] * forward + [("recv", 1, number - warmup)] * backward
            pipeline.exchange(*moves)
            if not (lazy and number < warmup):
                pipeline.wait()
            if backward:
                pipeline.compute()
        pipeline.wait()
    assert pipeline.reported() == pipeline.truth


@given(PIPELINES, st.integers(3, 8), st.booleans())
def test_all_forwards_then_all_backwards(pipeline: Pipeline, count: int, lazy: bool) -> None:
    """A rank in the middle; `lazy`: its sends are waited for at the end of the step."""
    for before, behind in ((0, 2), (2, 0)):
        for number in range(count):
            pipeline.exchange(("recv", before, number))
            pipeline.wait()
            pipeline.compute()
            pipeline.exchange(("send", behind, number))
            if not lazy:
                pipeline.wait()
    pipeline.wait()
    assert pipeline.reported() == pipeline.truth


@given(PIPELINES, st.integers(2, 4), st.integers(2, 3))
def test_interleaved_stages(pipeline: Pipeline, count: int, chunks: int) -> None:
    """Each microbatch comes once for each stage that the rank has: as many turns, each with its tensors."""
    for turn in range(count * chunks):
        pipeline.exchange(("recv", 0, turn))
        pipeline.wait()
        pipeline.compute()
        pipeline.exchange(("send", 2, turn))
        pipeline.wait()
    assert pipeline.reported() == pipeline.truth


def test_what_goes_under_one_tag_goes_together_where_each_turn_has_its_own() -> None:
    pipeline = Pipeline(2, True, Tags.MICROBATCHES, blocking=False, lines=False)
    for turn in range(4):
        pipeline.exchange(("send", 1, turn))  # all at once: only the tag tells
    assert pipeline.reported() == pipeline.truth


def test_peers_groups_directions_and_steps_are_counted_apart() -> None:
    pipeline = Pipeline(1, True, Tags.NONE, blocking=False, lines=False)
    pipeline.exchange(("send", 1, 0), ("send", 2, 0), ("recv", 1, 0))
    (first, *_) = pipeline.operations
    pipeline.operations += [replace(first, id=8, group="other"), replace(first, id=9, step=2)]
    assert {turn.turn for turn in turns_of(pipeline.operations).values()} == {1}
    assert turns_of(()) == {}


@given(
    st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9) | st.none(), st.integers(0, 2), st.integers(1, 2)), max_size=30)
)
def test_whatever_was_recorded_every_operation_has_one_place(rows: list[tuple[float, float | None, int, int]]) -> None:
    pipeline = Pipeline(1, True, Tags.NONE, blocking=False, lines=False)
    pipeline.exchange(("send", 1, 0))
    (like,) = pipeline.operations
    operations = [
        replace(like, id=number, issued=issued, waited=waited, tag=tag, step=step)
        for number, (issued, waited, tag, step) in enumerate(rows)
    ]
    turns = turns_of(operations)
    assert turns.keys() == {operation.id for operation in operations}
    places = [(o.step, turns[o.id].turn, turns[o.id].tensor) for o in operations]
    assert len(set(places)) == len(places) and all(turn.tensor <= turn.tensors for turn in turns.values())
