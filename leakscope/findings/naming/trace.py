"""From references to a trace a person can read, and to a fingerprint that stays the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from leakscope.findings.kinds import HopStatus
from leakscope.findings.model import Hop
from leakscope.findings.why import HopReason
from leakscope.graph.model import HeapGraph, ObjectKind, Reference, ReferenceKind, RootKind

_TENSORS = (ObjectKind.TENSOR, ObjectKind.PARAMETER)
OF_TENSORS = (*_TENSORS, ObjectKind.GRAD_NODE, ObjectKind.STORAGE)
"""Kinds of what a tensor is made of and what made it."""
NO_NAMES: Mapping[int, str] = {}
MODULE_DICTS = ("torch.nn.modules.container.ModuleDict", "torch.nn.modules.container.ParameterDict")
"""Types that a user asks by key for what are attributes to torch."""
_REPEATED = 3
"""Parts of a key in which the next one is looked for: a linked list repeats `.next`, one of dicts three references."""


_ROOT_REASONS: Mapping[str, HopReason] = {
    RootKind.FRAME: HopReason.FUNCTION_RUNS,
    RootKind.CALLBACK: HopReason.FUNCTION_RUNS,
    RootKind.MODULE: HopReason.MODULE,
    RootKind.THREAD: HopReason.THREAD_RUNS,
    RootKind.NATIVE: HopReason.NATIVE,
    RootKind.INTERPRETER: HopReason.INTERPRETER,
}
"""Why a root is alive."""


@lru_cache(1 << 12)
def generic(name: str) -> str:
    """A reference without what changes from step to step: `[17]` is `[i]`, `.next_functions[2]` keeps its dot."""
    if re.fullmatch(r"\[-?\d+\]", name):
        return "[i]"
    return re.sub(r"\[\d+\]$", "[i]", name) if name.startswith((".next_functions", "saved")) else name


def own_name(graph: HeapGraph, reference: Reference) -> str:
    """A reference as its user would write it: `['auroc']` for what stands in a ModuleDict, an attribute to torch."""
    by_key = reference.name.startswith(".") and graph.object(reference.holder).type in MODULE_DICTS
    if by_key and graph.object(reference.held).kind in (ObjectKind.NN_MODULE, ObjectKind.PARAMETER):
        return f"['{reference.name[1:]}']"
    return reference.name


def written(graph: HeapGraph, reference: Reference) -> str:
    """Its own name without what changes from step to step."""
    return without_ids(generic(own_name(graph, reference)))


def any_item(text: str) -> str:
    """An expression without the numbers of its items."""
    return re.sub(r"\[-?\d+\]", "[i]", text)


@lru_cache(1 << 12)
def group_name(name: str) -> str:
    """Even more generic, to collect the items of one container: any key is `[...]`."""
    return ANY_KEY if name.startswith("[") else without_ids(re.sub(r"key .*", "key ...", generic(name)))


_ID = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # a UUID
    r"|0x[0-9a-fA-F]+"
    r"|(?<![0-9a-zA-Z])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,}(?![0-9a-zA-Z])"  # a hash
    r"|\d{7,}"
)
"""What is a name's only in one run or one step: an address, a hash, a time. Seven digits, because sizes, years and
counters have fewer (`fc2048`), and because `id()` and time stamps have more.
"""
ANY_NUMBER = "{i}"
"""What stands for a number that is masked, as in the f-string that makes such names."""


@lru_cache(1 << 12)
def without_ids(name: str) -> str:
    """A name without addresses, hashes and long numbers: `__tracer_{i}` of `__tracer_140234981277328`."""
    return _ID.sub(ANY_NUMBER, name)


@lru_cache(1 << 14)
def numberless(name: str) -> str:
    """`.client{i}` of `.client12`."""
    return re.sub(r"\d+", ANY_NUMBER, name)


ANY_KEY = "[...]"
"""An item of a dict whose key is data."""


def is_literal_key(name: str) -> bool:
    """Whether a reference is an item whose key is a string, as a program writes it: `['train']`."""
    return name.startswith(("['", '["'))


def passes_through(graph: HeapGraph, reference: int) -> bool:
    """Whether a path goes through a tensor as through any instance: by an attribute that is no tensor."""
    r = graph.reference(reference)
    return (
        r.kind == ReferenceKind.ATTRIBUTE
        and graph.object(r.holder).kind in _TENSORS
        and graph.object(r.held).kind not in OF_TENSORS
    )


def key_of(graph: HeapGraph, start: int, path: Sequence[int], names: bool = False) -> tuple[str, ...]:
    """What holds a storage, up to the last container on the path: the same for every item of one container.

    Where no container holds it, up to the first tensor. Runs that repeat themselves (a linked list, a chain of
    graphs) count once. A string by which a dict has something stays, `['train']`: `grouping/names` masks those that
    turn out to be data. Below a position it is masked here, as every item of a list has the same ones.
    """
    kinds = [graph.object(int(graph.holder[reference])).kind for reference in path]
    tensors = (k for k, kind in enumerate(kinds) if kind in _TENSORS and not passes_through(graph, path[k]))
    before = next(tensors, len(kinds))
    items = [k for k in range(before) if kinds[k] == ObjectKind.CONTAINER]
    parts = [_kind_and_name(graph, start) + _native_type(graph, start) + _given_apart(graph, start)]
    of_one = True
    for reference in path[: items[-1] + 1 if items else before]:
        name = graph.reference(reference).name
        of_one = of_one and (not name.startswith("[") or is_literal_key(name))
        part = part_of(graph, reference, names, of_one)
        if part not in parts[-_REPEATED:]:
            parts.append(part)
    return tuple(parts)


def part_of(graph: HeapGraph, reference: int, names: bool = False, keys: bool = True) -> str:
    """What a key says of one reference: its name, the more generic one without `names`, and what it holds.

    With `keys`, a string by which a dict has that is part of the name.
    """
    r = graph.reference(reference)
    name = generic(r.name) if names else literal_name(r.name) if keys else group_name(r.name)
    return f"{name} {_kind_and_name(graph, r.held)}"


def literal_name(name: str) -> str:
    """As `group_name`, but a key that is a string stays."""
    return without_ids(name) if is_literal_key(name) else group_name(name)


def without_key(part: str) -> str:
    """A part of a key without the string by which a dict has it: `[...] list` of `['train'] list`."""
    return re.sub(r"^\[.*\](?= )", ANY_KEY, part) if is_literal_key(part) else part


def _kind_and_name(graph: HeapGraph, index: int) -> str:
    obj = graph.object(index)
    return "tensor" if obj.kind in _TENSORS else f"{obj.kind}:{without_ids(obj.name)}"


def _native_type(graph: HeapGraph, start: int) -> str:
    """` float32`, the one thing known for good of a tensor that native code holds: its size changes from run to run."""
    obj = graph.object(start)
    held = obj.root == RootKind.NATIVE and obj.kind in _TENSORS
    return f" {obj.label.split()[-1].partition('[')[0]}" if held and "[" in obj.label else ""


def _given_apart(graph: HeapGraph, start: int) -> str:
    """The name that the user gave an object, where another one of its type was given, too; else its type says it."""
    alike = [index for index in graph.given if graph.type[index] == graph.type[start]]
    return f" {graph.given[start]}" if start in graph.given and len(alike) > 1 else ""


def fingerprint(parts: Sequence[str]) -> str:
    """Eight hexadecimal digits of generic references, type names and qualified names."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def hops(
    graph: HeapGraph,
    start: int,
    path: Sequence[int],
    leaked_from: int,
    frees: dict[int, int],
    reasons: tuple[HopReason | None, HopReason | None],
    names: Mapping[int, str] = NO_NAMES,
) -> tuple[Hop, ...]:
    """The objects along a path; from position `leaked_from` on they are leaked.

    `frees` maps references to the bytes their cut would free; `reasons` say why the objects before and after
    that position have their status. Items are `[i]`, but for references that have one of the `names`.
    """
    hops_of_path: list[Hop] = []
    indexes = [start, *(int(graph.held[r]) for r in path)]
    for place, index in enumerate(indexes):
        obj = graph.object(index)
        leaked = place >= leaked_from
        status = HopStatus.LEAKED if leaked else HopStatus.EXPECTED
        reason = reasons[1] if leaked else _ROOT_REASONS.get(obj.root) or reasons[0]
        label = f"{graph.given[index]} ({obj.label})" if place == 0 and index in graph.given else obj.label
        base = graph.bases.get(obj.type, "")
        hop = Hop(label, obj.type, obj.kind, obj.where, status, "", reason or "", index=index, name=obj.name, base=base)
        if obj.kind == ObjectKind.CONTAINER and obj.size > 0:
            hop = replace(hop, others=max(obj.size - len(graph.out_of(index)), 0))
        if place < len(path):
            r = graph.reference(int(path[place]))
            hop = replace(
                hop,
                where=obj.where if obj.where and obj.kind == ObjectKind.FUNCTION else r.where or obj.where,
                reference=names.get(r.index, written(graph, r)),
                frees_bytes=frees.get(r.index),
                references=(r.index,),
            )
        hops_of_path.append(hop)
    return _shortened(hops_of_path)


def _shortened(whole: Sequence[Hop]) -> tuple[Hop, ...]:
    """A walk through many grad nodes is told as one hop."""
    shortened: list[Hop] = []
    skipped: list[int] = []
    for hop in whole:
        if (
            shortened
            and shortened[-1].kind == ObjectKind.GRAD_NODE
            and hop.kind == ObjectKind.GRAD_NODE
            and hop.reference.startswith(".next_functions")
        ):
            skipped += hop.references
            continue
        if skipped:
            last = shortened[-1]
            shortened[-1] = replace(
                last,
                reference=f".next_functions ... {len(skipped)} grad nodes on",
                references=(*last.references, *skipped),
            )
            skipped = []
        shortened.append(hop)
    return tuple(shortened)
