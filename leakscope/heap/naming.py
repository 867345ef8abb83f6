"""Names of references as code would write them; internal containers are folded into their owner."""

from __future__ import annotations

import collections
import contextvars
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import chain
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch

from leakscope.graph.model import ReferenceKind
from leakscope.heap.address_index import Places
from leakscope.heap.autograd import Role, is_grad_node
from leakscope.heap.liveness import Liveness
from leakscope.heap.referents import (
    ATTRIBUTE,
    CLOSURE,
    CONTEXT_PARTS,
    ITEM,
    LOCAL,
    Named,
    class_file,
    items_of,
    key_text,
    reader_of,
    slots,
)
from leakscope.originals import gc
from leakscope.process import user_code as source
from leakscope.process.gc_control import check_deadline
from leakscope.process.raw_types import (
    TypeCache,
    all_keys_are,
    instance_dict,
    mro,
    mro_tuple,
    type_dict,
    type_name,
    type_qualname,
)
from leakscope.process.torch_compat import BACKWARD_OF, BUFFERS, HOOKS_OF_TENSOR, MODULE_DICTS, TensorBase
from leakscope.process.user_code import is_of_session, newest_first

_MAX_NESTING = 100
"""Nesting up to which containers are folded. Heuristic: cells within cells may form a cycle."""


_FOLDING = (
    types.CellType, types.GetSetDescriptorType, types.MemberDescriptorType, types.FunctionType, contextvars.Context,
)  # fmt: skip


Group = tuple[int, Sequence[int]]
"""(referrer, referents), as indexes."""


class Style(Enum):
    """How the contents of a folded container are written."""

    ATTRIBUTE = auto()
    """The dict of an instance or a class: `.name`."""
    CHILD = auto()
    """The dict of parameters or submodules of an nn.Module: `.name` or `[0]`."""
    BUFFER = auto()
    """The dict of buffers of an nn.Module."""
    CLOSURE = auto()
    """The tuple of a function's cells: `closure name`."""
    MRO = auto()
    """The tuple of a class's bases: `.__mro__`."""


