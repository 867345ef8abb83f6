"""Which package sets an attribute is read in the code of its classes, and in nothing else."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from leakscope.heap.referents import package_that_sets

LIBRARY = """
import functools

def decorated(method):
    @functools.wraps(method)
    def around(*args):
        return method(*args)
    return around

class Base:
    __slots__ = ("room", "__dict__")

    def __init__(self, model):
        object.__setattr__(self, "model", model)
        self.strategy = model
        setattr(self, "given", model)

    @property
    def value(self): return self.read_only

    @value.setter
    def value(self, value): self.behind = value

    @decorated
    def fill(self): self.filled = 3

    def __getattr__(self, name): raise AssertionError("user code")
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    package = tmp_path / "site-packages" / "setters_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(package.parent))
    yield __import__("setters_library")
    del sys.modules["setters_library"]


def test_attributes_set_by_a_class_of_a_package(library: ModuleType) -> None:
    class Mine(library.Base):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__(self)
            self.mine = self

    set_here = ("model", "strategy", "given", "behind", "filled", "room")
    assert {package_that_sets(Mine, name) for name in set_here} == {"setters_library"}
    assert {package_that_sets(Mine, name) for name in ("mine", "read_only", "nothing", "value")} == {""}


def test_fields_of_c_types_and_hooks_of_modules() -> None:
    assert package_that_sets(functools.partial, "args") == "functools"
    assert package_that_sets(functools.partial, "mine") == ""
    assert package_that_sets(torch.nn.Linear, "_forward_hooks") == "torch"
    assert package_that_sets(torch.nn.Linear, "weight") == "torch"
    assert package_that_sets(torch.nn.Linear, "parent") == ""
