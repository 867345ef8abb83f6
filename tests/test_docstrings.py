"""The examples in the docstrings of the public API run, and its functions document their arguments."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from importlib import import_module

import pytest
import torch
from support import ROOT

from leakscope.profiler.holders import Picture

MODULES = ("leakscope", "leakscope.backward", "leakscope.testing")
WITHOUT_EXAMPLE = {"LaunchFailed", "LeakedTensors", "Unreadable", "__version__"}
"""Two errors without content of their own, a list that `check_leaked_tensors` shows, and a string."""


def public() -> Iterator[tuple[str, object]]:
    for module in map(import_module, MODULES):
        yield from ((name, getattr(module, name)) for name in module.__all__)


def methods(kind: type) -> Iterator[object]:
    for name, value in vars(kind).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod)):
            yield getattr(kind, name)


def test_every_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    torch.manual_seed(0)
    documented = dict(public())
    nested = {f"{name}.{m.__name__}": m for name, k in documented.items() if inspect.isclass(k) for m in methods(k)}
    runner, parser = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), doctest.DocTestParser()
    for name, value in (documented | nested | {"backward": import_module("leakscope.backward")}).items():
        example = parser.get_doctest(inspect.getdoc(value) or "", {}, name, None, None)
        assert example.examples or name in nested or name in WITHOUT_EXAMPLE, f"{name} has no example"
        assert not runner.run(example).failed, name


def test_functions_document_arguments_and_results() -> None:
    functions = {name: value for name, value in public() if inspect.isfunction(value) or inspect.isclass(value)}
    own = [m for k in (*functions.values(), Picture) if inspect.isclass(k) for m in methods(k)]
    for function in [value for value in functions.values() if inspect.isfunction(value)] + own:
        doc, signature = inspect.getdoc(function) or "", inspect.signature(function)
        for name in signature.parameters.keys() - {"self", "ctx", "tensors"}:
            assert f"    {name}: " in doc, f"{function.__qualname__}: {name}"
        if signature.return_annotation not in ("None", "str", "StepMark", "Self"):
            assert "Returns:" in doc, function.__qualname__
