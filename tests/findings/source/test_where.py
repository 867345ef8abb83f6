"""The cut of a tensor is placed at the line that binds it."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
from findings.source.test_lines import LIST_OF_MAIN
from findings.source.traces import finding, kept

from leakscope.findings.facts import FreedBy
from leakscope.findings.judge import find_lines
from leakscope.findings.model import UnjudgedReason, WhyUnjudged
from leakscope.findings.source.index import Sources
from leakscope.findings.source.lines import with_lines
from leakscope.run.model import Run

stage = import_module("leakscope.findings.source.lines")

SUM = """
    module __main__ train.py:7 -> .total
    tensor float32[] -> .grad_fn
    node AddBackward0
"""
SUMMED = """
    total = 0
    for x in data:
        if epoch:
            total += net(x)
        else:
            total += net(x).item()
"""
CLOSURE = """
    function make.<locals>.mask train.py:3 -> closure kept
    tensor float32[8] -> storage
    storage s
"""
CALLED = """
    def make(kept):
        kept = net(kept)
        def mask(x):
            return x * kept
        net.register_hook(mask)
"""
CLOSED = """
    def make(kept):
        kept = net(kept)
        def mask(x):
            return x * kept
        net.mask = mask
"""


@pytest.mark.parametrize(
    ("trace", "text", "where", "told_at"),
    [
        (SUM, SUMMED, "train.py:6", "train.py:4"),
        (SUM, SUMMED, "train.py:4", "train.py:4"),
        (SUM, SUMMED, "other.py:6", "other.py:6"),
        (SUM, SUMMED, "", ""),
        (SUM, "net(x)", "train.py:6", "train.py:6"),
        (LIST_OF_MAIN, "def main():\n    history = []\n    history = [*history, net(x)]", "train.py:2", "train.py:2"),
        (CLOSURE, CLOSED, "train.py:2", "train.py:2"),
        (CLOSURE, CALLED, "train.py:2", "train.py:2"),
    ],
)
def test_a_tensor_is_cut_where_it_is_bound(trace: str, text: str, where: str, told_at: str) -> None:
    found = finding(trace, 0, freed_by=FreedBy.GC if trace == CLOSURE else FreedBy.PROGRAM)
    assert found.cut is not None
    cut = replace(found.cut, references=(replace(found.cut.references[0], where=where),))
    after = with_lines(replace(found, cut=cut), Sources(kept(train=text)))
    assert after.cut is not None and after.cut.where == told_at and after.fingerprint == found.fingerprint


def test_a_module_stands_where_its_tensor_is_bound() -> None:
    found = finding(SUM, 0)
    assert found.cut is not None
    cut = replace(found.cut, references=(replace(found.cut.references[0], where="train.py:7"),))
    after = with_lines(replace(found, cut=cut), Sources(kept(train=SUMMED)))
    assert [hop.where for hop in after.trace] == ["train.py:4", "", ""]


def test_source_that_cannot_be_read_costs_the_lines_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(stage, "stores_for", raises)
    found, run = finding(SUM, 0), Run(("train.py",), (), 1, "cpu", "", "", sources=kept(train=SUMMED))
    findings, unread = find_lines([found], run)
    assert [each.fingerprint for each in findings] == [found.fingerprint]
    (noted,) = unread
    assert noted.rule == found.rule
    assert noted.why == WhyUnjudged(reason=UnjudgedReason.NO_SOURCE, error="RecursionError: too deep")
