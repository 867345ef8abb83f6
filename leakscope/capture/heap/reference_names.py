"""The pruned heap in the words of the user's code: every reference named, with the line that makes it."""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from leakscope.capture.heap.fold import Folds, Group, Style
from leakscope.capture.heap.native.autograd import Role, is_grad_node
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.prune import PrunedHeap
from leakscope.capture.heap.python.address_book import Places
from leakscope.capture.heap.python.named import ATTRIBUTE, CLOSURE, ITEM, LOCAL, Named, key_text
from leakscope.capture.heap.python.referents import items_of, reader_of, slots
from leakscope.capture.heap.raw_types import all_keys_are, instance_dict, mro
from leakscope.capture.heap.refcounts import RefcountTable
from leakscope.capture.heap.reference_lines import (
    line_of_class,
    line_of_instance,
    line_of_namespace,
    line_of_variable,
)
from leakscope.capture.process.pause import go_on
from leakscope.capture.torch_private import HOOKS_OF_TENSOR, TensorBase
from leakscope.graph.model import ReferenceKind
from leakscope.originals import gc

_MEMORY = ReferenceKind.MEMORY, "storage"
_NO_NAME = [(ReferenceKind.UNNAMED, "(unnamed)")]
_BUFFER = ReferenceKind.BUFFER
_INLINE_BESIDE_DICT = sys.version_info >= (3, 13)
"""Whether values may stand inline in an instance that has a dict of its own (CPython Objects/dictobject.c,
PyObject_VisitManagedDict)."""


class NamedReference(NamedTuple):
    """One reference of the pruned heap, between indexes."""

    holder: int
    held: int
    kind: ReferenceKind
    name: str
    """As code writes it."""
    where: str
    """`train.py:12`, the line that makes it, "" where none shows."""


_Names = dict[int, list[tuple[ReferenceKind, str]]]
"""By index of what is held every name that its holder has for it."""


class ReferenceNames:
    """Names every reference of the pruned heap, the containers folded that code does not show."""

    def __init__(self, native: NativeReferences, refcounts: RefcountTable, pruned: PrunedHeap) -> None:
        self._objects, self._alone = native.sweep.objects, native.sweep.alone
        self._extra = native.extra
        self._refcounts = refcounts
        self._pruned = pruned
        self._role = native.role.tobytes()
        self._lines: dict[tuple[int, str, bool], str] = {}
        """Of attributes by the type of the instance, of closed variables by the code of the function."""
        references = pruned.references
        self._plain = (references.extra < 0) & (references.held < refcounts.objects)
        self._groups = _by_holder(references.holder[self._plain], references.held[self._plain])
        self._folds = Folds(self._objects, refcounts, pruned, self._groups)

    def stands_for(self, index: int) -> int:
        """Index of the object that one is folded into, its own where it is not folded."""
        return self._folds.final.get(index, index)

    def references(self) -> list[NamedReference]:
        """Every reference but those inside of folded objects."""
        inner, final = self._folds.inner, self._folds.final
        return [
            NamedReference(
                final.get(holder, holder), final.get(held, held), kind, name, self._where(holder, held, kind, name)
            )
            for holder, held, kind, name in chain(self._of_python(), self._of_cpp())
            if (holder, held) not in inner
        ]

    def _of_python(self) -> Iterator[tuple[int, int, ReferenceKind, str]]:
        """(holder, held, kind, name) of what CPython's traversal reports."""
        for holder, helds in self._groups:
            go_on()
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
        """As `_of_python`, of what only C++ holds and of the references to storages."""
        references, of_cpp = self._pruned.references, ~self._plain
        columns = (references.holder, references.held, references.extra)
        for holder, held, extra in zip(*(column[of_cpp].tolist() for column in columns), strict=True):
            kind, name = (self._extra.kind[extra], self._extra.name[extra]) if extra >= 0 else _MEMORY
            yield holder, held, kind, name

    def _names_in(self, holder: int, wanted: Sequence[int]) -> _Names:
        """Every name that the holder has for each of the wanted."""
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
        """Read a builtin container, which may be long, without a name for what is not wanted; False for any other."""
        obj, style = self._objects[holder], self._folds.style.get(holder)
        kind = type(obj)
        namer = _global if holder in self._pruned.modules else _KEYED.get(style)
        if namer is not None or kind is dict:
            # another thread may put something in, and a view would have none of it while it is gone over
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
        """What an object holds, in the style of what it is folded into."""
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
        last = value < self._refcounts.objects and self._role[value] == Role.TENSOR
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
    """(holder, what it holds) of references that stand in the order of their holders."""
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
"""What a value of a folded dict is called, by its key."""


def _closure(function: Any, cells: Sequence[Any]) -> Iterator[Named]:
    for name, cell in zip(function.__code__.co_freevars, cells, strict=False):
        yield CLOSURE, f"closure {name}", cell


def named_referents(obj: Any, kind: type, has_folded_dict: bool) -> Iterator[Named]:
    """What one object of Python's holds, by name; its own dict's items but where that dict is folded into it."""
    reader = reader_of(kind)
    if reader is not None:
        yield from reader(obj)
    elif TensorBase in mro(kind):
        for name, hooks_of in HOOKS_OF_TENSOR.items():
            yield ReferenceKind.HOOK, name, hooks_of(obj)
    elif is_grad_node(kind):  # gc shows the hook dicts of a node that Python alone owns; their sort is not told
        for held in gc.get_referents(obj):
            if (type(held) is dict or type(held) is collections.OrderedDict) and all_keys_are(int, held):
                yield ReferenceKind.HOOK, "hooks", held
    yield from slots(obj, kind)
    if not has_folded_dict or _INLINE_BESIDE_DICT:  # else no value stands inline
        for key, value in list(dict.items(instance_dict(obj, kind) or {})):
            yield *_attribute(key), value
