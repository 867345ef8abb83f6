"""Where would a person cut a cycle first?"""

from __future__ import annotations

from leakscope.findings.naming.expressions import is_hook
from leakscope.graph.model import HeapGraph, ObjectKind, Reference, ReferenceKind

_CUT_ORDER = (
    ReferenceKind.CLOSURE,
    ReferenceKind.ATTRIBUTE,
    ReferenceKind.LOCAL,
    ReferenceKind.ITEM,
    ReferenceKind.BUFFER,
    ReferenceKind.HOOK,
    ReferenceKind.SAVED,
    ReferenceKind.OPERAND,
    ReferenceKind.UNNAMED,
    ReferenceKind.MEMORY,
    ReferenceKind.GRAD_GRAPH,
)
"""What a line of the script writes, before what torch and C++ keep."""
_AFTER_CLOSURE = 0.5
"""Rank of a hook in its module's dict: `handle.remove()` takes it out."""
_LATER = 0.5
"""Added for an attribute that holds a container (`.parent` leads back to one object, `.children` down to many), and for
an item of what may be a namedtuple.
"""
_CHANGED_BY_ITEMS = ("list", "dict", "collections.OrderedDict", "collections.defaultdict", "collections.deque", "set")
_HIDDEN = 20
"""Added to the rank of a reference that no script writes: more than there are kinds."""
_FIXED_NAMES = (".__self__", ".__func__", ".__closure__", ".__code__", ".__mro__", ".__base", ".tb_", ".f_", ".gi_")
"""Beginnings of names of attributes that Python lets nobody set."""
_FIXED_TYPES = ("tuple", "functools.partial")
"""Types whose objects keep what they were made with."""
_FIXED_KINDS = (
    ReferenceKind.GRAD_GRAPH,
    ReferenceKind.SAVED,
    ReferenceKind.MEMORY,
    ReferenceKind.UNNAMED,
    ReferenceKind.OPERAND,
)


def cut_rank(graph: HeapGraph, reference: int) -> float:
    """The less the sooner."""
    r = graph.reference(reference)
    if _stores_what_refers_back(graph, r):
        return -1
    if is_hook(graph, r):
        return _CUT_ORDER.index(ReferenceKind.CLOSURE) + _AFTER_CLOSURE
    hidden = r.name.startswith((".__", ".tb_", ".f_")) or graph.object(r.holder).type == "tuple" or _keeps_hooks(r)
    many = r.kind == ReferenceKind.ATTRIBUTE and graph.object(r.held).kind == ObjectKind.CONTAINER
    unknown = r.kind == ReferenceKind.ITEM and graph.object(r.holder).type not in _CHANGED_BY_ITEMS
    return _CUT_ORDER.index(r.kind) + (_LATER if many or unknown else 0) + (_HIDDEN if hidden else 0)


def is_cut_by_code(graph: HeapGraph, reference: int) -> bool:
    """Whether a line of Python can take the reference away, as none can a method's to its object."""
    r = graph.reference(reference)
    fixed = r.kind in _FIXED_KINDS or r.name.startswith(_FIXED_NAMES) or _keeps_hooks(r)
    return not fixed and graph.object(r.holder).type not in _FIXED_TYPES


def _keeps_hooks(reference: Reference) -> bool:
    """Whether it is a module's own dict of hooks, `._forward_hooks` (torch/nn/modules/module.py)."""
    return reference.name.startswith("._") and reference.name.endswith("_hooks")


def _stores_what_refers_back(graph: HeapGraph, reference: Reference) -> bool:
    """Whether the attribute of an object is a function whose closure holds that object: `self.act = lambda: self.x`."""
    r = reference
    if r.kind != ReferenceKind.ATTRIBUTE or r.name.startswith(".__"):
        return False
    if graph.object(r.held).kind != ObjectKind.FUNCTION or graph.object(r.holder).kind == ObjectKind.FUNCTION:
        return False
    return any(
        graph.held[back] == r.holder and graph.reference(back).kind == ReferenceKind.CLOSURE
        for back in graph.out_of(r.held).tolist()
    )
