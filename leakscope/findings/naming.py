"""Reference paths as expressions that a user would write, their places, and fingerprints."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from leakscope.findings.facts import HopStatus
from leakscope.findings.model import Hop, HopReason
from leakscope.graph.model import TENSOR_KINDS, HeapGraph, Object, ObjectKind, Reference, ReferenceKind, RootKind
from leakscope.graph.ownership import is_users

OF_TENSORS = (*TENSOR_KINDS, ObjectKind.GRAD_NODE, ObjectKind.STORAGE)
"""Kinds of objects that belong to a tensor: itself, its autograd node, its storage."""
NO_NAMES: Mapping[int, str] = {}
MODULE_DICTS = ("torch.nn.modules.container.ModuleDict", "torch.nn.modules.container.ParameterDict")
"""Types that a user indexes by keys that are attributes to torch."""
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
    """A reference without what changes between steps: `[17]` becomes `[i]`, `.next_functions[2]` keeps its dot."""
    if re.fullmatch(r"\[-?\d+\]", name):
        return "[i]"
    return re.sub(r"\[\d+\]$", "[i]", name) if name.startswith((".next_functions", "saved")) else name


def own_name(graph: HeapGraph, reference: Reference) -> str:
    """A reference as written in code: `['auroc']` for an entry of a ModuleDict, which is an attribute to torch."""
    by_key = reference.name.startswith(".") and graph.object(reference.holder).type in MODULE_DICTS
    if by_key and graph.object(reference.held).kind in (ObjectKind.NN_MODULE, ObjectKind.PARAMETER):
        return f"['{reference.name[1:]}']"
    return reference.name


def written(graph: HeapGraph, reference: Reference) -> str:
    """Its name without what changes between steps."""
    return mask_ids(generic(own_name(graph, reference)))


def any_item(text: str) -> str:
    """An expression without item numbers."""
    return re.sub(r"\[-?\d+\]", "[i]", text)


_ID = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # a UUID
    r"|0x[0-9a-fA-F]+"
    r"|(?<![0-9a-zA-Z])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,}(?![0-9a-zA-Z])"  # a hash
    r"|\d{7,}"
)
"""Part of a name that is specific to a run or step: an address, a hash, a time. Seven digits, because sizes, years and
counters have fewer (`fc2048`), and `id()` and time stamps more.
"""
ANY_NUMBER = "{i}"
"""Placeholder for a masked number, as in the f-string that makes such names."""


@lru_cache(1 << 12)
def mask_ids(name: str) -> str:
    """A name without addresses, hashes and long numbers: `__tracer_{i}` for `__tracer_140234981277328`."""
    return _ID.sub(ANY_NUMBER, name)


@lru_cache(1 << 14)
def numberless(name: str) -> str:
    """A name without its number: `.client{i}` for `.client12`."""
    return re.sub(r"\d+", ANY_NUMBER, name)


ANY_KEY = "[...]"
"""An item of a dict whose keys are data."""


def is_transparent(graph: HeapGraph, reference: int) -> bool:
    """Whether a path passes a tensor like any instance: through an attribute that is not a tensor."""
    r = graph.reference(reference)
    return (
        r.kind == ReferenceKind.ATTRIBUTE
        and graph.object(r.holder).kind in TENSOR_KINDS
        and graph.object(r.held).kind not in OF_TENSORS
    )


def fingerprint(parts: Sequence[str]) -> str:
    """Eight hexadecimal digits from generic references, type names and qualified names."""
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
    """The objects along a path; those from position `leaked_from` on are leaked.

    `frees` maps references to the bytes their cut would free; `reasons` say why the objects before and after that
    position have their status. Items are `[i]`, except references with one of the `names`.
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
    """A walk through many grad nodes as one hop."""
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


SEVERAL = "several references"
"""What closes a cycle that no single cut opens."""
_WEAK_DICTS = ("weakref.WeakKeyDictionary", "weakref.WeakValueDictionary", "torch.utils.weak.WeakIdKeyDictionary")
"""Dicts behind a `.data` that is not written in code."""
_DEFAULTS = (".__defaults__", ".__kwdefaults__")
_DEPTH_OF_LOCAL = 2
"""References from a threading.local to one of its attributes, including two dicts."""
INSTANCES = (
    ObjectKind.INSTANCE,
    ObjectKind.NN_MODULE,
    ObjectKind.OPTIMIZER,
    ObjectKind.EXCEPTION,
    ObjectKind.THREAD,
    ObjectKind.CONTAINER,
)
"""Kinds of objects whose attributes are written with a dot."""
_PLAIN = (
    ReferenceKind.ATTRIBUTE,
    ReferenceKind.BUFFER,
    ReferenceKind.ITEM,
    ReferenceKind.LOCAL,
    ReferenceKind.CLOSURE,
    ReferenceKind.HOOK,
)


