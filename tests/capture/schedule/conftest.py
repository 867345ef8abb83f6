"""A clock that hears all that happens in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.step_clocks import Heard

from leakscope.process.patches import Patches


@pytest.fixture
def heard() -> Iterator[Heard]:
    listening, patches = Heard(), Patches()
    listening.events.install(patches)
    yield listening
    patches.take_out()
    assert not patches.guard.lost
