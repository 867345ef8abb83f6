"""`watch` reports the line that retains a loss together with a suggested edit."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import leakscope

pytestmark = pytest.mark.look

_history: list[Any] = []


def _step(net: torch.nn.Module) -> None:
    loss = net(torch.ones(512, 64)).square().mean()
    _history.append(loss)


def test_the_line_that_keeps_a_loss_is_told_with_its_edit() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh())
    try:
        findings = leakscope.check(lambda: _step(net), repeats=3)
    finally:
        _history.clear()
    (finding,) = [f for f in findings.findings if f.severity == "leak"]
    lines, first = inspect.getsourcelines(_step)
    assert finding.cut is not None
    (place,) = finding.cut.references[0].added_at
    assert place.endswith(f"test_live.py:{first + len(lines) - 1}")
    edit = finding.suggestion
    assert edit is not None
    assert (edit.where, edit.before, edit.after) == (place, "_history.append(loss)", "_history.append(loss.item())")
