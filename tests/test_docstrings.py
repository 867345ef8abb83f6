"""Public names document their arguments and errors, and the examples in their docstrings run."""

from __future__ import annotations

import doctest
import inspect

import pytest
import torch
from support import ROOT

import leakscope
from leakscope import backward

PUBLIC = {
    "watch": leakscope.watch,
    "Profiler": leakscope.Profiler,
    "check": leakscope.check,
    "draw": leakscope.draw,
    "holders": leakscope.holders,
    "judge": leakscope.judge,
    "read_run": leakscope.read_run,
    **{f"backward.{name}": getattr(backward, name) for name in backward.__all__ if name != "Installed"},
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    torch.manual_seed(0)
    doc = inspect.getdoc(PUBLIC[name]) or ""
    example = doctest.DocTestParser().get_doctest(doc, {}, name, None, None)
    assert example.examples, f"{name} shows no example"
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert result.attempted and not result.failed


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments_and_errors_are_told(name: str) -> None:
    function = PUBLIC[name]
    doc = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters:
        assert f"{parameter}:" in doc or f"`{parameter}`" in doc, f"{name}: {parameter}"
