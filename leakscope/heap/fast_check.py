"""An upper bound of the tensor memory that objects can retain, without a full snapshot."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Set
from types import FrameType
from typing import Any

from leakscope.graph.model import IMMORTAL
from leakscope.heap.autograd import Role, Types, own_memory
from leakscope.heap.fast_check_walk import KINDS, Kind, Mark, Seen, Tensors, Walk, held_in_native
from leakscope.heap.garbage import ExplainedHeap
from leakscope.heap.native_graph import deepest_walk
from leakscope.heap.storages import is_meta, sparse_parts, storage_bytes, storage_object, storage_of, tensor_over
from leakscope.heap.sweep import listed_at
from leakscope.process.gc_control import no_automatic_gc
from leakscope.process.raw_types import mro
from leakscope.process.source.frames import running_frames
from leakscope.process.torch_compat import Part, StorageBase, TensorBase, address_of_storage, lacks, without_functions

_ASKED = 5_000
"""Objects that are asked what C++ holds; chosen: tens of milliseconds."""


def most_bytes(doubtful: Iterable[Any]) -> int | None:
    """Bytes of all storages that tensors, grad nodes and storages lead to through C++.

    Garbage that holds memory is among what is doubtful, or C++ holds the memory for something that is: so no more than
    this goes with it. None where this torch does not show all that C++ holds, or there is too much of it.
    """
    if lacks(Part.NATIVE):
        return None
    types, problems, storages = Types(), list[str](), dict[int, int]()
    reached = {id(obj): obj for obj in doubtful}
    waiting, most = [*reached.values()], min(_ASKED, deepest_walk())
    with without_functions(), own_memory() as words:
        while waiting and len(reached) <= most:
            obj = waiting.pop()
            storages |= _storages(obj)
            for held in held_in_native(obj, KINDS.of(type(obj)), types, problems, words):
                if held.target is None and not held.at:
                    return None
                if KINDS.of(type(held.target)) >= Kind.TENSOR and id(held.target) not in reached:
                    reached[id(held.target)] = held.target
                    waiting.append(held.target)
    return None if waiting or types.gaps or problems else sum(storages.values())


def _storages(obj: Any) -> dict[int, int]:
    """Address to bytes of each storage that a tensor or a storage object has."""
    kind = KINDS.of(type(obj))
    if kind is Kind.STORAGE:
        return {} if is_meta(obj) else {int(address_of_storage(obj)): int(StorageBase.nbytes(obj))}
    if kind is not Kind.TENSOR:
        return {}
    address = storage_of(obj)
    if address is not None:
        return {address: storage_bytes(obj)}
    parts = ((storage_of(part), part) for _, part in sparse_parts(obj))
    return {at: storage_bytes(part) for at, part in parts if at is not None}


def garbage_among(heap: ExplainedHeap, kinds: tuple[type, ...]) -> Iterator[Any]:
    """Objects that nothing alive holds and that lead to tensor memory, of these types and of those made from them.

    Where all tensors are asked for, memory that no tensor is left of is given as its storage object. No object is asked
    for its class: `isinstance` runs code of the user's.
    """
    n, native = heap.refcounts.objects, heap.native
    dead = heap.pruned.objects[heap.freed != 0]
    for k in dead[dead < n].tolist():
        bases = mro(type(native.sweep.objects[k]))
        if any(kind in bases for kind in kinds):
            yield native.sweep.objects[k]
    if not any(TensorBase in mro(kind)[:2] for kind in kinds):
        return
    storages = list(native.storages.values())
    for storage in (storages[k - n] for k in dead[dead >= n].tolist()):
        if not any(native.role[k] == Role.TENSOR for k in storage.holders):
            yield native.sweep.objects[storage.holders[0]]


_OURS = tuple(
    f"leakscope.{name}" for name in ("comm", "dataloader", "heap", "process", "profiler", "recorder", "testing")
)
"""Modules whose frames hold nothing of the program's, or only for as long as they run."""

_MORE = 1.5
"""So many times as many as were told apart may be followed before that is done again; chosen."""