_HOLDS_BY = re.compile(r"\.(?!_)\w+|metadata|(local|closure) \w+")
"""Kinds of references that a program writes by name."""


def as_expression(graph: HeapGraph, path: Sequence[int], last: int, names: Mapping[int, str] = NO_NAMES) -> str:
    """The path from a root down to the reference `last`, as written in code; only its end if it is not code.

    Items are `[i]`, except references with one of the `names`: those that the finding is about alone, and those that
    stand for many.
    """
    above = _down_to(path, last)
    inner = _inner(graph, above)
    above = above[inner:]
    root = graph.object(int(graph.holder[above[0]]))
    given = "" if inner else graph.given.get(root.index, "")
    text = "self" if inner else given
    for place, reference in enumerate(above):
        r = graph.reference(reference)
        of_python = _of_python(graph, above, place)
        if of_python is not None and (of_python or reference != last):
            text += of_python
            continue
        if r.kind not in _PLAIN or r.name.startswith((".__", ".tb_", "key ", "(unn")) or not _is_code(r.name):
            return as_part_of_holder(graph, last, names)
        if r.kind in (ReferenceKind.CLOSURE, ReferenceKind.LOCAL) and text:
            if reference != last:
                return as_part_of_holder(graph, last, names)
            return f"{names.get(reference, written(graph, r))} of {text if given else _in(text, root)}"
        if not (r.name == ".data" and graph.object(r.holder).type in _WEAK_DICTS):
            text += names.get(reference, written(graph, r)).removeprefix("local ").removeprefix("closure ")
    if given:
        return text
    if inner or root.kind in (ObjectKind.FRAME, ObjectKind.NAMESPACE):
        return _in(text, root)
    return as_part_of_holder(graph, last, names)


def _down_to(path: Sequence[int], last: int) -> list[int]:
    """The path down to the reference `last`, or only that if it is not on the path."""
    return list(path[: list(path).index(last) + 1]) if last in path else [last]


def _of_python(graph: HeapGraph, path: Sequence[int], place: int) -> str | None:
    """A reference inside an object of Python's own, as written there; None elsewhere.

    Those are the defaults of a function, and the attributes of a threading.local, which keeps a dict for each thread in
    a dict (CPython Modules/_threadmodule.c).
    """
    nearest = [graph.reference(path[k]) for k in range(place, max(place - 1 - _DEPTH_OF_LOCAL, -1), -1)]
    r = nearest[0]
    if r.name in _DEFAULTS or any(above.name == _DEFAULTS[0] for above in nearest[1:2]):
        return r.name
    of_local = (k for k, above in enumerate(nearest) if graph.object(above.holder).type == "_thread._local")
    depth = next(of_local, None)
    if depth is None:
        return None
    if depth < _DEPTH_OF_LOCAL:
        return ""
    return f".{r.name[2:-2]}" if r.name.startswith("['") else None


def line_of(graph: HeapGraph, path: Sequence[int], last: int) -> str:
    """The line of a reference, else of its holder, else of what is above it in the same expression.

    That is the nearest line above it in an object written as `self`, and the function's for its defaults. A hook
    finally has its own.
    """
    above = _down_to(path, last)
    r = graph.reference(last)
    lines = [r.where, graph.object(r.holder).where]
    lines += [
        graph.object(graph.reference(k).holder).where for k in above[-2:-1] if graph.reference(k).name in _DEFAULTS
    ]
    if inner := _inner(graph, above):
        lines += [graph.reference(k).where for k in reversed(above[inner:])]
    if is_hook(graph, r):
        lines.append(callable_of(graph, r.held).where)
    return next(filter(None, lines), "")


def _inner(graph: HeapGraph, path: Sequence[int]) -> int:
    """Position on a path from which its user would write it as `self. ...`, 0 for the root.

    It is the last object of a class of the user, if a private attribute of another object leads there:
    `trainer._strategy._module.seen`.
    """
    inner, private = 0, False
    for place, reference in enumerate(path):
        r = graph.reference(reference)
        holder = graph.object(r.holder)
        users = is_users(holder)
        if private and users and holder.kind in INSTANCES and not is_lru_cache(holder):
            inner = place
        private = private or (r.name.startswith("._") and not users)
    return inner


def _in(text: str, root: Object) -> str:
    """An expression and the function, module or class that contains it."""
    if root.kind == ObjectKind.NAMESPACE:
        return text.removeprefix(".") if root.name == "__main__" else root.name + text
    inner = root.kind in INSTANCES and text.startswith("self")
    return f"{text} in {root.name.rpartition('.')[2] if inner else f'{root.name}()'}"


def _is_code(name: str) -> bool:
    return name.startswith((".", "[", "local ", "closure "))


