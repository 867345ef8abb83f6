"""Pinned memory has one meaning: what tensors have of it."""

from __future__ import annotations

import pytest
import torch

from leakscope.dataloader import monitor as dataloader_monitor
from leakscope.process.torch_compat import pinned_bytes
from leakscope.recorder import process_counters


def test_what_the_allocator_keeps_for_reuse_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"active_bytes.current": 4096, "allocated_bytes.current": 1 << 20}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: stats, raising=False)
    assert pinned_bytes() == 4096
    assert process_counters.pinned_bytes is pinned_bytes and dataloader_monitor.pinned_bytes is pinned_bytes
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert pinned_bytes() is None
