"""Heaps from text: one reference a line, objects made as they are named.

    module train -> .losses -> list losses
    list losses -> [0] -> tensor a
    tensor a -> storage -> storage a 400

`freed=1` or `freed=never` behind the last object says so of it; a storage's number is its bytes, a
list's its items, `maxlen=9` its bound, `where=train.py:7` its line; `frame work#1` and `frame work#2` are two
calls of one function.
"""

from __future__ import annotations

from leakscope.graph.model import IMMORTAL, HeapGraph, Object, Reference, build

_KINDS = {
    "module": "namespace", "list": "container", "dict": "container", "tensor": "tensor", "storage": "storage",
    "node": "grad node", "function": "function", "frame": "frame", "object": "instance", "method": "method",
    "callback": "frame", "native": "tensor", "exception": "exception", "network": "nn.Module", "parameter": "parameter",
    "class": "class", "functools._lru_cache_wrapper": "container",
}  # fmt: skip
_ROOTS = {"module": "module", "frame": "frame", "callback": "callback", "native": "native"}


def heap_from(text: str) -> HeapGraph:
    """The graph that the text tells."""
    objects: dict[tuple[str, str], Object] = {}
    references: list[Reference] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        holder, name, held = (part.strip() for part in line.split(" -> "))
        ends = [_object(objects, end.split()) for end in (holder, held)]
        references.append(Reference(len(references), ends[0], ends[1], _reference_kind(name), name))
    return build(list(objects.values()), references)


def _object(objects: dict[tuple[str, str], Object], words: list[str]) -> int:
    kind, name, *more = words
    known = objects.get((kind, name))
    if known is None:
        size = next((int(word) for word in more if word.isdigit()), -1)
        where = next((word[6:] for word in more if word.startswith("where=")), "")
        freed = next((word[6:] for word in more if word.startswith("freed=")), "0")
        label = f"{kind}, 3 items" if kind in ("list", "dict") else f"{kind} {name.partition('#')[0]}"
        label += next((f", maxlen {word[7:]}" for word in more if word.startswith("maxlen=")), "")
        known = objects[kind, name] = Object(
            index=len(objects), type=kind, kind=_KINDS[kind], label=label,
            name=kind if kind in ("list", "dict", "tensor") else name.partition("#")[0],
            where=where, bytes=max(size, 0) if kind == "storage" else 0, size=size, root=_ROOTS.get(kind, ""),
            freed=IMMORTAL if freed == "never" else int(freed), unexplained=0,
        )  # fmt: skip
    return known.index


def _reference_kind(name: str) -> str:
    first = name.split(maxsplit=1)[0]
    if name == "storage":
        return "memory"
    if name.startswith("["):
        return "item"
    return {
        "closure": "closure",
        "local": "local",
        "saved": "saved",
        "hook": "hook",
        ".grad_fn": "grad graph",
        "cached": "item",
    }.get(first, "attribute")


def path_text(graph: HeapGraph, start: int, path: list[int]) -> str:
    """A way as text, for golden comparisons."""
    text = graph.object(start).label
    for reference in map(graph.reference, path):
        text += f" {reference.name} -> {graph.object(reference.held).label}"
    return text
