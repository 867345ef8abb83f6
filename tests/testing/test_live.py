"""In place of counting tensors with gc: all of them, each piece of memory once, and who holds what came."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

from leakscope.findings.live_objects import RetentionKind
from leakscope.testing import live_tensors


def by_hand() -> int:
    """What people write (discuss.pytorch.org/t/how-to-debug-causes-of-gpu-memory-leaks/6741)."""
    return sum(torch.is_tensor(obj) for obj in gc.get_objects())


def test_what_was_added_is_counted_and_its_holder_named() -> None:
    losses: list[torch.Tensor] = []
    before, counted = live_tensors(), by_hand()
    losses += [torch.ones(1000), torch.ones(500)]
    losses.append(losses[0][10:])
    after = live_tensors()
    added = after.diff(before)
    assert by_hand() - counted == after.count - before.count == added.more == 3
    assert (added.storages, added.bytes) == (2, 6000) and after.bytes - before.bytes == 6000
    assert after.storages - before.storages == 2
    name = "losses in test_what_was_added_is_counted_and_its_holder_named()"
    assert sum(held.bytes for held in added.lines) == 6000 and added.lines[0].name == name
    assert "tensor memory added: 5.86 KiB in 2 storages; +3 tensors" in str(added) and name in str(added)
    assert added and not after.diff(after) and str(after.diff(after)) == "no tensor memory was added"


def test_what_came_and_went_meanwhile_or_in_the_place_of_another_is_told_apart() -> None:
    first = torch.ones(1000)
    before = live_tensors()
    address = first.data_ptr()
    del first
    second = torch.ones(1000)  # as a rule in the memory that was just given back
    added = live_tensors().diff(before)
    assert added.bytes == 4000 and added.more == 0, second.data_ptr() == address


def test_what_only_autograd_holds_is_counted_that_gc_does_not_list() -> None:
    weight = torch.ones(300, requires_grad=True)
    before, counted = live_tensors(), by_hand()
    loss = (weight * 2).exp().sum()
    assert by_hand() - counted == 1
    added = live_tensors().diff(before)
    assert (added.bytes, added.more) == (1200 + 4 + 8, 3), loss  # what exp gave, the sum, and the number 2
    assert added.lines[0].name.startswith("loss in ")


def test_garbage_is_counted_as_what_waits_for_gc() -> None:
    before = live_tensors()
    kept: list[Any] = [torch.ones(100)]
    kept.append(kept)
    gone = weakref.ref(kept[0])
    del kept
    after = live_tensors()
    [held] = after.diff(before).lines
    assert (held.kept, held.bytes) == (RetentionKind.WAITS_FOR_GC, 400)
    gc.collect()
    assert gone() is None  # a count holds nothing
    assert not live_tensors().diff(before)


class Odd:
    """Claims another class, with code of its own."""

    asked = 0

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        Odd.asked += 1
        return type(self)


def test_no_object_is_asked_for_its_class() -> None:
    odd = Odd()
    odd.tensor = torch.ones(10)  # type: ignore[attr-defined]
    live_tensors()
    assert Odd.asked == 0
    by_hand()
    assert Odd.asked > 0
