"""How is a whole way written, from its root down to the memory?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from leakscope.graph.model import HeapGraph, Object, ObjectKind, ReferenceKind, RootKind

_RAN = (ObjectKind.FRAME, ObjectKind.GENERATOR, ObjectKind.FUNCTION)
_APART = (ReferenceKind.CLOSURE, ReferenceKind.SAVED, ReferenceKind.UNNAMED, ReferenceKind.OPERAND, ReferenceKind.COMM)
"""What cannot be written behind a dot."""


def written(graph: HeapGraph, way: Sequence[int]) -> str:
    """`main(): trainer.losses[2].grad_fn, saved self`, of `__main__` without its name.

    What repeats is counted where that is shorter: `[0][1][1]`, `.next_functions[0] (7 times)`.
    """
    root = graph.object(int(graph.holder[way[0]]))
    parts = []
    for name, alike in groupby(_names(graph, way)):
        times = len(list(alike))
        parts.append(min(name * times, f"{name} ({times} times)", key=len))
    below = "".join(parts).removeprefix(", ")
    if root.kind == ObjectKind.NAMESPACE and root.name == "__main__":
        return below.removeprefix(".")
    return f"{_root(root)}: {below.removeprefix('.')}" if below else _root(root)


def where_of(graph: HeapGraph, way: Sequence[int]) -> str:
    """The line nearest to the memory that is known of the way."""
    for reference in map(graph.reference, reversed(way)):
        if reference.where or graph.object(reference.holder).where:
            return reference.where or graph.object(reference.holder).where
    return ""


def _names(graph: HeapGraph, way: Sequence[int]) -> list[str]:
    names: list[str] = []
    for reference in map(graph.reference, way):
        held = graph.object(reference.held)
        if reference.kind == ReferenceKind.MEMORY:
            continue
        if reference.kind == ReferenceKind.LOCAL:
            names.append(", " + reference.name.removeprefix("local ") if names else reference.name[len("local ") :])
        elif reference.kind in _APART or not reference.name.startswith((".", "[")):
            names.append(f", {reference.name}")
        else:
            names.append(reference.name)
        if held.kind == ObjectKind.FRAME:
            names.append(f", {held.name}()")
    return names


def _root(root: Object) -> str:
    """`main()`, `module train`, `native code (Tensor float32[3])`."""
    if root.root == RootKind.NATIVE:
        return f"native code ({root.label})"
    if root.kind in _RAN:
        return f"{root.name}()"
    if root.kind == ObjectKind.NAMESPACE:
        return root.name
    return root.label
