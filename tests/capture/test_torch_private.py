"""Private names of torch are used in one module only, and the installed torch has all of them."""

from __future__ import annotations

import ast
import functools
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from support import ROOT

import leakscope
from leakscope.errors import LeakscopeError
from leakscope.process import torch_compat
from leakscope.process.patches import Patches, exclude_from_dynamo
from leakscope.process.torch_compat import NEEDS, TABLE, Private, RecordingPart, lacking, lacks, sentences
from leakscope.recorder.accelerator import described, missing_functions
from leakscope.verdict import Verdict

OF_OTHERS = {
    *("_result", "_exception", "_callbacks", "_loop", "_asyncio", "_target", "_fields", "_code", "_out"),
    *("_instance", "_filename_map", "_args", "_identity", "_load"),
}
"""Not torch's: names of Python's own modules and of IPython, and the end of many a name."""
MODULES_OF_PYTHON = {"sys", "os", "threading", "ctypes", "_thread"}
AT_MOST_MS = 20
"""Milliseconds that finding out may take here: it takes less than one on a machine with nothing else to do."""


def test_capture_names_what_is_private_to_torch_in_one_file() -> None:
    """Private is what begins with one underscore: as an attribute of whatever it is, as a string that is such a name,
    in an import. What capture's own classes define, and what Python has, is no name of torch's.
    """
    trees = {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for name in ("comm", "dataloader", "heap", "process", "recorder")
        for path in (ROOT / "leakscope" / name).rglob("*.py")
    }
    own = OF_OTHERS | {name for tree in trees.values() for name in defined(tree)}
    own -= {part for private in TABLE for part in private.path.split(".")}
    del trees["leakscope/process/torch_compat.py"]
    assert [f"{path}:{line} {name}" for path, tree in trees.items() for name, line in private_in(tree, own)] == []


@pytest.mark.parametrize(
    "line",
    [
        "torch._C._has_storage(tensor)",
        "tensor._use_count()",
        'getattr(tensor, "_base")',
        "from torch._ops import OpOverload",
        "from torch.utils import _python_dispatch",
        "storage._cdata",
    ],
)
def test_a_private_name_is_noticed(line: str) -> None:
    assert list(private_in(ast.parse(line), set()))


def defined(tree: ast.Module) -> Iterator[str]:
    """What the functions of a module are called, and the attributes that it sets."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def private_in(tree: ast.Module, own: set[str]) -> Iterator[tuple[str, int]]:
    """(name, line) of every private name that is none of one's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            names = [node.attr] if owner not in MODULES_OF_PYTHON | {"self"} else []
        elif isinstance(node, ast.Constant):
            names = [node.value] if isinstance(node.value, str) else []
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            of = (getattr(node, "module", None) or "", *(alias.name for alias in node.names))
            names = ".".join(of).split(".") if any(name.split(".")[0] == "torch" for name in of) else []
        else:
            continue
        yield from ((name, node.lineno) for name in names if re.fullmatch("_[A-Za-z]\\w*", name) and name not in own)


def test_this_torch_has_all_of_it() -> None:
    assert lacking() == sentences() == ()


def test_finding_out_is_quick_and_leaves_nothing_behind() -> None:
    random, grad = torch.get_rng_state(), torch.is_grad_enabled()
    modes = torch_compat.modes_running()
    began = time.thread_time()
    missing = lacking.__wrapped__()
    spent = time.thread_time() - began
    assert missing == lacking()
    assert spent * 1000 < AT_MOST_MS
    assert torch.equal(random, torch.get_rng_state())
    assert (torch.is_grad_enabled(), torch_compat.modes_running()) == (grad, modes)


def test_no_mode_of_the_scripts_hears_of_it() -> None:
    heard: list[object] = []

    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            heard.append(func)
            return func(*args, **(kwargs or {}))

    class Operations(torch_compat.DispatchMode):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            heard.append(func)
            return func(*args, **(kwargs or {}))

    with Functions(), Operations():
        assert lacking.__wrapped__() == lacking()
    assert heard == []


@pytest.fixture
def no_answers_kept() -> Iterator[None]:
    """`lacking` finds out anew, and again after the test."""
    lacking.cache_clear()
    yield
    lacking.cache_clear()


@pytest.mark.usefixtures("no_answers_kept")
@pytest.mark.parametrize("part", list(NEEDS))
def test_what_builds_on_a_part_goes_with_it(part: RecordingPart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "TABLE", [Private("torch._nothing_there", NEEDS[part])])
    assert lacks(part)
    assert len(sentences()) == 1


@pytest.mark.usefixtures("no_answers_kept")
def test_a_name_that_does_something_else_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = next(private for private in TABLE if private.path.endswith("._use_count"))
    assert uses.is_there()
    assert not replace(uses, path="torch._C.TensorBase.numel").is_there()
    assert not replace(uses, path="torch.Tensor.no_such_method").is_there()


def test_what_a_torch_was_built_without_is_not_lacking() -> None:
    optional = Private("torch._C._no_such_module.Work", RecordingPart.COMM, optional=True)
    assert optional.is_there()
    assert not replace(optional, path="torch._C._no_such_function").is_there()


def test_a_stand_in_is_named_further_and_raises_when_it_is_called() -> None:
    stand_in = torch_compat.MissingName("torch._C._gone")
    with pytest.raises(RuntimeError, match=r"this torch has no torch\._C\._gone"):
        stand_in.inner.__get__(torch)
    assert functools.reduce(getattr, ["a", "b"], stand_in) is stand_in


@pytest.mark.usefixtures("no_answers_kept")
def test_a_block_that_cannot_be_looked_at_is_not_called_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "TABLE", [Private("torch._C._no_such_count", RecordingPart.SNAPSHOTS)])
    warned = pytest.warns(
        UserWarning, match=r"not inspected: this torch has no torch\._C\._no_such_count: what is alive"
    )
    with warned, leakscope.watch(fail=True) as block:
        kept = torch.ones(3)
    assert kept.sum() == 3
    assert block.findings.verdict == Verdict.INCONCLUSIVE
    with pytest.raises(LeakscopeError, match="no_such_count"):
        leakscope.check(lambda: None)


def test_what_an_accelerator_does_not_offer_is_told() -> None:
    bare = missing_functions(described("npu", ModuleType("npu")))
    assert [sentence.partition(":")[0] for sentence in bare] == [
        "this torch has no _record_memory_history for npu",
        "this torch has no _snapshot for npu",
        "this torch has no _npu_attach_out_of_memory_observer for npu",
    ]


def test_a_dynamo_that_skips_folders_in_another_way_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, torch_compat.DYNAMO_RULES, ModuleType("rules"))
    told: list[str] = []
    patches = Patches()
    exclude_from_dynamo(patches, told.append)
    assert [sentence.partition(": ")[0] for sentence in told] == [
        "this torch has no torch._dynamo.trace_rules.SKIP_DIRS"
    ]
    assert patches.names == ()
