"""The data of `holders`: what is alive now, by type and by holder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import numpy as np

from leakscope.graph.model import HeapGraph, Object, ObjectKind, Reference, ReferenceKind, RootKind, once
from leakscope.graph.walks import reachable


class RetentionKind(StrEnum):
    """By what some memory is kept."""

    PROGRAM = "program"
    """By the program: a variable, an attribute, a running call."""
    ERROR = "error"
    """Only by the traceback of an error that the interpreter or notebook remembers."""
    OUTPUT = "output"
    """Only by what an interactive session has displayed: `_`, `Out[3]`."""
    NATIVE = "native"
    """By native code or a running call; no Python object explains it."""
    WAITS_FOR_GC = "waits for gc"
    NEVER_FREED = "never freed"
    """By a cycle through C++ that gc cannot see."""
    UNSEEN = "unseen"
    """Handed out by the device's allocator, but owned by no reachable tensor."""


class ModelPart(StrEnum):
    """Part of the memory of a model or optimizer."""

    NONE = ""
    """Of neither."""
    PARAMETERS = "parameters"
    """Including buffers."""
    GRADIENTS = "gradients"
    STATE = "state"
    """Of an optimizer."""


class SessionHolder(StrEnum):
    """A holder that belongs to an interactive session."""

    OUTPUTS = "outputs"
    """`Out`, `_`, `__`, `___`, `_3`, and hidden copies by IPython."""
    SHOWN = "shown"
    """`_` of a plain interactive Python."""
    LAST_ERROR = "last error"
    """`sys.last_traceback`, `sys.last_value`, `sys.last_exc`."""
    TRACEBACK = "traceback"
    """IPython's, for `%debug` and `%tb`."""
    DEBUGGER = "debugger"
    """The frames inspected by `%debug`."""
    LAST_CELL = "last cell"
    """The result of the previous cell, replaced when the running cell ends."""


@dataclass(frozen=True)
class ReleasePlan:
    """The references that free some memory when all of them are removed."""

    written: tuple[str, ...]
    """As written in code; () if only the session keeps it."""
    where: tuple[str, ...]
    """The line of each, "" if unknown."""
    variables: tuple[str, ...]
    """The references that are names of the session: `x`."""
    keepers: tuple[SessionHolder, ...]
    """What the session must release too."""
    error_names: tuple[str, ...]
    """The existing names in `sys` that hold the last error."""
    bytes: int
    """Retained size, measured on the graph."""
    after_gc: bool
    """Whether a full collection is needed afterwards."""


@dataclass(frozen=True)
class ReleaseCommand:
    """One command for the user to type that frees memory."""

    keepers: tuple[SessionHolder, ...]
    """What the session releases by it."""
    error_names: tuple[str, ...]
    """As in `ReleasePlan`."""
    variables: tuple[str, ...]
    """Names that it deletes."""
    collects: bool
    """Whether a full collection follows or is part of it."""
    bytes: int
    """Bytes freed after the earlier commands, measured on the graph."""


@dataclass(frozen=True)
class HolderMemory:
    """The memory of one holder."""

    bytes: int
    storages: int
    kept: RetentionKind
    name: str
    """As written in code: `cache in main()`; "" without a holder in the program."""
    where: str
    """`train.py:12` or `In[5]:3`, "" if unknown."""
    part: ModelPart = ModelPart.NONE
    letting_go: ReleasePlan | None = None
    """What frees it; None if a few references do not, or if it was not computed."""


@dataclass(frozen=True)
class LiveMemory:
    """All live tensor memory, largest holders first; the bytes of all lines sum to `bytes`."""

    bytes: int
    storages: int
    device: str
    """`cpu`, or the kind of accelerator whose allocator was read."""
    lines: tuple[HolderMemory, ...]
    smaller: int
    """Number of holders that are not listed individually."""
    smaller_bytes: int
    """Their bytes."""
    typed: tuple[ReleaseCommand, ...]
    """Commands that free it, in order; () unless a user is typing."""
    error: str
    """Type of the last error in the session, "" without one."""
    hides: bool
    """Whether this torch does not show all C++ references."""