class FoldedContainers:
    """The folded containers of a pruned heap; `groups` are the kept referents of each referrer."""

    def __init__(self, heap: Liveness, groups: Sequence[Group]) -> None:
        self._objects, self._refcounts, self._pruned = heap.native.sweep.objects, heap.refcounts, heap.pruned
        objects, first_storage = self._objects, heap.native.references.objects
        self._index = {id(objects[k]): k for k in heap.pruned.objects.tolist() if k < first_storage}
        self.is_class = TypeCache(_is_class).of
        """Whether instances of a type are classes."""
        may_fold = TypeCache(_may_fold).of
        self._into: dict[int, int] = {}
        self.style: dict[int, Style] = {}
        """By index of a folded container."""
        self.inner: set[tuple[int, int]] = set()
        """(referrer, referent) of references inside a fold."""
        self.with_dict: set[int] = set()
        """Indexes of the objects whose own dict is folded into them."""
        for holder, helds in groups:
            if may_fold(type(objects[holder])):
                self._fold(holder, helds)
        self.final = {index: self._stands_for(index) for index in self._into}
        """Index of each folded object, mapped to the object it is folded into."""

    def _stands_for(self, index: int) -> int:
        for _ in range(_MAX_NESTING):
            if index not in self._into:
                break
            index = self._into[index]
        return index

    def _fold(self, holder: int, places: Sequence[int]) -> None:
        obj = self._objects[holder]
        kind = type(obj)
        if kind is types.CellType:
            if not self._refcounts.unexplained[holder] and len(places) == 1:
                self._put(holder, holder, places[0])
            return
        if kind is types.GetSetDescriptorType or kind is types.MemberDescriptorType:
            self._fold_descriptor(holder, obj, kind)
            return
        helds = {id(self._objects[h]): h for h in places}
        if kind is contextvars.Context or type_name(kind) in CONTEXT_PARTS:
            for part in helds.values():
                if type_name(type(self._objects[part])) in CONTEXT_PARTS:
                    self._put(holder, part, holder)
            return
        if self.is_class(kind):
            self._fold_mro(holder, obj, helds)
        if kind is types.FunctionType:
            self._fold_closure(holder, obj, helds)
        values = self._own_dict(obj, kind, helds)
        own = helds.get(id(values))
        if own in self._pruned.modules:
            return
        if own is not None:
            self._put(holder, own, holder, Style.ATTRIBUTE)
            self.with_dict.add(holder)
        if values is not None and torch.nn.Module in mro(kind):
            self._fold_module_dicts(holder, values, own)

    def _put(self, holder: int, folded: int, target: int, style: Style | None = None) -> None:
        """Fold one object into another; references between `holder` and it become internal."""
        if style is not None:
            self.style[folded] = style
        if target != folded:
            self._into[folded] = target
            self.inner.add((holder, target if folded == holder else folded))

    def _fold_closure(self, holder: int, obj: Any, helds: dict[int, int]) -> None:
        place = helds.get(id(types.FunctionType.__dict__["__closure__"].__get__(obj)))
        if place is not None:
            self._put(holder, place, holder, Style.CLOSURE)

    def _fold_mro(self, holder: int, obj: Any, helds: dict[int, int]) -> None:
        """The `__mro__` of a class starts with the class, so the tuple and its cycle are part of the class."""
        place = helds.get(id(mro_tuple(obj)))
        if place is not None and type(self._objects[place]) is tuple and not self._refcounts.unexplained[place]:
            self._put(holder, place, holder, Style.MRO)

    def _fold_descriptor(self, holder: int, obj: Any, kind: Any) -> None:
        """Descriptors of `__dict__`, `__weakref__` and slots refer back to the class whose dict they are in."""
        owner = self._index.get(id(kind.__dict__["__objclass__"].__get__(obj)))
        if owner is not None and not self._refcounts.unexplained[holder]:
            self._put(holder, holder, owner)

    def _fold_module_dicts(self, holder: int, values: dict[str, Any], own: int | None) -> None:
        """Since Python 3.13 gc reports them as the module's, whether or not it has its own dict;
        before, as the dict's.
        """
        for key in MODULE_DICTS:
            child = dict.get(values, key)
            index = self._index.get(id(child))
            if type(child) is dict and index is not None:
                self._into[index] = holder
                self.inner.update((above, index) for above in (holder, own) if above is not None)
                self.style[index] = Style.BUFFER if key == BUFFERS else Style.CHILD

    def _own_dict(self, obj: Any, kind: type, helds: dict[int, int]) -> dict[str, Any] | None:
        """The own dict of an object, if it is among its referents."""
        if not any(type(self._objects[h]) is dict for h in helds.values()):
            return None
        own: dict[str, Any] | None = _dict_of_class(obj) if self.is_class(kind) else instance_dict(obj, kind)
        return own


def _is_class(kind: type) -> bool:
    return type in mro(kind)


def _may_fold(kind: type) -> bool:
    """Whether anything is folded for objects of a type."""
    return (
        any(kind is folding for folding in _FOLDING)
        or type_name(kind) in CONTEXT_PARTS
        or _is_class(kind)
        or any("__dict__" in type_dict(base) for base in mro(kind))
    )


def _dict_of_class(kind: type) -> Any:
    return next(iter(gc.get_referents(type_dict(kind))), None)


def line_of_namespace(namespace: dict[str, Any], name: str, last: bool) -> str:
    """The line that binds a module's global of this name, as `train.py:12`; "" if unknown. The functions below return
    the same.

    `last` requests the line that binds it last: a tensor is held by the most recent assignment, while a container is
    created once and then filled. In a notebook it is the most recent cell among those that bind it.
    """
    filename = namespace.get("__file__")
    if is_of_session(namespace):
        bound = ((cell, source.local_line(cell, "", name, last)) for cell in newest_first())
        return next((source.at(cell, line) for cell, line in bound if line), "")
    if type(filename) is not str or not source.is_users(filename):
        return ""
    return _at(filename, source.local_line(filename, "", name, last))


