"""What goes when one object, or one reference to it, goes? One pass answers for all of a graph.

An object A dominates an object B where every path from a root to B leads through A. Reference counting alone frees no
cycle, so an object on one counts as a root here; what is left has no cycles, and each object's nearest dominator is the
nearest common one of its holders: Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001), in the order of
the references and therefore in one round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leakscope.graph.cycles import find_cycles
from leakscope.graph.model import HeapGraph, Ints
from leakscope.graph.reach import Mask, reachable


@dataclass(frozen=True, eq=False)
class Dominators:
    """The tree of nearest dominators, over the objects that a root or a cycle keeps."""

    kept: Mask
    """Whether a root or a cycle keeps an object."""
    component: Ints
    """Strongly connected component of each object."""
    sole: Ints
    """The one reference that keeps each object; -1 where several do, or where it is a root or on a cycle."""
    place: Ints
    """Position of each object in an order in which all that it dominates comes right after it; -1 where nothing keeps it."""
    count: Ints
    """How many objects each dominates, itself among them."""

    def dominated(self, index: int) -> Mask:
        """Which objects would be freed if this one were; itself among them."""
        first = self.place[index]
        dominated: Mask = (self.place >= first) & (self.place < first + self.count[index]) & self.kept
        return dominated

    def freed_by(self, graph: HeapGraph, reference: int) -> Mask | None:
        """Which objects cutting one reference would free.

        None where the reference lies on a cycle: whether that still closes without it, only a walk can tell.
        """
        held = int(graph.held[reference])
        if self.component[held] == self.component[graph.holder[reference]]:
            return None
        return self.dominated(held) if self.sole[held] == reference else np.zeros(len(graph), dtype=bool)

    def retained_bytes(self, graph: HeapGraph) -> Ints:
        """Bytes that would be freed with each object; 0 where nothing keeps it."""
        kept = np.flatnonzero(self.kept)
        by_place = np.zeros(len(kept) + 1, dtype=np.int64)
        by_place[self.place[kept] + 1] = graph.bytes[kept]
        before = np.cumsum(by_place)
        retained = np.zeros(len(graph), dtype=np.int64)
        retained[kept] = before[self.place[kept] + self.count[kept]] - before[self.place[kept]]
        return retained


def find_dominators(graph: HeapGraph, without: Ints) -> Dominators:
    """The tree of a graph that some references are left out of."""
    n = len(graph)
    keep = np.ones(len(graph.holder), dtype=bool)
    keep[without] = False
    cycles = find_cycles(graph, without)
    starts = (graph.root > 0) | cycles.cyclic[cycles.label]
    kept = reachable(n, graph.holder[keep], graph.held[keep], np.flatnonzero(starts))
    # Who keeps a start is not asked: it stays anyway.
    keeping = np.flatnonzero(keep & kept[graph.holder] & ~starts[graph.held])
    times = np.bincount(graph.held[keeping], minlength=n)
    single = keeping[times[graph.held[keeping]] == 1]
    sole = np.full(n, -1, dtype=np.int64)
    sole[graph.held[single]] = single
    order = _holders_first(n, graph.holder[keeping], graph.held[keeping], np.flatnonzero(starts))
    place, count = _numbered(order, _parents(n, graph, keeping, sole, order))
    return Dominators(kept, cycles.label, sole, place, count)


def _holders_first(n: int, holder: Ints, held: Ints, starts: Ints) -> list[int]:
    """The objects in an order in which each comes after all that hold it."""
    by_holder = np.argsort(holder, kind="stable")
    below = held[by_holder].tolist()
    end = np.cumsum(np.bincount(holder, minlength=n)).tolist()
    left = np.bincount(held, minlength=n).tolist()
    order: list[int] = starts.tolist()
    for here in order:  # it grows while it is read
        for there in below[end[here - 1] if here else 0 : end[here]]:
            left[there] -= 1
            if not left[there]:
                order.append(there)
    return order


def _parents(n: int, graph: HeapGraph, keeping: Ints, sole: Ints, order: Sequence[int]) -> list[int]:
    """The nearest dominator of each object; `n`, which stands above all roots, for those that no object dominates."""
    by_held = keeping[np.argsort(graph.held[keeping], kind="stable")]
    holders = graph.holder[by_held].tolist()
    end = np.cumsum(np.bincount(graph.held[by_held], minlength=n)).tolist()
    parent = np.where(sole >= 0, graph.holder[sole], n).tolist() if len(graph.holder) else [n] * n
    parent.append(n)
    depth, jump = [0] * (n + 1), [n] * (n + 1)
    for here in order:
        above = holders[end[here - 1] if here else 0 : end[here]]
        if len(above) > 1:
            nearest, *others = sorted(set(above), key=depth.__getitem__)
            for other in others:
                if nearest == n:
                    break
                nearest = _common(nearest, other, parent, jump, depth)
            parent[here] = nearest
        up = parent[here]
        far = jump[up]
        depth[here] = depth[up] + 1
        # Each object knows one ancestor far up, such that any is found in a logarithm of jumps: Myers, "An applicative
        # random-access stack" (1983). A chain of a million grad nodes is as deep.
        jump[here] = jump[far] if depth[up] - depth[far] == depth[far] - depth[jump[far]] else up
    return parent


def _common(a: int, b: int, parent: Sequence[int], jump: Sequence[int], depth: Sequence[int]) -> int:
    """The nearest common dominator of two objects."""
    if depth[a] < depth[b]:
        a, b = b, a
    while depth[a] > depth[b]:
        a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
    while a != b:
        a, b = (jump[a], jump[b]) if jump[a] != jump[b] else (parent[a], parent[b])
    return a


def _numbered(order: Sequence[int], parent: Sequence[int]) -> tuple[Ints, Ints]:
    """(place, count) of each object, as `Dominators` has them."""
    count = [0] * len(parent)
    for here in reversed(order):
        count[here] += 1
        count[parent[here]] += count[here]
    place, following = [-1] * len(parent), [0] * len(parent)
    for here in order:
        up = parent[here]
        place[here] = following[up]
        following[up] += count[here]
        following[here] = place[here] + 1
    return np.asarray(place[:-1], dtype=np.int64), np.asarray(count[:-1], dtype=np.int64)
