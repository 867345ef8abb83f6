"""Containers and caches of leakscope are excluded from heap snapshots."""

from __future__ import annotations

from functools import cache

from leakscope.heap.growth import Gains
from leakscope.heap.snapshot import SnapshotContext, look
from leakscope.process.user_code import is_users
from leakscope.run.rows import GainingContainer, Occasion


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
