"""Containers and caches of leakscope are excluded from heap snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from leakscope.heap.growth import Gains
from leakscope.heap.snapshot import SnapshotContext, look
from leakscope.process.user_code import is_users
from leakscope.run import rows
from leakscope.run.rows import GainingContainer, Occasion


@pytest.fixture
def kept_by_us() -> Iterator[dict[object, object]]:
    """A dict of a module of leakscope's."""
    own: dict[object, object] = rows._columns_of  # type: ignore[assignment]
    before = dict(own)
    yield own
    own.clear()
    own.update(before)


def test_a_module_of_ours_gains_nothing_and_what_is_noted_is_no_array(kept_by_us: dict[object, object]) -> None:
    gains = Gains()
    looks = []
    for step in range(3):
        kept_by_us.update({(step, k): "x" * 9000 + str((step, k)) for k in range(9)})
        looks.append(look(step, Occasion.STEP, SnapshotContext(gains=gains, hidden=(gains,))))
    for seen in looks:
        labels = [seen.heap.object(index).label for index in range(len(seen.heap))]
        assert not [label for label in labels if label.startswith(("module leakscope", "Containers object"))]


def test_a_cache_of_a_function_of_ours_gains_nothing_and_that_of_another_does() -> None:
    @cache
    def theirs(text: str) -> str:
        return text + "!"

    gains = Gains()
    is_users.cache_clear()  # full of what other tests asked, it would gain nothing
    told: list[GainingContainer] = []
    for step in range(3):
        for k in range(200):
            is_users(f"/no/such/folder/{step}/{k}.py")
            theirs(f"{step} {k} " + "x" * 100)
        told += look(step, Occasion.STEP, SnapshotContext(gains=gains, hidden=(gains,))).containers
    assert is_users.cache_info().currsize >= 600
    assert [container.items for container in told] == [400, 600]