def as_part_of_holder(graph: HeapGraph, reference: int, names: Mapping[int, str] = NO_NAMES) -> str:
    """One reference with its holder: `.activated of FastTanhBackward`, `closure act of mask_by_activation()`, `closure
    walk over itself in flatten()`.
    """
    r = graph.reference(reference)
    holder = graph.object(r.holder)
    if is_lru_cache(holder) and r.kind == ReferenceKind.ITEM:
        return f"the cache of {holder.name}()"
    if is_hook(graph, r):
        return f"the hook {mask_ids(callable_of(graph, r.held).name)}()"
    within, _, own = holder.name.rpartition(".<locals>.")
    if r.held == r.holder and within and r.name == f"closure {own}":
        return mask_ids(f"{r.name} over itself in {within}()")
    owner = mask_ids(
        f"{holder.name}()"
        if holder.kind in (ObjectKind.FUNCTION, ObjectKind.FRAME, ObjectKind.GENERATOR)
        else holder.label
    )
    name = names.get(reference, written(graph, r))
    return _in_its_holder(graph, r.holder, name) or f"{name} of {owner}"


def _in_its_holder(graph: HeapGraph, container: int, name: str) -> str:
    """An item of a container without a name, as one of the container's holder: `metadata['out'] of MulBackward0`.

    "" if more than one object, or another container, holds the container.
    """
    above = graph.into(container).tolist()
    if graph.object(container).kind != ObjectKind.CONTAINER or not name.startswith("[") or len(above) != 1:
        return ""
    r = graph.reference(above[0])
    holder = graph.object(r.holder)
    if holder.kind == ObjectKind.CONTAINER or is_hook(graph, r) or not _HOLDS_BY.fullmatch(r.name):
        return ""
    called = holder.kind in (ObjectKind.FUNCTION, ObjectKind.FRAME, ObjectKind.GENERATOR)
    return f"{r.name}{name} of {holder.name}()" if called else f"{r.name}{name} of {holder.label}"


def is_lru_cache(obj: Object) -> bool:
    """Whether this is the wrapper made by `functools.lru_cache`, with its function's name."""
    return obj.type == "functools._lru_cache_wrapper" and obj.name != obj.type


def is_hook(graph: HeapGraph, reference: Reference) -> bool:
    """Whether the reference is from a dict of hooks to one of them.

    Those are OrderedDicts with numbers as keys (torch/utils/hooks.py).
    """
    return (
        reference.kind == ReferenceKind.ITEM
        and generic(reference.name) == "[i]"
        and graph.object(reference.holder).type.endswith("OrderedDict")
        and callable_of(graph, reference.held).kind in (ObjectKind.FUNCTION, ObjectKind.METHOD)
    )


def callable_of(graph: HeapGraph, index: int) -> Object:
    """The function or method that an object wraps: torch keeps some hooks in a `_WrappedHook`."""
    wrapped = (graph.reference(r) for r in graph.out_of(index).tolist())
    inside = next((r.held for r in wrapped if r.name == ".__wrapped__"), index)
    return graph.object(inside)


def written_apart(graph: HeapGraph, references: Sequence[int], names: Mapping[int, str] = NO_NAMES) -> list[str]:
    """Several references, each with its holder, and with the holder's owner if two would read the same."""
    written = [as_part_of_holder(graph, reference, names) for reference in references]
    alike = {text for text in written if written.count(text) > 1}
    return [
        f"{text}{_owner_of_dict(graph, reference)}" if text in alike else text
        for text, reference in zip(written, references, strict=True)
    ]


def _owner_of_dict(graph: HeapGraph, reference: int) -> str:
    """The owner of the dict or list with this reference, ` of Child module`; "" without one."""
    owners = {graph.object(int(graph.holder[above])).label for above in graph.into(int(graph.holder[reference]))}
    return f" of {min(owners)}" if owners else ""


_PLACE = re.compile(r"(.+):([0-9]{1,9})(?: (.*))?", re.DOTALL)
"""The last number between a colon and a space or the end: a path may contain such numbers, the text after the line does
not.
"""


class SourcePlace(NamedTuple):
    """A line of a source file and its text."""

    file: str
    line: int
    """1 or more."""
    function: str
    """`forward (aten::addmm)`; "" if only the line is known."""

    @property
    def at(self) -> str:
        """`train.py:41`."""
        return f"{self.file}:{self.line}"


def place_of(text: str) -> SourcePlace | None:
    """Parse a place; None if it has no line."""
    match = _PLACE.fullmatch(text)
    if match is None or int(match[2]) < 1:
        return None
    return SourcePlace(match[1], int(match[2]), match[3] or "")


def function_of(where: str) -> str:
    """The function of a place; all of it if it has none."""
    place = place_of(where)
    return where if place is None else place.function or where


def file_at(text: str) -> str:
    """The file of a place, "" if it has no line."""
    place = place_of(text)
    return "" if place is None else place.file
