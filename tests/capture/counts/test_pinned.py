"""Pinned memory has one meaning: what tensors have of it."""

from __future__ import annotations

import pytest
import torch

from leakscope.capture.counts import monitor
from leakscope.capture.torch_data import pinned_bytes
from leakscope.capture.workers import loaders


def test_what_the_allocator_keeps_for_reuse_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"active_bytes.current": 4096, "allocated_bytes.current": 1 << 20}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: stats, raising=False)
    assert pinned_bytes() == 4096
    assert monitor.pinned_bytes is pinned_bytes and loaders.pinned_bytes is pinned_bytes
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert pinned_bytes() is None
