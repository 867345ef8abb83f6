"""What does an interactive session keep by itself: what it has shown, and its last error?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from leakscope.findings.holding.model import Keeper
from leakscope.graph.model import HeapGraph, Object, ObjectKind, Reference
from leakscope.graph.once import once
from leakscope.graph.reach import reachable

_IPYTHON = ("IPython.", "ipykernel.")
_SHOWN = re.compile(r"_{1,3}|_\d+")
"""Names that IPython gives to what a cell has shown (IPython/core/displayhook.py)."""
_OUT = ("Out", "_oh", "output_hist")
_LAST_ERROR = ("last_traceback", "last_value", "last_exc")
"""Of `sys`, set where an error was shown to somebody who types (CPython Python/pythonrun.c)."""
_ERRORS = (ObjectKind.EXCEPTION, ObjectKind.TRACEBACK, ObjectKind.FRAME)


def is_interactive(graph: HeapGraph) -> bool:
    """Whether IPython runs here, or a plain Python that has shown an error to who types."""
    return _has_ipython(graph) or Keeper.LAST_ERROR in keepers_of(graph)


@once
def keepers_of(graph: HeapGraph) -> Mapping[Keeper, tuple[int, ...]]:
    """The references by which a session keeps memory, each sort of them where there are any."""
    found: dict[Keeper, list[int]] = {}
    ipython = _has_ipython(graph)
    for index in _holders(graph, ipython):
        holder = graph.object(index)
        for reference in map(graph.reference, graph.out_of(index).tolist()):
            keeper = _keeper(graph, holder, reference, ipython)
            if keeper is not None:
                found.setdefault(keeper, []).append(reference.index)
    return {keeper: tuple(found[keeper]) for keeper in Keeper if keeper in found}


def outputs_above(graph: HeapGraph, storages: Sequence[int]) -> tuple[str, ...]:
    """The names by which a session has shown what leads to these storages: `Out[3]`, `_3`, `_`."""
    above = reachable(len(graph), graph.held, graph.holder, np.asarray(storages))
    keepers = keepers_of(graph)
    references = (graph.reference(r) for r in (*keepers.get(Keeper.OUTPUTS, ()), *keepers.get(Keeper.SHOWN, ())))
    names = []
    for reference in references:
        holder = graph.object(reference.holder)
        if not above[reference.held]:
            continue
        if holder.kind == ObjectKind.NAMESPACE:
            names.append(_bare(reference.name))
        elif re.fullmatch(r"\[\d+\]", reference.name):
            names.append(f"Out{reference.name}")
    return tuple(sorted(dict.fromkeys(names), key=lambda name: (not name.startswith("Out"), len(name), name)))


def last_error(graph: HeapGraph) -> str:
    """The type of the last error, "" without one."""
    held = (graph.object(int(graph.held[r])) for r in keepers_of(graph).get(Keeper.LAST_ERROR, ()))
    return next((obj.name.rpartition(".")[2] for obj in held if obj.kind == ObjectKind.EXCEPTION), "")


def _has_ipython(graph: HeapGraph) -> bool:
    return any(text.endswith("InteractiveShell") and text.startswith(_IPYTHON) for text in graph.strings)


def _holders(graph: HeapGraph, ipython: bool) -> Iterator[int]:
    """What may hold for a session: three modules, objects of IPython's, and the dicts that those have."""
    for index in graph.of_kind(ObjectKind.NAMESPACE).tolist():
        if graph.object(index).name in ("__main__", "builtins", "sys"):
            yield index
    if not ipython:
        return
    for index in graph.of_kind(ObjectKind.INSTANCE).tolist():
        if graph.object(index).type.startswith(_IPYTHON):
            yield index
    for index in graph.of_kind(ObjectKind.CONTAINER).tolist():
        names = {_bare(graph.reference(r).name) for r in graph.into(index).tolist()}
        if names & {*_OUT, "user_ns_hidden", "_trait_values"}:
            yield index


def _keeper(graph: HeapGraph, holder: Object, reference: Reference, ipython: bool) -> Keeper | None:
    """For what a session holds by this reference; None where that is the user's own."""
    name = _bare(reference.name)
    if holder.kind == ObjectKind.NAMESPACE:
        return _of_module(holder.name, name, ipython)
    if name == "last_execution_result":
        return Keeper.LAST_CELL
    if holder.kind == ObjectKind.CONTAINER:
        above = {_bare(graph.reference(r).name) for r in graph.into(holder.index).tolist()}
        hidden = "user_ns_hidden" in above and _SHOWN.fullmatch(name)
        return Keeper.OUTPUTS if hidden or above & set(_OUT) else None
    if _SHOWN.fullmatch(name):
        return Keeper.OUTPUTS if holder.type.endswith("DisplayHook") else None
    if name == "pdb":
        return Keeper.DEBUGGER
    kept_error = name in ("tb", "etb", "evalue") and graph.object(reference.held).kind in _ERRORS
    return Keeper.TRACEBACK if kept_error else None


def _of_module(module: str, name: str, ipython: bool) -> Keeper | None:
    if module == "sys":
        return Keeper.LAST_ERROR if name in _LAST_ERROR else None
    if module == "builtins":
        return Keeper.SHOWN if name == "_" else None
    return Keeper.OUTPUTS if ipython and _SHOWN.fullmatch(name) else None


def _bare(name: str) -> str:
    """`_3` for `._3` and for `['_3']`."""
    return name.removeprefix(".").removeprefix("['").removesuffix("']")
