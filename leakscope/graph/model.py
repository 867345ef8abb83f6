"""`HeapGraph`, the heap as columns of plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class ObjectKind(StrEnum):
    """The kind of an object; files store the word."""

    STORAGE = "storage"
    """Tensor memory: the only kind that owns bytes."""
    TENSOR = "tensor"
    PARAMETER = "parameter"
    GRAD_NODE = "grad node"
    SAVED_TENSOR = "saved tensor"
    CONTAINER = "container"
    """list, tuple, dict, set, deque and their subclasses."""
    INSTANCE = "instance"
    """An instance of a Python class."""
    NN_MODULE = "nn.Module"
    OPTIMIZER = "optimizer"
    FUNCTION = "function"
    METHOD = "method"
    CELL = "cell"
    FRAME = "frame"
    GENERATOR = "generator"
    """Generators, coroutines, async generators."""
    TRACEBACK = "traceback"
    EXCEPTION = "exception"
    CLASS = "class"
    NAMESPACE = "namespace"
    """The dict of a Python module."""
    THREAD = "thread"
    FUTURE = "future"
    WORK = "work"
    """The handle of a send, receive or collective."""
    HOOK_HANDLE = "hook handle"
    NATIVE = "native"
    """An object of a C type that no reader supports."""
    ARRAY = "array"
    """A numpy array, bytes, bytearray or BytesIO: non-tensor memory of its own."""


TENSOR_KINDS = (ObjectKind.TENSOR, ObjectKind.PARAMETER)
"""Kinds of objects that are tensors."""


class RootKind(StrEnum):
    """The kind of a GC root."""

    NONE = ""
    """Not a root."""
    MODULE = "module"
    """A module's namespace."""
    FRAME = "frame"
    """A running frame."""
    CALLBACK = "callback"
    """A running frame that a library called and that called leakscope; its arguments belong to the caller."""
    THREAD = "thread"
    NATIVE = "native"
    """Native code, with the number of references that were not found."""
    INTERPRETER = "interpreter"


class ReferenceKind(StrEnum):
    """The kind of a reference."""

    ATTRIBUTE = "attribute"
    BUFFER = "buffer"
    """Of an nn.Module."""
    ITEM = "item"
    LOCAL = "local"
    CLOSURE = "closure"
    GRAD_GRAPH = "grad graph"
    """grad_fn, next functions, AccumulateGrad.variable: held by C++."""
    SAVED = "saved"
    """A saved tensor, packed object or ctx attribute of a grad node."""
    HOOK = "hook"
    COMM = "wire"
    """From a Work to the tensor that it sends or receives into; the word is that of the files."""
    MEMORY = "memory"
    """Tensor to its storage."""
    OPERAND = "operand"
    """An operand of the statement that runs in a frame, gone when the statement ends."""
    UNNAMED = "unnamed"
    """A reference that CPython reports and no reader can name."""


KINDS = tuple(ObjectKind)
ROOTS = tuple(RootKind)
REFERENCE_KINDS = tuple(ReferenceKind)

_KEPT = 1 << 14
"""Objects and references of one graph that are cached after construction. Heuristic: a few megabytes."""

CACHED_ARGUMENTS = "cached arguments"
"""Name of the reference from an `lru_cache` to the key of a result: its arguments, a method's self first."""
REACHABLE = 0
"""In `HeapGraph.freed`: reachable from a root."""
IMMORTAL = -1
"""In `HeapGraph.freed`: not reachable from a root, and freed by no number of collections."""


@dataclass(frozen=True)
class Object:
    """One object of the heap graph."""

    index: int
    type: str
    """The type's qualified name, e.g. `torch.Tensor`."""
    kind: ObjectKind
    label: str
    """For people: `list, 20 items`, `Tensor float32[512, 512]`, `frame of main`."""
    name: str
    """Qualified name of the function, class, module or type; stable between runs, without sizes."""
    where: str
    """`train.py:12`, or "" without a source line."""
    bytes: int
    """Bytes of tensor memory owned; 0 except for storages."""
    size: int
    """Items of a container, or bytes that a tensor or array spans; -1 for other objects."""
    root: RootKind
    freed: int
    """REACHABLE, k > 0 for garbage that the k-th full collection frees, or IMMORTAL."""
    unexplained: int
    """References to it that were counted but not found."""