def line_of_class(kind: type, name: str, last: bool) -> str:
    """The line that sets this attribute of a class."""
    kind = _written_as(kind)
    filename = class_file(kind)
    if not source.is_users(filename):
        return ""
    return _at(filename, source.class_attribute_line(filename, type_qualname(kind), name, last))


def line_of_instance(kind: type, name: str, last: bool) -> str:
    """The line that sets this attribute of the instances of a class."""
    kind = _written_as(kind)
    filename = class_file(kind)
    if not source.is_users(filename):
        return ""
    return _at(filename, source.attribute_line(filename, type_qualname(kind), name, last))


def line_of_variable(owner: Any, kind: ReferenceKind, name: str, last: bool) -> str:
    """The line that binds a local of a frame, or the variable of an enclosing function that a closure uses."""
    if kind == ReferenceKind.LOCAL and type(owner) is FrameType:
        return _of_local(owner.f_code, name.removeprefix("local "), last)
    if kind == ReferenceKind.CLOSURE and type(owner) is FunctionType and " " in name:
        return _of_closure(owner.__code__, name.split(" ")[1], last)
    return ""


def _of_local(code: CodeType, name: str, last: bool) -> str:
    if not source.is_users(code.co_filename):
        return ""
    return _at(code.co_filename, source.local_line(code.co_filename, code.co_qualname, name, last))


def _of_closure(code: CodeType, name: str, last: bool) -> str:
    outer = code.co_qualname.rpartition(".<locals>.")[0]
    if not outer or not source.is_users(code.co_filename):
        return ""
    bound = source.local_line(code.co_filename, outer, name, last, arguments=False)
    return _at(code.co_filename, bound or code.co_firstlineno)  # the caller binds an argument


def _written_as(kind: type) -> type:
    """The user's class for the one that torch derives from an autograd Function (torch/autograd/function.py)."""
    forward = type_dict(kind).get(BACKWARD_OF)
    return forward if isinstance(forward, type) else kind


def _at(filename: str, line: int) -> str:
    return source.at(filename, line) if line else ""


_MEMORY = ReferenceKind.MEMORY, "storage"
_NO_NAME = [(ReferenceKind.UNNAMED, "(unnamed)")]
_BUFFER = ReferenceKind.BUFFER
_INLINE_BESIDE_DICT = sys.version_info >= (3, 13)
"""Whether an instance with its own dict may also have inline values (CPython Objects/dictobject.c,
PyObject_VisitManagedDict).
"""


class NamedReference(NamedTuple):
    """One named reference of the pruned heap, between indexes."""

    holder: int
    held: int
    kind: ReferenceKind
    name: str
    """The name as written in code."""
    where: str
    """The line that creates it, as `train.py:12`; "" if unknown."""


_Names = dict[int, list[tuple[ReferenceKind, str]]]
"""Index of a referent, mapped to every name that its referrer has for it."""


