"""Is every tensor certainly held, before a block of code and after it? A look is needed where this cannot be told."""

from __future__ import annotations

import sys
from collections.abc import Collection, Set
from types import FrameType
from typing import Any

from leakscope.capture.heap.explain import ExplainedHeap
from leakscope.capture.heap.native.storages import storage_object, tensor_over
from leakscope.capture.heap.python.listed import listed_at
from leakscope.capture.held.at_most import most_bytes
from leakscope.capture.held.seen import Seen
from leakscope.capture.held.tensors import Mark, Tensors
from leakscope.capture.held.walk import Walk
from leakscope.capture.process.pause import no_automatic_gc
from leakscope.capture.source.user_frames import running_frames
from leakscope.capture.torch_private import without_functions
from leakscope.graph.model import IMMORTAL

_OURS = ("leakscope.capture", "leakscope.profiler", "leakscope.testing")
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
