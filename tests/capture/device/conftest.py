"""What the tests of device memory share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import device_kinds as kinds
from support.fake_device_memory import OnStandIn


@pytest.fixture
def standing_in(tmp_path: Path) -> Callable[..., OnStandIn]:
    def make(**known: Any) -> OnStandIn:
        return OnStandIn(tmp_path, **known)

    return make


@pytest.fixture(scope="session", params=[pytest.param("cuda", marks=pytest.mark.device), "card"])
def device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, starts_processes: None
) -> kinds.Kind:
    """Each kind of device in turn."""
    return kinds.cuda() if request.param == "cuda" else kinds.card(tmp_path_factory.mktemp("card"))