@dataclass(frozen=True)
class Reference:
    """One reference from a referrer to a referent."""

    index: int
    holder: int
    held: int
    kind: ReferenceKind
    name: str
    """As written in code: `.losses`, `[3]`, `['key']`, `closure extract`, `local dy`, `saved self`, `.grad_fn`."""
    where: str = ""
    """The line that creates the reference, `train.py:12`, if the source shows it."""


@dataclass(frozen=True)
class CommUse:
    """The last comm operation that used a storage."""

    direction: str
    """send, recv, or the name of a collective such as allreduce."""
    peer: int | None
    """Global rank of the other side; None for collectives and receives from any rank."""
    tag: int | None
    step: int
    microbatch: int
    """Position of the operation among those of its (group, peer, tag, direction) in the step, from 0."""
    issued_at: str
    """The issuing line, `train.py:41 forward`; "" if it is not the user's."""
    waited: bool
    tensor_dead: bool = False
    """Whether the Python tensor that it was issued with is dead."""


@dataclass(frozen=True, eq=False)
class HeapGraph:
    """Objects on a path from a root or a cycle to tensor or array memory, in columns.

    An id is an index into the columns, not an address. All object columns have length n, all reference columns length
    m. `type`, `label`, `name`, `where`, `reference_name` and `reference_where` are indexes into `strings`; `kind`,
    `root` and `reference_kind` into KINDS, ROOTS and REFERENCE_KINDS.
    """

    strings: tuple[str, ...]
    type: Ints
    kind: Ints
    label: Ints
    name: Ints
    where: Ints
    bytes: Ints
    size: Ints
    root: Ints
    freed: Ints
    unexplained: Ints
    holder: Ints
    held: Ints
    reference_kind: Ints
    reference_name: Ints
    reference_where: Ints
    made_at: Mapping[int, str] = field(default_factory=dict)
    """Storage index, mapped to its allocation site, `train.py:41 forward (aten::addmm)`, if it was recorded."""
    comm_uses: Mapping[int, CommUse] = field(default_factory=dict)
    """Storage index, mapped to the last comm operation that used it."""
    device: Mapping[int, str] = field(default_factory=dict)
    """Storage index, mapped to `cuda:0` for storages outside host memory; empty if no accelerator was in use."""
    given: Mapping[int, str] = field(default_factory=dict)
    """Index of each object that the user named, mapped to the name, which starts the paths through it."""
    set_by: Mapping[int, str] = field(default_factory=dict)
    """Reference, mapped to the package whose class sets that attribute; for garbage, if no line of the user does."""
    bases: Mapping[str, str] = field(default_factory=dict)
    """Type of the user, mapped to the package's class that it derives from: `train.Net` to
    `peft.peft_model.PeftModel`.
    """

    def __len__(self) -> int:
        return len(self.kind)

    def object(self, index: int) -> Object:
        """Return one object."""
        known = self._objects.get(index)
        if known is not None:
            return known
        text = self.strings
        made = Object(
            index=int(index),
            type=text[self.type[index]],
            kind=KINDS[self.kind[index]],
            label=text[self.label[index]],
            name=text[self.name[index]],
            where=text[self.where[index]],
            bytes=int(self.bytes[index]),
            size=int(self.size[index]),
            root=ROOTS[self.root[index]],
            freed=int(self.freed[index]),
            unexplained=int(self.unexplained[index]),
        )
        if len(self._objects) < _KEPT:
            self._objects[made.index] = made
        return made

    def reference(self, index: int) -> Reference:
        """Return one reference."""
        known = self._references.get(index)
        if known is not None:
            return known
        made = Reference(
            index=int(index),
            holder=int(self.holder[index]),
            held=int(self.held[index]),
            kind=REFERENCE_KINDS[self.reference_kind[index]],
            name=self.strings[self.reference_name[index]],
            where=self.strings[self.reference_where[index]],
        )
        if len(self._references) < _KEPT:
            self._references[made.index] = made
        return made

    @cached_property
    def _objects(self) -> dict[int, Object]:
        return {}  # the first requested ones, which are requested repeatedly

    @cached_property
    def _references(self) -> dict[int, Reference]:
        return {}

    def of_kind(self, kind: ObjectKind) -> Ints:
        """Return the indexes of all objects of one kind."""
        return np.flatnonzero(self.is_kind(kind))

    def is_kind(self, *kinds: ObjectKind) -> NDArray[np.bool_]:
        """Mask of the objects of these kinds."""
        return _is_any(self.kind, map(KINDS.index, kinds))

    def is_reference_kind(self, *kinds: ReferenceKind) -> NDArray[np.bool_]:
        """Mask of the references of these kinds."""
        return _is_any(self.reference_kind, map(REFERENCE_KINDS.index, kinds))

    @cached_property
    def storages(self) -> Ints:
        """Return the indexes of all storages."""
        return self.of_kind(ObjectKind.STORAGE)

    @cached_property
    def roots(self) -> Ints:
        """Return the indexes of all roots."""
        return np.flatnonzero(self.root > 0)

    @cached_property
    def references_out(self) -> tuple[Ints, Ints]:
        """Return (start, order): the references of referrer i are `order[start[i]:start[i + 1]]`."""
        return _grouped(self.holder, len(self))

    @cached_property
    def references_in(self) -> tuple[Ints, Ints]:
        """Return (start, order): the references to object i are `order[start[i]:start[i + 1]]`."""
        return _grouped(self.held, len(self))

    def out_of(self, index: int) -> Ints:
        """Return the indexes of an object's references to others."""
        start, order = self.references_out
        return order[start[index] : start[index + 1]]

    def into(self, index: int) -> Ints:
        """Return the indexes of the references to an object."""
        start, order = self.references_in
        return order[start[index] : start[index + 1]]