@dataclass(frozen=True)
class PathStep:
    """One reference of a path and its referent."""

    name: str
    """As written in code: `.losses`, `[3]`, `local x`, `saved self`."""
    holder: int
    held: int
    """Indexes into the `objects` of the `ReferencePaths`."""
    where: str


@dataclass(frozen=True)
class PathObject:
    """One object of a path."""

    label: str
    where: str
    root: str
    """Kind of its root, "" if it is not one."""


@dataclass(frozen=True)
class ReferencePath:
    """One simple path from a root, or from garbage, down to the memory."""

    written: str
    """`main(): losses[2].grad_fn, saved mat1`."""
    where: str
    links: tuple[PathStep, ...]


@dataclass(frozen=True)
class ReferencePaths:
    """Every path to one tensor's memory."""

    label: str
    """`Tensor float32[1000]`."""
    bytes: int
    """Bytes of its storage."""
    ways: tuple[ReferencePath, ...]
    """First the shortest path through each reference to it."""
    more: int
    """Number of paths that are not listed."""
    all_counted: bool
    """False if there are more than `more`."""
    of_garbage: bool
    """Whether garbage awaiting gc leads to it too."""
    keepers: tuple[SessionHolder, ...]
    """What an interactive session must release too."""
    objects: tuple[PathObject, ...]
    letting_go: ReleasePlan | None
    typed: tuple[ReleaseCommand, ...]
    """Commands that free it, in order; () unless a user is typing."""


_IPYTHON = ("IPython.", "ipykernel.")
_SHOWN_TYPES = re.compile(r"_{1,3}|_\d+")
"""Names that IPython assigns to displayed results (IPython/core/displayhook.py)."""
_OUT = ("Out", "_oh", "output_hist")
_LAST_ERROR = ("last_traceback", "last_value", "last_exc")
"""Names in `sys`, set when an error was displayed in an interactive session (CPython Python/pythonrun.c)."""
_ERRORS = (ObjectKind.EXCEPTION, ObjectKind.TRACEBACK, ObjectKind.FRAME)


def is_interactive(graph: HeapGraph) -> bool:
    """Whether IPython runs here, or an interactive Python that has displayed an error."""
    return _has_ipython(graph) or SessionHolder.LAST_ERROR in keepers_of(graph)


@once
def keepers_of(graph: HeapGraph) -> Mapping[SessionHolder, tuple[int, ...]]:
    """The references by which a session keeps memory, by kind."""
    found: dict[SessionHolder, list[int]] = {}
    ipython = _has_ipython(graph)
    for index in _holders(graph, ipython):
        holder = graph.object(index)
        for reference in map(graph.reference, graph.out_of(index).tolist()):
            keeper = _keeper(graph, holder, reference, ipython)
            if keeper is not None:
                found.setdefault(keeper, []).append(reference.index)
    return {keeper: tuple(found[keeper]) for keeper in SessionHolder if keeper in found}


def outputs_above(graph: HeapGraph, storages: Sequence[int]) -> tuple[str, ...]:
    """The names by which a session has displayed what leads to these storages: `Out[3]`, `_3`, `_`."""
    above = reachable(len(graph), graph.held, graph.holder, np.asarray(storages))
    keepers = keepers_of(graph)
    references = (
        graph.reference(r) for r in (*keepers.get(SessionHolder.OUTPUTS, ()), *keepers.get(SessionHolder.SHOWN, ()))
    )
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
    """Type of the last error, "" without one."""
    held = (graph.object(int(graph.held[r])) for r in keepers_of(graph).get(SessionHolder.LAST_ERROR, ()))
    return next((obj.name.rpartition(".")[2] for obj in held if obj.kind == ObjectKind.EXCEPTION), "")


