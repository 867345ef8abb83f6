"""What is asked of a graph again and again, and found once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from leakscope.graph.model import HeapGraph

Answer = TypeVar("Answer")


def once(work: Callable[[HeapGraph], Answer]) -> Callable[[HeapGraph], Answer]:
    """What `work` finds in a graph is found once, and kept for as long as the graph is.

    The answer must not hold the graph itself, or neither is ever freed.
    """
    known: WeakKeyDictionary[HeapGraph, Answer] = WeakKeyDictionary()

    @wraps(work)
    def answer(graph: HeapGraph) -> Answer:
        if graph not in known:
            known[graph] = work(graph)
        return known[graph]

    return answer
