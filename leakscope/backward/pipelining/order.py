"""The point of a schedule from which on a send has completed, read off its order of actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple


class Act(NamedTuple):
    """A computation or a send of one microbatch on one stage."""

    kind: str
    """FORWARD or BACKWARD, and SEND_F or SEND_B for sending their results."""
    stage: int
    microbatch: int


Known = dict[Act, list[Act]]
"""By computation: the sends of the same rank that have finished when it starts."""

_COMPUTATIONS = {"FORWARD": "FORWARD", "FULL_BACKWARD": "BACKWARD", "BACKWARD_INPUT": "BACKWARD"}
_NEIGHBOUR = {"FORWARD": ("SEND_F", -1), "BACKWARD": ("SEND_B", 1)}


def acts_of(actions: Iterable[Any]) -> Iterator[Act]:
    """The computations and sends among the actions of one rank, with overlapped ones in sequence."""
    for action in actions:
        if action is None:
            continue
        if getattr(action, "sub_actions", None):
            yield from acts_of(action.sub_actions)
            continue
        name = action.computation_type.name
        kind = _COMPUTATIONS.get(name, name)
        if kind in _NEIGHBOUR or kind.startswith("SEND_"):
            yield Act(kind, action.stage_index, action.microbatch_index)


def sends_over(order: dict[int, Iterable[Any]], rank: int, rank_of: Callable[[int], int]) -> Known:
    """Which sends of `rank` have certainly finished at the start of each of its computations.

    A computation starts when its input was received. So once something arrives that its sender made after receiving a
    message, the send of that message has finished: each message carries how far its sender knew each rank to be.
    """
    lists = {each: list(acts_of(actions)) for each, actions in order.items()}
    at = {each: 0 for each in lists}
    clocks = {each: dict.fromkeys(lists, 0) for each in lists}
    messages: dict[Act, dict[int, int]] = {}
    taken_in: dict[Act, int] = {}
    known: Known = {}
    pending: list[Act] = []
    moved = True
    while moved:
        moved = False
        for each, acts in lists.items():
            clock = clocks[each]
            while at[each] < len(acts):
                act = acts[at[each]]
                incoming = _incoming(act, rank_of, lists)
                if incoming is not None and incoming not in messages:
                    break
                at[each] += 1
                moved = True
                clock[each] = at[each]
                if act.kind.startswith("SEND_"):
                    messages[act] = dict(clock)
                    if each == rank:
                        pending.append(act)
                elif incoming is not None:
                    taken_in[incoming] = at[each]
                    for other, count in messages[incoming].items():
                        clock[other] = max(clock[other], count)
                    if each == rank:
                        over = [send for send in pending if _is_over(send, taken_in, clock, rank_of)]
                        pending = [send for send in pending if send not in over]
                        known[act] = over
    return known


def _incoming(act: Act, rank_of: Callable[[int], int], lists: dict[int, list[Act]]) -> Act | None:
    """The send that a computation waits for; None if its input comes from its own rank, or from no rank."""
    if act.kind not in _NEIGHBOUR:
        return None
    kind, step = _NEIGHBOUR[act.kind]
    stage = act.stage + step
    try:
        sender = rank_of(stage)
    except KeyError:  # before the first or after the last stage
        return None
    return None if sender == rank_of(act.stage) or sender not in lists else Act(kind, stage, act.microbatch)


def _is_over(send: Act, taken_in: dict[Act, int], clock: dict[int, int], rank_of: Callable[[int], int]) -> bool:
    receiver = rank_of(send.stage + (1 if send.kind == "SEND_F" else -1))
    return send in taken_in and clock[receiver] >= taken_in[send]