class ReferenceNames:
    """Names every reference of the pruned heap, with containers folded that code does not show."""

    def __init__(self, heap: Liveness) -> None:
        native, pruned = heap.native, heap.pruned
        self._objects, self._alone = native.sweep.objects, native.sweep.alone
        self._extra, self._pruned = native.extra, pruned
        self._role = native.role.tobytes()
        self._lines: dict[tuple[int, str, bool], str] = {}
        """Lines of attributes by instance type, of closure variables by the function's code."""
        references = pruned.references
        self._plain = (references.extra < 0) & (references.held < len(self._role))
        self._groups = _by_holder(references.holder[self._plain], references.held[self._plain])
        self._folds = FoldedContainers(heap, self._groups)

    def stands_for(self, index: int) -> int:
        """Index of the object that one is folded into, or its own."""
        return self._folds.final.get(index, index)

    def references(self) -> list[NamedReference]:
        """Every reference except those inside folds."""
        inner, final = self._folds.inner, self._folds.final
        return [
            NamedReference(
                final.get(holder, holder), final.get(held, held), kind, name, self._where(holder, held, kind, name)
            )
            for holder, held, kind, name in chain(self._of_python(), self._of_cpp())
            if (holder, held) not in inner
        ]

    def _of_python(self) -> Iterator[tuple[int, int, ReferenceKind, str]]:
        """(referrer, referent, kind, name) of what CPython's traversal reports."""
        for holder, helds in self._groups:
            check_deadline()
            names = self._names_in(holder, helds)
            used: dict[int, int] = {}
            for held in helds:
                choices = names.get(held, _NO_NAME)
                turn = 0
                if len(choices) > 1:
                    turn = used.get(held, 0)
                    used[held] = turn + 1
                kind, name = choices[turn % len(choices)]
                yield holder, held, kind, name

    def _of_cpp(self) -> Iterator[tuple[int, int, ReferenceKind, str]]:
        """As `_of_python`, for references that only C++ has and references to storages."""
        references, of_cpp = self._pruned.references, ~self._plain
        columns = (references.holder, references.held, references.extra)
        for holder, held, extra in zip(*(column[of_cpp].tolist() for column in columns), strict=True):
            kind, name = (self._extra.kind[extra], self._extra.name[extra]) if extra >= 0 else _MEMORY
            yield holder, held, kind, name

    def _names_in(self, holder: int, wanted: Sequence[int]) -> _Names:
        """Every name that the referrer has for each wanted referent."""
        objects = self._objects
        addresses = {id(objects[h]): h for h in wanted}
        names: _Names = {}
        if not self._read_plainly(holder, addresses, names):
            for kind, name, referent in self._read(holder):
                index = addresses.get(id(referent))
                if index is not None:
                    names.setdefault(index, []).append((kind, name))
        return names

    def _read_plainly(self, holder: int, addresses: dict[int, int], names: _Names) -> bool:
        """Read a builtin container, which may be long, naming only what is wanted; False for other types."""
        obj, style = self._objects[holder], self._folds.style.get(holder)
        kind = type(obj)
        namer = _global if holder in self._pruned.modules else _KEYED.get(style)
        if namer is not None or kind is dict:
            # another thread may add an item; a view would be inconsistent during the iteration
            pairs: Iterable[tuple[Any, Any]] = dict.items(obj) if self._alone else list(dict.items(obj))
            found = _values(pairs, addresses, namer or _item)
        elif style is None and (kind is list or kind is tuple):
            items = obj if kind is list else items_of(obj)
            found = (
                (addresses[id(value)], (ITEM, f"[{k}]")) for k, value in enumerate(items) if id(value) in addresses
            )
        else:
            return False
        for index, name in found:
            names.setdefault(index, []).append(name)
        if namer is None and kind is dict:
            for key in dict.keys(obj) if self._alone else list(dict.keys(obj)):
                if id(key) in addresses:
                    names.setdefault(addresses[id(key)], []).append((ITEM, f"key {key_text(key)}"))
        return True

    def _read(self, holder: int) -> Iterator[Named]:
        """The referents of an object, named in the style of what it is folded into."""
        obj = self._objects[holder]
        style = self._folds.style.get(holder)
        if style is None:
            return named_referents(obj, type(obj), has_folded_dict=holder in self._folds.with_dict)
        if style is Style.MRO:
            return ((ATTRIBUTE, ".__mro__", base) for base in obj)
        return _closure(self._objects[self.stands_for(holder)], obj)

    def _where(self, holder: int, held: int, kind: ReferenceKind, name: str) -> str:
        if kind is not ATTRIBUTE and kind is not LOCAL and kind is not CLOSURE:
            return ""
        owner, value = self._objects[self.stands_for(holder)], self.stands_for(held)
        last = value < len(self._role) and self._role[value] == Role.TENSOR
        if kind is not ATTRIBUTE:
            if type(owner) is not types.FunctionType:
                return line_of_variable(owner, kind, name, last)
            return self._line(id(owner.__code__), name, last, lambda: line_of_variable(owner, kind, name, last))
        if not name.startswith("."):
            return ""
        if self._folds.is_class(type(owner)):
            return line_of_class(owner, name[1:], last)
        if holder in self._pruned.modules:
            return line_of_namespace(owner, name[1:], last)
        return self._line(id(type(owner)), name, last, lambda: line_of_instance(type(owner), name[1:], last))

    def _line(self, of: int, name: str, last: bool, find: Callable[[], str]) -> str:
        line = self._lines.get((of, name, last))
        if line is None:
            line = self._lines[of, name, last] = find()
        return line