class Question:
    """What is known of this process's tensors from one block to the next: addresses, nothing that is held.

    Whatever is reached from what lives is no garbage, whichever way it was found: a wrong address costs time alone. And
    a storage that a look would find to be garbage has a tensor, a grad node or a storage object that is not reached.
    """

    def __init__(self) -> None:
        self._tensors = Tensors()
        self._paths: set[int] = set()
        """What led to tensors the last time."""
        self._apart = 0
        """How many led there when they were last told apart from what leads there no more."""
        self._garbage = Seen()
        """What a look before a block has found that nothing will ever free."""
        self.left: dict[str, int] = {}
        """Bytes of the findings about that garbage, by fingerprint."""
        self.doubtful: set[int] = set()
        """What was not found to be held when last asked."""
        self.at_most = 0
        """Bytes that can have been left behind, of a block after which no look was needed."""

    def held_before(self, full: bool = False) -> bool:
        """Whether all is held that has memory, that garbage apart; gc frees what it can of the young, or of all."""
        since = self._tensors.take_up(full)
        if not self._stays(since):
            self._garbage, self.left = Seen(), {}
        return self._all_held(self._garbage.addresses)

    def begin(self) -> Mark | None:
        """The mark from which the block's own are told."""
        return self._tensors.mark

    def looked_before(self, left: dict[str, int], collect: bool = True) -> None:
        """A look before the block has found this garbage, and made Python objects for what had none."""
        self.left = left
        if collect:
            self._tensors.take_up()
        else:
            self._tensors.scan()
            self._tensors.draw_line()

    def held_within(self) -> bool:
        """As `held_before`, of a block within another: what that has left by now stays, and nothing is collected."""
        mark = self._tensors.mark
        held = self.held_after(mark)
        self._tensors.draw_line()
        return held

    def held_after(self, mark: Mark | None, values: Collection[Any] = (), allowance: int = 0) -> bool:
        """Whether all is held that has memory, now that the block is over, but for so many bytes; `values` are.

        `at_most` says how many.
        """
        since = self._tensors.take_since(mark)
        stays = since is not None and self._stays(since)
        return self._all_held(self._garbage.addresses if stays else frozenset(), values, allowance)

    def was_garbage(self, obj: Any) -> bool:
        """Whether a look before the block has found this object to be garbage that nothing frees."""
        return self._garbage.has(obj)

    def learn(self, heap: ExplainedHeap) -> None:
        """Take from a look what leads to tensors."""
        objects = heap.pruned.objects
        self._paths.update(heap.native.sweep.addresses[objects[objects < heap.refcounts.objects]].tolist())

    def learn_before(self, heap: ExplainedHeap) -> None:
        """As `learn`, and what is garbage already."""
        self.learn(heap)
        n, native = heap.refcounts.objects, heap.native
        never = heap.pruned.objects[heap.freed == IMMORTAL]
        found = [native.sweep.objects[k] for k in never[never < n].tolist()]
        storages = list(native.storages.values())
        for storage in (storages[k - n] for k in never[never >= n].tolist()):
            # its Python object, which the look may have made, goes with it
            found.append(storage_object(tensor_over(native.sweep.objects[storage.holders[0]], storage.address)))
        self._garbage = Seen(found)

    def _stays(self, since: Set[int] | None) -> bool:
        """Whether all the garbage that is known is still there, and nothing that came has its address."""
        garbage = self._garbage
        return not garbage.any_gone() and (since is None or since.isdisjoint(garbage.addresses))

    def _all_held(self, but: Set[int], values: Collection[Any] = (), allowance: int = 0) -> bool:
        frames, tensors = _frames(), self._tensors
        self.at_most = 0
        walk = Walk(
            tensors.known - but,
            self._paths,
            tensors.new,
            tensors.storages,
            tensors.forget_the_dead,
            lambda missing: self._are_within(allowance, missing),
            one_by_one=len(self._paths) > _MORE * self._apart,
        )
        with no_automatic_gc(), without_functions():
            walk.run(frames, values)
        frames.clear()
        self.doubtful = tensors.forget_the_dead(walk.missing) if walk.missing else set()
        if not self.doubtful:
            self._paths = walk.paths()
            if walk.one_by_one:
                self._apart = len(self._paths)
        return not self.doubtful or walk.was_enough

    def _are_within(self, allowance: int, missing: Set[int]) -> bool:
        """Whether these can keep alive no more than that; `at_most` is how much."""
        objects = _objects_at(missing)
        most = None if objects is None else most_bytes(objects)
        if most is None or most > allowance:
            return False
        self.at_most = most
        return True


def _objects_at(addresses: Set[int]) -> list[Any] | None:
    """The objects that gc lists at all these addresses; None where it does not list them all."""
    for generations in ((0,), ()):
        found = listed_at(addresses, *generations)
        if len(found) == len(addresses):
            return found
    return None


def _frames() -> list[FrameType]:
    """The frames that run, those of this thread first; leakscope's own left out."""
    frames, own = running_frames(), sys._getframe()
    here = next(place for place, frame in enumerate(frames) if frame is own)
    found = [frame for frame in (*frames[here:], *frames[:here]) if not _is_ours(frame)]
    frames.clear()  # a list that holds the frame that holds it would outlive this call
    del own
    return found


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith(_OURS)


QUESTION = Question()
"""Of this process."""