OBJECT_COLUMNS = ("type", "kind", "label", "name", "where", "bytes", "size", "root", "freed", "unexplained")
REFERENCE_COLUMNS = ("holder", "held", "reference_kind", "reference_name", "reference_where")
"""Names of the reference columns, as in files."""


def _is_any(column: Ints, numbers: Iterable[int]) -> NDArray[np.bool_]:
    """Mask of the rows with one of a few numbers, by comparison: `np.isin` is slower for so few."""
    mask = np.zeros(len(column), dtype=bool)
    for number in numbers:
        mask |= column == number
    return mask


def _grouped(keys: Ints, count: int) -> tuple[Ints, Ints]:
    order = np.argsort(keys, kind="stable").astype(np.int64)
    start = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=start[1:])
    return start, order


def build(
    objects: Sequence[Object], references: Sequence[Reference], made_at: Mapping[int, str] | None = None
) -> HeapGraph:
    """Build a graph from objects and references, in order; for small graphs and tests."""
    strings: dict[str, int] = {}

    def code(text: str) -> int:
        return strings.setdefault(text, len(strings))

    def column(values: Sequence[int]) -> Ints:
        return np.asarray(values, dtype=np.int64)

    return HeapGraph(
        type=column([code(o.type) for o in objects]),
        kind=column([KINDS.index(o.kind) for o in objects]),
        label=column([code(o.label) for o in objects]),
        name=column([code(o.name) for o in objects]),
        where=column([code(o.where) for o in objects]),
        bytes=column([o.bytes for o in objects]),
        size=column([o.size for o in objects]),
        root=column([ROOTS.index(o.root) for o in objects]),
        freed=column([o.freed for o in objects]),
        unexplained=column([o.unexplained for o in objects]),
        holder=column([r.holder for r in references]),
        held=column([r.held for r in references]),
        reference_kind=column([REFERENCE_KINDS.index(r.kind) for r in references]),
        reference_name=column([code(r.name) for r in references]),
        reference_where=column([code(r.where) for r in references]),
        strings=tuple(strings),
        made_at=dict(made_at or {}),
    )


Answer = TypeVar("Answer")


def once(work: Callable[[HeapGraph], Answer]) -> Callable[[HeapGraph], Answer]:
    """Cache the result of `work` for as long as the graph exists.

    The result must not hold the graph, or neither is ever freed.
    """
    known: WeakKeyDictionary[HeapGraph, Answer] = WeakKeyDictionary()

    @wraps(work)
    def answer(graph: HeapGraph) -> Answer:
        if graph not in known:
            known[graph] = work(graph)
        return known[graph]

    return answer