def _has_ipython(graph: HeapGraph) -> bool:
    return any(text.endswith("InteractiveShell") and text.startswith(_IPYTHON) for text in graph.strings)


def _holders(graph: HeapGraph, ipython: bool) -> Iterator[int]:
    """Possible holders of a session: three modules, IPython objects and their dicts."""
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


def _keeper(graph: HeapGraph, holder: Object, reference: Reference, ipython: bool) -> SessionHolder | None:
    """The kind of the session's reference; None if it is the user's."""
    name = _bare(reference.name)
    if holder.kind == ObjectKind.NAMESPACE:
        return _of_module(holder.name, name, ipython)
    if name == "last_execution_result":
        return SessionHolder.LAST_CELL
    if holder.kind == ObjectKind.CONTAINER:
        above = {_bare(graph.reference(r).name) for r in graph.into(holder.index).tolist()}
        hidden = "user_ns_hidden" in above and _SHOWN_TYPES.fullmatch(name)
        return SessionHolder.OUTPUTS if hidden or above & set(_OUT) else None
    if _SHOWN_TYPES.fullmatch(name):
        return SessionHolder.OUTPUTS if holder.type.endswith("DisplayHook") else None
    if name == "pdb":
        return SessionHolder.DEBUGGER
    kept_error = name in ("tb", "etb", "evalue") and graph.object(reference.held).kind in _ERRORS
    return SessionHolder.TRACEBACK if kept_error else None


def _of_module(module: str, name: str, ipython: bool) -> SessionHolder | None:
    if module == "sys":
        return SessionHolder.LAST_ERROR if name in _LAST_ERROR else None
    if module == "builtins":
        return SessionHolder.SHOWN if name == "_" else None
    return SessionHolder.OUTPUTS if ipython and _SHOWN_TYPES.fullmatch(name) else None


def _bare(name: str) -> str:
    """`_3` for `._3` and for `['_3']`."""
    return name.removeprefix(".").removeprefix("['").removesuffix("']")


_RAN = (ObjectKind.FRAME, ObjectKind.GENERATOR, ObjectKind.FUNCTION)
_APART = (ReferenceKind.CLOSURE, ReferenceKind.SAVED, ReferenceKind.UNNAMED, ReferenceKind.OPERAND, ReferenceKind.COMM)
"""Kinds of references that are written after a comma."""


def written(graph: HeapGraph, path: Sequence[int]) -> str:
    """A path as code, `main(): trainer.losses[2].grad_fn, saved self`, without the name of `__main__`.

    Repetitions are counted if that is shorter: `[0][1][1]`, `.next_functions[0] (7 times)`.
    """
    root = graph.object(int(graph.holder[path[0]]))
    parts = []
    for name, alike in groupby(_names(graph, path)):
        times = len(list(alike))
        parts.append(min(name * times, f"{name} ({times} times)", key=len))
    below = "".join(parts).removeprefix(", ")
    if root.kind == ObjectKind.NAMESPACE and root.name == "__main__":
        return below.removeprefix(".")
    return f"{_root(root)}: {below.removeprefix('.')}" if below else _root(root)


def where_of(graph: HeapGraph, path: Sequence[int]) -> str:
    """The known line of the path nearest to the memory."""
    for reference in map(graph.reference, reversed(path)):
        if reference.where or graph.object(reference.holder).where:
            return reference.where or graph.object(reference.holder).where
    return ""


def _names(graph: HeapGraph, path: Sequence[int]) -> list[str]:
    names: list[str] = []
    for reference in map(graph.reference, path):
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
    """The root: `main()`, `module train`, `native code (Tensor float32[3])`."""
    if root.root == RootKind.NATIVE:
        return f"native code ({root.label})"
    if root.kind in _RAN:
        return f"{root.name}()"
    if root.kind == ObjectKind.NAMESPACE:
        return root.name
    return root.label
