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


class Kept(StrEnum):
    """By what some memory is kept."""

    PROGRAM = "program"
    """By what the program itself holds: a variable, an attribute, a running call."""
    ERROR = "error"
    """By nothing but the traceback of an error that the interpreter or the notebook remembers."""
    OUTPUT = "output"
    """By nothing but what an interactive session has shown: `_`, `Out[3]`."""
    NATIVE = "native"
    """By native code or a running call; no Python object explains it."""
    WAITS_FOR_GC = "waits for gc"
    NEVER_FREED = "never freed"
    """By a cycle through C++ that gc cannot see."""
    UNSEEN = "unseen"
    """The allocator of the device has it out, and no tensor that can be reached owns it."""


class Part(StrEnum):
    """Which memory of a model or an optimizer."""

    NONE = ""
    """It is of none."""
    PARAMETERS = "parameters"
    """And buffers."""
    GRADIENTS = "gradients"
    STATE = "state"
    """Of an optimizer."""


class Keeper(StrEnum):
    """What an interactive session keeps by itself."""

    OUTPUTS = "outputs"
    """`Out`, `_`, `__`, `___`, `_3`, and the copies of them that IPython hides."""
    SHOWN = "shown"
    """`_` of a plain interactive Python."""
    LAST_ERROR = "last error"
    """`sys.last_traceback`, `sys.last_value`, `sys.last_exc`."""
    TRACEBACK = "traceback"
    """IPython's own for `%debug` and `%tb`."""
    DEBUGGER = "debugger"
    """The frames at which `%debug` stood."""
    LAST_CELL = "last cell"
    """The result of the cell before, replaced when the cell that runs now is over."""


@dataclass(frozen=True)
class LettingGo:
    """The references that free some memory when all of them are gone."""

    written: tuple[str, ...]
    """As the user would write them; () where only the session keeps it."""
    where: tuple[str, ...]
    """The line of each, "" where none is known."""
    variables: tuple[str, ...]
    """Those of them that are names of the session: `x`."""
    keepers: tuple[Keeper, ...]
    """What the session has to let go of, too."""
    error_names: tuple[str, ...]
    """Of the names in `sys` by which it keeps the last error, those that are there."""
    bytes: int
    """What that would free: measured on the graph."""
    after_gc: bool
    """Only with a full collection after it."""


@dataclass(frozen=True)
class Typed:
    """One command that lets go of memory, for who types."""

    keepers: tuple[Keeper, ...]
    """What the session lets go of by it."""
    error_names: tuple[str, ...]
    """As in `LettingGo`."""
    variables: tuple[str, ...]
    """Names that it deletes."""
    collects: bool
    """A full collection comes after it, or is part of it."""
    bytes: int
    """What it would free once those before it are typed: measured on the graph."""


@dataclass(frozen=True)
class HeldNow:
    """What one holder keeps."""

    bytes: int
    storages: int
    kept: Kept
    name: str
    """As its user would write it: `cache in main()`; "" where nothing of the program's holds it."""
    where: str
    """`train.py:12` or `In[5]:3`, "" where no line is known."""
    part: Part = Part.NONE
    letting_go: LettingGo | None = None
    """What frees it; None where a few references do not, or where it was not asked."""


@dataclass(frozen=True)
class Alive:
    """All tensor memory that is alive, the largest holders first; the bytes of all lines are `bytes`."""

    bytes: int
    storages: int
    device: str
    """`cpu`, or the kind of accelerator whose allocator was asked."""
    lines: tuple[HeldNow, ...]
    smaller: int
    """Holders that are not told one by one:"""
    smaller_bytes: int
    """their bytes."""
    typed: tuple[Typed, ...]
    """What to type to let go of it, in this order; () where nobody types."""
    error: str
    """The type of the last error that the session remembers, "" without one."""
    hides: bool
    """Whether this torch does not show all that C++ holds."""


@dataclass(frozen=True)
class Link:
    """One reference of a way, and what it holds."""

    name: str
    """As written in code: `.losses`, `[3]`, `local x`, `saved self`."""
    holder: int
    held: int
    """Indexes into `Ways.objects`."""
    where: str


@dataclass(frozen=True)
class Place:
    """One object of a way."""

    label: str
    where: str
    root: str
    """Why it lives of itself, "" where it does not."""


@dataclass(frozen=True)
class Way:
    """One simple way from a root, or from garbage, down to the memory."""

    written: str
    """`main(): losses[2].grad_fn, saved mat1`."""
    where: str
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Ways:
    """Every way from what is alive to one tensor's memory."""

    label: str
    """`Tensor float32[1000]`."""
    bytes: int
    """Of its storage."""
    ways: tuple[Way, ...]
    """The shortest one by each reference to it first."""
    more: int
    """Ways that are not listed."""
    all_counted: bool
    """False where there are more than `more`."""
    of_garbage: bool
    """Whether garbage that waits for gc leads to it, too."""
    keepers: tuple[Keeper, ...]
    """What an interactive session has to let go of, too."""
    objects: tuple[Place, ...]
    letting_go: LettingGo | None
    typed: tuple[Typed, ...]
    """What to type to let go of it, in this order; () where nobody types."""


_IPYTHON = ("IPython.", "ipykernel.")
_SHOWN_TYPES = re.compile(r"_{1,3}|_\d+")
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
        hidden = "user_ns_hidden" in above and _SHOWN_TYPES.fullmatch(name)
        return Keeper.OUTPUTS if hidden or above & set(_OUT) else None
    if _SHOWN_TYPES.fullmatch(name):
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
    return Keeper.OUTPUTS if ipython and _SHOWN_TYPES.fullmatch(name) else None


def _bare(name: str) -> str:
    """`_3` for `._3` and for `['_3']`."""
    return name.removeprefix(".").removeprefix("['").removesuffix("']")


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
