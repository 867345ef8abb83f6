"""`install(release_outputs=True)` can be undone in any order, checks torch and detects completed sends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import PipelineStage, schedules, stage

from leakscope.backward import install
from leakscope.backward.pipelining.order import Act, acts_of, sends_over

LOOPED = {0: [0, 3], 1: [1, 4], 2: [2, 5]}
VEE = {0: [0, 5], 1: [1, 4], 2: [2, 3]}
released = pytest.mark.skipif(
    not hasattr(schedules, "_wait_batch_p2p") or hasattr(PipelineStage, "release_fwd_send_outputs"),
    reason="this torch's schedules cannot release outputs, or do so by themselves",
)


def names_now() -> list[Any]:
    owners = (stage, schedules, stage._PipelineStageBase, PipelineStage, schedules.ScheduleGPipe)
    return [value for owner in owners for value in vars(owner).values() if callable(value)]


@released
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_installs_of_both_kinds_go_in_any_order(order: tuple[int, ...]) -> None:
    before = names_now()
    installed = [install(), install(release_outputs=True), install()]
    assert "stage_backward" in vars(stage) and stage.stage_backward.__name__ == "boxed_backward"
    for position in order:
        installed[position].uninstall()
        if position == 1 and position != order[-1]:
            assert stage.stage_backward.__name__ == "stage_backward", "outputs are released no longer"
            assert stage.stage_backward.__module__ == "leakscope.backward.full"
    assert names_now() == before


def action(kind: str, of: int, microbatch: int, *sub: Any) -> Any:
    return SimpleNamespace(
        computation_type=SimpleNamespace(name=kind),
        stage_index=of,
        microbatch_index=microbatch,
        sub_actions=sub or None,
    )


def an_order(placed: dict[int, list[int]], microbatches: int, choose: random.Random) -> dict[int, list[Any]]:
    """Some order in which ranks can run a pipeline: whatever can be computed next is, by chance."""
    rank_of = {number: rank for rank, numbers in placed.items() for number in numbers}
    count = len(rank_of)
    order: dict[int, list[Any]] = {rank: [] for rank in placed}
    done: set[tuple[str, int, int]] = set()
    todo = [(kind, number, m) for kind in "FB" for number in rank_of for m in range(microbatches)]
    while todo:
        ready = [
            (kind, number, m)
            for kind, number, m in todo
            if (kind == "F" and (number == 0 or ("F", number - 1, m) in done))
            or (kind == "B" and ("F", number, m) in done and (number == count - 1 or ("B", number + 1, m) in done))
        ]
        kind, number, m = choose.choice(ready)
        todo.remove((kind, number, m))
        done.add((kind, number, m))
        name = "FORWARD" if kind == "F" else choose.choice(["FULL_BACKWARD", "BACKWARD_INPUT"])
        mine = order[rank_of[number]]
        mine.append(action(name, number, m))
        receiver = number + 1 if kind == "F" else number - 1
        if rank_of.get(receiver, rank_of[number]) != rank_of[number]:
            mine.append(action(f"SEND_{kind}", number, m))
    return order


def runs(order: dict[int, list[Any]], rank_of: dict[int, int], choose: random.Random) -> Iterator[tuple[Act, set[Act]]]:
    """One way the ranks may come along: each computation as it starts, and all sends that were taken in by then."""
    lists = {rank: list(acts_of(actions)) for rank, actions in order.items()}
    sent: set[Act] = set()
    taken: set[Act] = set()
    while any(lists.values()):
        rank = choose.choice([rank for rank, acts in lists.items() if acts])
        act = lists[rank][0]
        if act.kind.startswith("SEND_"):
            sent.add(lists[rank].pop(0))
            continue
        source = act.stage + (-1 if act.kind == "FORWARD" else 1)
        if rank_of.get(source, rank) != rank:
            needed = Act("SEND_F" if act.kind == "FORWARD" else "SEND_B", source, act.microbatch)
            if needed not in sent:
                continue
            taken.add(needed)
        lists[rank].pop(0)
        yield act, set(taken)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("placed", [LOOPED, VEE], ids=["looped", "vee"])
def test_a_send_called_over_was_taken_in_however_the_ranks_come_along(placed: dict[int, list[int]], seed: int) -> None:
    choose = random.Random(seed)
    rank_of = {number: rank for rank, numbers in placed.items() for number in numbers}
    order = an_order(placed, 4, choose)
    known = {act: over for rank in placed for act, over in sends_over(order, rank, rank_of.__getitem__).items()}
    sent = {act for acts in order.values() for act in acts_of(acts) if act.kind == "SEND_F"}
    assert sent <= {send for over in known.values() for send in over}, "at the latest when its gradient is there"
    for _ in range(20):
        for act, taken in runs(order, rank_of, choose):
            assert set(known.get(act, [])) <= taken, f"at {act}"
