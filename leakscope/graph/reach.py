"""What can be reached from here? Whole-graph walks in scipy and numpy, linear in the references."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


def reachable(count: int, holder: NDArray[np.integer], held: NDArray[np.integer], starts: NDArray[np.integer]) -> Mask:
    """Which of `count` objects a walk from `starts` along holder -> held reaches, the starts included."""
    if len(starts) == 0:
        return np.zeros(count, dtype=bool)
    return reached(from_starts(count, holder, held, starts), count)


def from_starts(
    count: int, holder: NDArray[np.integer], held: NDArray[np.integer], starts: NDArray[np.integer]
) -> csr_array:
    """The references as a matrix, and one from an object above all, which has the number `count`, to each start."""
    source = np.concatenate([holder, np.full(len(starts), count)])
    return _matrix(count + 1, source, np.concatenate([held, starts]), twice=True)


def reached(references: csr_array, top: int) -> Mask:
    """Which objects but the one above all a walk from that reaches."""
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
    matrix = _matrix(count, holder, held)
    number, label = connected_components(matrix, directed=True, connection="strong")
    cyclic = np.bincount(label, minlength=number) > 1
    cyclic[label[holder[holder == held]]] = True
    return label.astype(np.int64), cyclic


def _matrix(count: int, holder: NDArray[np.integer], held: NDArray[np.integer], twice: bool = False) -> csr_array:
    """The references as a matrix; `twice` leaves an object that holds another twice as two entries.

    Summing them up sorts every row, which a breadth-first walk does not need; without it scipy's strong components
    never end.
    """
    index = np.int32 if max(count, len(holder)) < 2**31 else np.int64
    data = np.ones(len(holder), dtype=np.float64)  # csgraph works in doubles; any other type is copied
    references = coo_array(
        (data, (holder.astype(index, copy=False), held.astype(index, copy=False))), shape=(count, count)
    )
    references.has_canonical_format = twice
    return references.tocsr()
