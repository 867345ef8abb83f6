"""What the tests of device memory share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.devices import kinds
from support.devices.fake_device_memory import FakeDeviceMemory


@pytest.fixture
def fake_device(tmp_path: Path) -> Callable[..., FakeDeviceMemory]:
    def make(**known: Any) -> FakeDeviceMemory:
        return FakeDeviceMemory(tmp_path, **known)

    return make


@pytest.fixture(scope="session", params=[pytest.param("cuda", marks=pytest.mark.device), "fake"])
def device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, starts_processes: None
) -> kinds.Kind:
    """Each kind of device in turn."""
    if request.param == "cuda":
        return kinds.cuda()
    cache: pytest.Cache = request.config.cache
    return kinds.fake(tmp_path_factory.mktemp("fake"), cache.mkdir("torch_fake"))
