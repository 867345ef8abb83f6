"""Is every tensor certainly held, before a block of code and after it? A look is needed where this cannot be told."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Set
from types import FrameType
from typing import Any

from leakscope.capture.heap.explain import ExplainedHeap
from leakscope.capture.heap.native.storages import storage_object, tensor_over
from leakscope.capture.held.tensors import Mark, Tensors
from leakscope.capture.held.walk import Walk
from leakscope.capture.process.pause import no_automatic_gc
from leakscope.capture.source.user_frames import running_frames
from leakscope.capture.torch_private import without_functions
from leakscope.graph.model import IMMORTAL

_OURS = ("leakscope.capture", "leakscope.profiler")
"""Modules whose frames hold nothing of the program's, or only for as long as they run."""


class Question:
    """What is known of this process's tensors from one block to the next: addresses, nothing that is held.

    Whatever is reached from what lives is no garbage, whichever way it was found: a wrong address costs time alone. And
    a storage that a look would find to be garbage has a tensor, a grad node or a storage object that is not reached.
    """

    def __init__(self) -> None:
        self._tensors = Tensors()
        self._paths: set[int] = set()
        """What led to tensors the last time."""
        self._garbage: dict[int, weakref.ref[Any] | None] = {}
        """What a look before a block has found that nothing will ever free; a grad node takes no weak reference."""
        self.left: dict[str, int] = {}
        """Bytes of the findings about that garbage, by fingerprint."""
        self.doubtful: set[int] = set()
        """What was not found to be held when last asked."""

    def held_before(self, full: bool = False) -> bool:
        """Whether all is held, that garbage apart; of what is young gc frees what it can, or of everything."""
        since = self._tensors.take_up(full)
        if not self._stays(since):
            self._garbage, self.left = {}, {}
        return self._all_held(self._garbage.keys())

    def begin(self) -> Mark | None:
        """The mark from which the block's own are told."""
        return self._tensors.mark

    def looked_before(self, left: dict[str, int]) -> None:
        """A look before the block has found this garbage, and made Python objects for what had none."""
        self.left = left
        self._tensors.take_up()

    def held_after(self, mark: Mark | None) -> bool:
        """Whether all is held now that the block is over."""
        since = self._tensors.take_since(mark)
        return self._all_held(self._garbage.keys() if since is not None and self._stays(since) else frozenset())

    def learn(self, heap: ExplainedHeap) -> None:
        """Take from a look what leads to tensors."""
        objects = heap.pruned.objects
        self._paths.update(heap.native.sweep.addresses[objects[objects < heap.refcounts.objects]].tolist())

    def learn_before(self, heap: ExplainedHeap) -> None:
        """As `learn`, and what is garbage already."""
        self.learn(heap)
        n, native = heap.refcounts.objects, heap.native
        never = heap.pruned.objects[heap.freed == IMMORTAL]
        found = [native.sweep.objects[k] for k in never[never < n].tolist() if native.role[k]]
        storages = list(native.storages.values())
        for storage in (storages[k - n] for k in never[never >= n].tolist()):
            # its Python object, which the look may have made, goes with it
            found.append(storage_object(tensor_over(native.sweep.objects[storage.holders[0]], storage.address)))
        self._garbage = {id(obj): _weakly(obj) for obj in found}

    def _stays(self, since: Set[int] | None) -> bool:
        """Whether all the garbage that is known is still there, and nothing that came has its address."""
        gone = any(ref is not None and ref() is None for ref in self._garbage.values())
        return not gone and (since is None or self._garbage.keys().isdisjoint(since))

    def _all_held(self, but: Set[int]) -> bool:
        frames, tensors = _frames(), self._tensors
        walk = Walk(tensors.known - but, self._paths | tensors.new, tensors.storages, tensors.forget_the_dead)
        with no_automatic_gc(), without_functions():
            walk.run(frames)
        frames.clear()
        self.doubtful = tensors.forget_the_dead(walk.missing) if walk.missing else set()
        if not self.doubtful:
            self._paths = walk.paths()
        return not self.doubtful


def _weakly(obj: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(obj)
    except TypeError:
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
