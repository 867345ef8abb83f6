"""From references to a trace a person can read, and to a fingerprint that stays the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from leakscope.findings.model import Hop, HopStatus
from leakscope.graph.model import HeapGraph, ObjectKind, ReferenceKind, RootKind

_TENSORS = (ObjectKind.TENSOR, ObjectKind.PARAMETER)
OF_TENSORS = (*_TENSORS, "grad node", "storage")


def generic(name: str) -> str:
    """A reference without what changes from step to step: `[17]` is `[i]`, `.next_functions[2]` keeps its dot."""
    if re.fullmatch(r"\[-?\d+\]", name):
        return "[i]"
    return re.sub(r"\[\d+\]$", "[i]", name) if name.startswith((".next_functions", "saved")) else name


def any_item(text: str) -> str:
    """An expression without the numbers of its items."""
    return re.sub(r"\[-?\d+\]", "[i]", text)


def grouping(name: str) -> str:
    """Even more generic, to collect the items of one container: any key is `[...]`."""
    return "[...]" if name.startswith("[") else re.sub(r"key .*", "key ...", generic(name))


def passes_through(graph: HeapGraph, reference: int) -> bool:
    """Whether a way goes through a tensor as through any instance: by an attribute that is no tensor, a list it carries."""
    r = graph.reference(reference)
    return (
        r.kind == ReferenceKind.ATTRIBUTE
        and graph.object(r.holder).kind in _TENSORS
        and graph.object(r.held).kind not in OF_TENSORS
    )


def key_of(graph: HeapGraph, start: int, way: Sequence[int], names: bool = False) -> tuple[str, ...]:
    """What holds a storage, up to the last container on the way: the same for every item of one container.

    Where no container holds it, up to the first tensor. Runs that repeat themselves (a linked list, a chain of
    graphs) count once.
    """
    kinds = [graph.object(int(graph.holder[reference])).kind for reference in way]
    before = next(
        (k for k, kind in enumerate(kinds) if kind in _TENSORS and not passes_through(graph, way[k])), len(kinds)
    )
    items = [k for k in range(before) if kinds[k] == "container"]
    parts = [_who(graph, start) + _native_type(graph, start)]
    for reference in way[: items[-1] + 1 if items else before]:
        r = graph.reference(reference)
        step = f"{generic(r.name) if names else grouping(r.name)} {_who(graph, r.held)}"
        if step not in parts[-3:]:
            parts.append(step)
    return tuple(parts)


def _who(graph: HeapGraph, index: int) -> str:
    found = graph.object(index)
    return "tensor" if found.kind in _TENSORS else f"{found.kind}:{found.name}"


def _native_type(graph: HeapGraph, start: int) -> str:
    """` float32`, the one thing known for good of a tensor that native code holds: its size may change from run to run."""
    found = graph.object(start)
    held = found.root == RootKind.NATIVE and found.kind in _TENSORS
    return f" {found.label.split()[-1].partition('[')[0]}" if held and "[" in found.label else ""


def fingerprint(parts: Sequence[str]) -> str:
    """Eight hexadecimal digits of generic references, type names and qualified names."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def hops(
    graph: HeapGraph,
    start: int,
    way: Sequence[int],
    leaked_from: int,
    frees: dict[int, int],
    reasons: tuple[str, str],
    one: Collection[int] = (),
) -> tuple[Hop, ...]:
    """The objects along a way; from position `leaked_from` on they are leaked.

    `frees` maps references to the bytes their cut would free; `reasons` say why the objects before and after
    that position have their status. Items are `[i]`, but for the references `one`.
    """
    found: list[Hop] = []
    indexes = [start, *(int(graph.held[r]) for r in way)]
    for place, index in enumerate(indexes):
        obj = graph.object(index)
        reference = int(way[place]) if place < len(way) else -1
        name = graph.reference(reference).name if reference >= 0 else ""
        leaked = place >= leaked_from
        where = obj.where or (graph.reference(reference).where if reference >= 0 else "")
        found.append(
            Hop(
                object=obj.label,
                type=obj.type,
                kind=obj.kind,
                where=graph.reference(reference).where or where if reference >= 0 else where,
                status=HopStatus.LEAKED if leaked else HopStatus.EXPECTED,
                reference=name if reference in one else generic(name),
                reason=reasons[1] if leaked else _root_reason(obj.root) or reasons[0],
                frees_bytes=frees.get(reference),
                index=index,
                references=(reference,) if reference >= 0 else (),
            )
        )
    return _shortened(found)


def _root_reason(root: str) -> str:
    return {
        "frame": "the function is still running",
        "module": "a module's namespace lives as long as the program",
        "thread": "the thread is still running",
        "native": "held by a running call or native code",
        "interpreter": "held by the interpreter",
    }.get(root, "")


def _shortened(found: list[Hop]) -> tuple[Hop, ...]:
    """A walk through many grad nodes is told as one hop."""
    result: list[Hop] = []
    skipped: list[int] = []
    for hop in found:
        if (
            result
            and result[-1].kind == ObjectKind.GRAD_NODE
            and hop.kind == ObjectKind.GRAD_NODE
            and hop.reference.startswith(".next_functions")
        ):
            skipped += hop.references
            continue
        if skipped and result:
            last = result[-1]
            result[-1] = replace(
                last,
                reference=f".next_functions ... {len(skipped)} grad nodes on",
                references=(*last.references, *skipped),
            )
            skipped = []
        result.append(hop)
    return tuple(result)
