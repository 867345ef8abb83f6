"""What the tests of device memory share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from on_stand_in import OnStandIn


@pytest.fixture
def standing_in(tmp_path: Path) -> Callable[..., OnStandIn]:
    def make(**known: Any) -> OnStandIn:
        return OnStandIn(tmp_path, **known)

    return make