def _by_holder(holder: Places, held: Places) -> list[Group]:
    """(referrer, referents), from references sorted by referrer."""
    firsts = np.flatnonzero(np.diff(holder, prepend=-1))
    ends = [*firsts[1:].tolist(), len(holder)]
    helds = held.tolist()
    rows = zip(holder[firsts].tolist(), firsts.tolist(), ends, strict=True) if len(firsts) else ()
    return [(index, helds[first:end]) for index, first, end in rows]


def _values(
    items: Iterable[tuple[Any, Any]], addresses: dict[int, int], namer: Callable[[Any], tuple[ReferenceKind, str]]
) -> Iterator[tuple[int, tuple[ReferenceKind, str]]]:
    for key, value in items:
        if id(value) in addresses:
            yield addresses[id(value)], namer(key)


def _item(key: Any) -> tuple[ReferenceKind, str]:
    return ITEM, f"[{key_text(key)}]"


def _global(key: Any) -> tuple[ReferenceKind, str]:
    text = f"[{key_text(key)}]"
    return ATTRIBUTE, f".{text[2:-2]}" if text.startswith("['") else text


def _attribute(key: Any) -> tuple[ReferenceKind, str]:
    return ATTRIBUTE, f".{key}" if type(key) is str else f"[{key_text(key)}]"


def _child(key: Any) -> tuple[ReferenceKind, str]:
    return ATTRIBUTE, _of_module(key)


def _buffer(key: Any) -> tuple[ReferenceKind, str]:
    return _BUFFER, _of_module(key)


def _of_module(key: Any) -> str:
    return f"[{key}]" if str(key).isdigit() else f".{key}"


_KEYED: dict[Style | None, Callable[[Any], tuple[ReferenceKind, str]]] = {
    Style.ATTRIBUTE: _attribute,
    Style.CHILD: _child,
    Style.BUFFER: _buffer,
}
"""The name of a value in a folded dict, from its key."""


def _closure(function: Any, cells: Sequence[Any]) -> Iterator[Named]:
    for name, cell in zip(function.__code__.co_freevars, cells, strict=False):
        yield CLOSURE, f"closure {name}", cell


def named_referents(obj: Any, kind: type, has_folded_dict: bool) -> Iterator[Named]:
    """Named referents of one Python object; items of its own dict unless that dict is folded into it."""
    reader = reader_of(kind)
    if reader is not None:
        yield from reader(obj)
    elif TensorBase in mro(kind):
        for name, hooks_of in HOOKS_OF_TENSOR.items():
            yield ReferenceKind.HOOK, name, hooks_of(obj)
    elif is_grad_node(kind):  # gc reports the hook dicts of a node owned by Python only, without their kind
        for held in gc.get_referents(obj):
            if (type(held) is dict or type(held) is collections.OrderedDict) and all_keys_are(int, held):
                yield ReferenceKind.HOOK, "hooks", held
    yield from slots(obj, kind)
    if not has_folded_dict or _INLINE_BESIDE_DICT:  # otherwise no value is inline
        for key, value in list(dict.items(instance_dict(obj, kind) or {})):
            yield *_attribute(key), value
