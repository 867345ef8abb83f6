"""What goes when one object, or one reference to it, goes? All that can be said of a whole graph is found once.

An object A dominates an object B where every path from a root to B leads through A. Reference counting alone frees no
cycle, so an object on one counts as a root here, and what one reference frees is what the one object dominates that it
alone keeps: nothing where others keep that too, else what a single walk past the object does not reach. (The tree of
all nearest dominators takes as long as a hundred such walks; a look asks for five to fifty.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from leakscope.graph.cycles import find_cycles
from leakscope.graph.model import HeapGraph, Ints
from leakscope.graph.reach import Below, Mask, from_starts


@dataclass(frozen=True, eq=False)
class Dominators:
    """Which objects are kept, by roots and by cycles, and which by one reference alone."""

    kept: Mask
    """Whether a root or a cycle keeps an object."""
    component: Ints
    """Strongly connected component of each object."""
    sole: Ints
    """The one reference that keeps each object; -1 where several do, or where it is a root or on a cycle."""
    below: Below
    """All references, to be walked from each root and each object on a cycle."""
    _known: dict[int, Mask] = field(default_factory=dict)

    def dominated(self, index: int) -> Mask:
        """Which objects would be freed if this one were, itself among them."""
        if index not in self._known:
            self._known[index] = self.kept & ~self.below.reached(past=index)
        return self._known[index]

    def freed_by(self, graph: HeapGraph, reference: int) -> Mask | None:
        """Which objects cutting one reference would free.

        None where the reference lies on a cycle: only looking for cycles again tells whether one still closes.
        """
        held = int(graph.held[reference])
        if self.component[held] == self.component[graph.holder[reference]]:
            return None
        return self.dominated(held) if self.sole[held] == reference else np.zeros(len(graph), dtype=bool)


def find_dominators(graph: HeapGraph, without: Ints) -> Dominators:
    """What keeps what in a graph that some references are left out of."""
    keep = np.ones(len(graph.holder), dtype=bool)
    keep[without] = False
    cycles = find_cycles(graph, without)
    starts = (graph.root > 0) | cycles.cyclic[cycles.label]
    below = from_starts(len(graph), graph.holder[keep], graph.held[keep], np.flatnonzero(starts))
    kept = below.reached()
    # Who keeps a start is not asked: it stays anyway.
    keeping = np.flatnonzero(keep & kept[graph.holder] & ~starts[graph.held])
    times = np.bincount(graph.held[keeping], minlength=len(graph))
    alone = keeping[times[graph.held[keeping]] == 1]
    sole = np.full(len(graph), -1, dtype=np.int64)
    sole[graph.held[alone]] = alone
    return Dominators(kept, cycles.label, sole, below)
