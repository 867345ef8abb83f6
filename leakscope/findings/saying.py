"""A reference the way its user would write it: `model.metric.preds in main()`."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.findings.trace import generic
from leakscope.graph.model import HeapGraph, Object

SEVERAL = "more than one reference"
"""What closes a cycle that no single cut opens."""
_WEAK_DICTS = ("weakref.WeakKeyDictionary", "weakref.WeakValueDictionary", "torch.utils.weak.WeakIdKeyDictionary")
"""Dicts behind a `.data` that nobody writes."""
_PLAIN = ("attribute", "buffer", "item", "local", "closure")


def along_way(graph: HeapGraph, way: Sequence[int], last: int) -> str:
    """The way from a root down to the reference `last`, as an expression; its end alone where it is no code."""
    upto = list(way[: list(way).index(last) + 1]) if last in way else [last]
    root = graph.object(int(graph.holder[upto[0]]))
    text = ""
    for reference in upto:
        r = graph.reference(reference)
        if r.kind not in _PLAIN or r.name.startswith((".__", ".tb_", "key ", "(unn")) or not _is_code(r.name):
            return at_holder(graph, last)
        if r.kind in ("closure", "local") and text:
            return f"{generic(r.name)} of {_in(text, root)}" if reference == last else at_holder(graph, last)
        if not (r.name == ".data" and graph.object(r.holder).type in _WEAK_DICTS):
            text += generic(r.name).removeprefix("local ").removeprefix("closure ")
    return _in(text, root) if root.kind in ("frame", "namespace") else at_holder(graph, last)


def _in(text: str, root: Object) -> str:
    """An expression and the function or module it is written in."""
    if root.kind == "namespace":
        return text.removeprefix(".") if root.name == "__main__" else root.name + text
    return f"{text} in {root.name}()"


def _is_code(name: str) -> bool:
    return name.startswith((".", "[", "local ", "closure "))


def at_holder(graph: HeapGraph, reference: int) -> str:
    """One reference with its holder: `.activated of FastTanhBackward`, `closure act of mask_by_activation()`."""
    r = graph.reference(reference)
    holder, held = graph.object(r.holder), graph.object(r.held)
    if is_lru_cache(holder) and r.kind == "item":
        return f"the cache of {holder.name}()"
    if r.kind == "item" and held.kind in ("function", "method") and holder.type.endswith("OrderedDict"):
        return f"the hook {held.name}()"  # hook dicts are OrderedDicts by number: torch/utils/hooks.py
    owner = f"{holder.name}()" if holder.kind in ("function", "frame", "generator") else holder.label
    return f"{generic(r.name)} of {owner}"


def is_lru_cache(obj: Object) -> bool:
    """Whether this is what `functools.lru_cache` puts in a function's place, and its name that function's."""
    return obj.type == "functools._lru_cache_wrapper" and obj.name != obj.type
