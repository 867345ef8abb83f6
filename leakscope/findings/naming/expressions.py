"""A reference the way its user would write it: `model.metric.preds in main()`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from leakscope.findings.naming.trace import generic
from leakscope.graph.model import HeapGraph, Object, ObjectKind, ReferenceKind
from leakscope.graph.ownership import is_users

SEVERAL = "more than one reference"
"""What closes a cycle that no single cut opens."""
_WEAK_DICTS = ("weakref.WeakKeyDictionary", "weakref.WeakValueDictionary", "torch.utils.weak.WeakIdKeyDictionary")
"""Dicts behind a `.data` that nobody writes."""
_DEFAULTS = (".__defaults__", ".__kwdefaults__")
_INSTANCES = (
    ObjectKind.INSTANCE,
    ObjectKind.NN_MODULE,
    ObjectKind.OPTIMIZER,
    ObjectKind.EXCEPTION,
    ObjectKind.THREAD,
    ObjectKind.CONTAINER,
)
_PLAIN = (
    ReferenceKind.ATTRIBUTE,
    ReferenceKind.BUFFER,
    ReferenceKind.ITEM,
    ReferenceKind.LOCAL,
    ReferenceKind.CLOSURE,
    ReferenceKind.HOOK,
)


def along_way(graph: HeapGraph, way: Sequence[int], last: int, one: Collection[int] = ()) -> str:
    """The way from a root down to the reference `last`, as an expression; its end alone where it is no code.

    Items are `[i]`, but for the references `one`: there the finding is about one item alone.
    """
    upto = list(way[: list(way).index(last) + 1]) if last in way else [last]
    upto, text = upto[(inner := _inner(graph, upto)) :], "self" if inner else ""
    root = graph.object(int(graph.holder[upto[0]]))
    for place, reference in enumerate(upto):
        r = graph.reference(reference)
        known = _of_python(graph, upto, place)
        if known is not None and (known or reference != last):
            text += known
            continue
        if r.kind not in _PLAIN or r.name.startswith((".__", ".tb_", "key ", "(unn")) or not _is_code(r.name):
            return at_holder(graph, last, one)
        if r.kind in (ReferenceKind.CLOSURE, ReferenceKind.LOCAL) and text:
            return f"{generic(r.name)} of {_in(text, root)}" if reference == last else at_holder(graph, last, one)
        if not (r.name == ".data" and graph.object(r.holder).type in _WEAK_DICTS):
            text += (r.name if reference in one else generic(r.name)).removeprefix("local ").removeprefix("closure ")
    return (
        _in(text, root)
        if inner or root.kind in (ObjectKind.FRAME, ObjectKind.NAMESPACE)
        else at_holder(graph, last, one)
    )


def _of_python(graph: HeapGraph, way: Sequence[int], place: int) -> str | None:
    """A reference inside an object of Python's own as it is written there, None elsewhere: the defaults of a function, the
    attributes of a threading.local, which keeps a dict for each thread in a dict (CPython Modules/_threadmodule.c).
    """
    r, *above = [graph.reference(way[k]) for k in range(place, max(place - 3, -1), -1)]
    if r.name in _DEFAULTS or any(one.name == _DEFAULTS[0] for one in above[:1]):
        return r.name
    local = next((k for k, one in enumerate((r, *above)) if graph.object(one.holder).type == "_thread._local"), None)
    attribute = local == 2 and r.name.startswith("['")
    return None if local is None else f".{r.name[2:-2]}" if attribute else "" if local < 2 else None


def line_along(graph: HeapGraph, way: Sequence[int], last: int) -> str:
    """The line of a reference, else of its holder; inside an object that is written as `self`, of the nearest one above it too."""
    upto = list(way[: list(way).index(last) + 1]) if last in way else [last]
    r = graph.reference(last)
    lines = [r.where, graph.object(r.holder).where]
    lines += [
        graph.object(graph.reference(k).holder).where for k in upto[-2:-1] if graph.reference(k).name in _DEFAULTS
    ]
    if inner := _inner(graph, upto):
        lines += [graph.reference(above).where for above in reversed(upto[inner:])]
    return next(filter(None, lines), "")


def _inner(graph: HeapGraph, way: Sequence[int]) -> int:
    """Position on a way from which its user would write it as `self. ...`, 0 for the root.

    It is the last object of a class of the user's, where a private attribute of an object that is not the user's leads
    there: `trainer._strategy._module.seen`.
    """
    inner, private = 0, False
    for place, reference in enumerate(way):
        r = graph.reference(reference)
        holder = graph.object(r.holder)
        users = is_users(holder)
        if private and users and holder.kind in _INSTANCES and not is_lru_cache(holder):
            inner = place
        private = private or (r.name.startswith("._") and not users)
    return inner


def _in(text: str, root: Object) -> str:
    """An expression and the function, module or class it is written in."""
    if root.kind == ObjectKind.NAMESPACE:
        return text.removeprefix(".") if root.name == "__main__" else root.name + text
    inner = root.kind in _INSTANCES and text.startswith("self")
    return f"{text} in {root.name.rpartition('.')[2] if inner else f'{root.name}()'}"


def _is_code(name: str) -> bool:
    return name.startswith((".", "[", "local ", "closure "))


def at_holder(graph: HeapGraph, reference: int, one: Collection[int] = ()) -> str:
    """One reference with its holder: `.activated of FastTanhBackward`, `closure act of mask_by_activation()`."""
    r = graph.reference(reference)
    holder, held = graph.object(r.holder), graph.object(r.held)
    if is_lru_cache(holder) and r.kind == ReferenceKind.ITEM:
        return f"the cache of {holder.name}()"
    if (
        r.kind == ReferenceKind.ITEM
        and held.kind in (ObjectKind.FUNCTION, ObjectKind.METHOD)
        and holder.type.endswith("OrderedDict")
    ):
        return f"the hook {held.name}()"  # hook dicts are OrderedDicts by number: torch/utils/hooks.py
    owner = (
        f"{holder.name}()"
        if holder.kind in (ObjectKind.FUNCTION, ObjectKind.FRAME, ObjectKind.GENERATOR)
        else holder.label
    )
    return f"{r.name if reference in one else generic(r.name)} of {owner}"


def is_lru_cache(obj: Object) -> bool:
    """Whether this is what `functools.lru_cache` puts in a function's place, and its name that function's."""
    return obj.type == "functools._lru_cache_wrapper" and obj.name != obj.type
