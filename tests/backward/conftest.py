"""A fixed seed for every test of the backward."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
