"""What was counted at a look, and how much of it is known? What is left is unattributed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakscope.findings.counters import counted_rate
from leakscope.findings.grouping.objects import counted_objects_of
from leakscope.findings.memory.device import device_looks
from leakscope.graph.model import KINDS, ObjectKind
from leakscope.record.model import Look, Rank

_ARRAY, _NODE = KINDS.index(ObjectKind.ARRAY), KINDS.index(ObjectKind.GRAD_NODE)
OF_A_NODE = (64, 1024)
"""Bytes, from and to, that a grad node takes with what it keeps besides tensors: 380 (linear, convolution) to 600 (a
chain of ReLU) were counted.
"""
_USUAL_NODE = 400
"""Bytes a node where the looks do not tell it."""


@dataclass(frozen=True)
class Balance:
    """The memory of one look of one rank, on the kind of device that is counted."""

    step: int
    counted: int | None
    counted_on: str
    storages: int
    """Bytes of storages, alive or dead."""
    objects: int = 0
    """Bytes of arrays and their like that are alive, and of other objects that have been gained; in host memory."""
    dead_objects: int = 0
    """Bytes of those that wait for gc."""
    nodes: int = 0
    """Grad nodes, whose memory is the host's."""
    of_a_node: int = _USUAL_NODE
    """Bytes that each of them takes."""
    blocks: int = 0
    """Bytes of an accelerator's blocks that are no storage, and of what the others are larger than theirs."""

    @property
    def known(self) -> int:
        """Bytes that have a name."""
        return self.storages + self.objects + self.dead_objects + self.blocks

    @property
    def gap(self) -> int | None:
        """Counted and in no storage, array or block: grad nodes and the unattributed; None where nothing counts."""
        return None if self.counted is None else self.counted - self.known


def balances_of(rank: Rank, looks: Sequence[Look], warmup: int) -> tuple[Balance, ...]:
    """One for each look."""
    beside: dict[tuple[int, str, str], int] = {}
    for found in device_looks(rank):
        place = (found.step, found.occasion, found.kind)
        beside[place] = beside.get(place, 0) + found.held + found.waiting + found.native
    balances = [_balance(look, beside.get((look.step, look.occasion, look.counted_on))) for look in looks]
    each = _bytes_a_node(balances, counted_rate(rank, warmup))
    return tuple(replace(balance, of_a_node=each) for balance in balances)


def storage_bytes(look: Look, storages: Sequence[int]) -> int:
    """Bytes of those that are on the kind of device that is counted."""
    graph = look.heap
    return sum(int(graph.bytes[s]) for s in storages if (s in graph.device) == (look.counted_on != "cpu"))


def _balance(look: Look, in_blocks: int | None) -> Balance:
    graph, host = look.heap, look.counted_on == "cpu"
    arrays = graph.kind == _ARRAY
    storages = storage_bytes(look, graph.storages.tolist()) if len(graph.storages) else look.explained_bytes
    return Balance(
        step=look.step,
        counted=look.counted_bytes,
        counted_on=look.counted_on,
        storages=storages,
        objects=int(graph.size[arrays & (graph.freed == 0)].sum()) + counted_objects_of(look) if host else 0,
        dead_objects=int(graph.size[arrays & (graph.freed != 0)].sum()) if host else 0,
        nodes=int((graph.kind == _NODE).sum()) if host else 0,
        blocks=0 if host or in_blocks is None else in_blocks - storages,
    )


def bytes_a_node(balances: Sequence[Balance]) -> int:
    """Bytes that a grad node takes."""
    return balances[-1].of_a_node if balances else _USUAL_NODE


def _bytes_a_node(balances: Sequence[Balance], rate: float | None) -> int:
    """Bytes that a grad node takes, as what is not known grew with their number; the usual where that tells nothing.

    By the counters of all steps, which counted `rate` bytes a step, before those at the looks: a look itself takes
    memory for a while.
    """
    told = [b for b in balances if b.gap is not None]
    if len(told) < 2 or told[-1].nodes <= told[0].nodes:  # noqa: PLR2004 - from the first to the last
        return _USUAL_NODE
    first, last = told[0], told[-1]
    came, steps = last.nodes - first.nodes, max(last.step - first.step, 1)
    by_looks = ((last.gap or 0) - (first.gap or 0)) / came
    by_steps = 0.0 if rate is None else (rate * steps - (last.known - first.known)) / came
    low, high = OF_A_NODE
    return round(next((each for each in (by_steps, by_looks) if low <= each <= high), _USUAL_NODE))
