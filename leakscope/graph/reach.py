"""What can be reached from here? Whole-graph walks, linear in the references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from leakscope.graph.small import held_by_each, is_small, strong_components, walk
from leakscope.native import walks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_MOST = 2**31
"""Objects and references that int32 can number."""


def load_for_large_graphs() -> None:
    """Import what walks large graphs: for who must not import in the middle of what it measures."""
    if walks() is None:
        import scipy.sparse.csgraph  # noqa: F401


def reachable(count: int, holder: NDArray[np.integer], held: NDArray[np.integer], starts: NDArray[np.integer]) -> Mask:
    """Which of `count` objects a walk from `starts` along holder -> held reaches, the starts included."""
    if len(starts) == 0:
        return np.zeros(count, dtype=bool)
    return from_starts(count, holder, held, starts).reached()


class Below(Protocol):
    """References and some starts, made ready to be walked several times."""

    def reached(self, past: int | None = None) -> Mask:
        """Which objects a walk from the starts reaches; `past` an object that it may not enter."""
        ...


def from_starts(
    count: int, holder: NDArray[np.integer], held: NDArray[np.integer], starts: NDArray[np.integer]
) -> Below:
    """What is below these starts."""
    if walks() is not None and fits(count, holder):
        first, below = walks().rows(count, column(holder), column(held))
        return _Rows(first, below, column(starts))
    if is_small(holder):
        return _Lists(held_by_each(count, holder, held), starts.tolist())
    source = np.concatenate([holder, np.full(len(starts), count)])
    return _Matrix(matrix(count + 1, source, np.concatenate([held, starts]), twice=True))


@dataclass(frozen=True, eq=False)
class _Lists:
    """Of a small graph."""

    each: list[list[int]]
    starts: list[int]

    def reached(self, past: int | None = None) -> Mask:
        mask = np.zeros(len(self.each), dtype=bool)
        each = self.each
        if past is not None:
            each = [*each]
            each[past] = []
        mask[walk(each, self.starts)] = True
        if past is not None:
            mask[past] = False
        return mask


@dataclass(frozen=True, eq=False)
class _Rows:
    """Walked in C: what object k holds is `below[first[k]:first[k + 1]]`, int32 both."""

    first: bytearray
    below: bytearray
    starts: NDArray[np.int32]

    def reached(self, past: int | None = None) -> Mask:
        first, below = memoryview(self.first).cast("i"), memoryview(self.below).cast("i")
        return np.frombuffer(walks().reached(first, below, self.starts, -1 if past is None else past), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Matrix:
    """Of a large graph, walked by scipy; an object above all, the last, has a reference to each start."""

    references: csr_array

    def reached(self, past: int | None = None) -> Mask:
        from scipy.sparse.csgraph import breadth_first_order

        references = self.references
        top = references.shape[0] - 1
        if past is not None:
            references = references.copy()
            references.indices[references.indices == past] = top
        mask = np.zeros(top, dtype=bool)
        order = breadth_first_order(references, top, directed=True, return_predecessors=False)
        mask[order[order < top]] = True
        return mask


def components(count: int, holder: NDArray[np.integer], held: NDArray[np.integer]) -> tuple[Ints, Mask]:
    """(component of each object, whether that component is a cycle): strongly connected components.

    An object that holds itself is a cycle of one.
    """
    if count == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    label = np.asarray(_labels(count, holder, held), dtype=np.int64)
    cyclic = np.bincount(label) > 1
    cyclic[label[holder[holder == held]]] = True
    return label, cyclic


def _labels(count: int, holder: NDArray[np.integer], held: NDArray[np.integer]) -> list[int] | Ints:
    if walks() is not None and fits(count, holder):
        first, below = (memoryview(part).cast("i") for part in walks().rows(count, column(holder), column(held)))
        return np.frombuffer(walks().components(first, below), dtype=np.int32).astype(np.int64)
    if is_small(holder):
        return strong_components(held_by_each(count, holder, held))
    from scipy.sparse.csgraph import connected_components

    label: Ints = connected_components(matrix(count, holder, held), directed=True, connection="strong")[1]
    return label


def fits(count: int, holder: NDArray[np.integer]) -> bool:
    """Whether so many objects and references are walked in C."""
    return max(count, len(holder)) < _MOST


def column(numbers: NDArray[np.integer]) -> NDArray[np.int32]:
    """Numbers of objects as C takes them."""
    return np.ascontiguousarray(numbers, dtype=np.int32)


def matrix(count: int, holder: NDArray[np.integer], held: NDArray[np.integer], twice: bool = False) -> csr_array:
    """The references as a matrix; `twice` leaves an object that holds another twice as two entries.

    Summing them up sorts every row, which a breadth-first walk does not need; without it scipy's strong components
    never end.
    """
    from scipy.sparse import coo_array

    index = np.int32 if fits(count, holder) else np.int64
    data = np.ones(len(holder), dtype=np.float64)  # csgraph works in doubles; any other type is copied
    references = coo_array(
        (data, (holder.astype(index, copy=False), held.astype(index, copy=False))), shape=(count, count)
    )
    references.has_canonical_format = twice
    return references.tocsr()
