"""Trace and profile functions of the script see its own calls and none of leakscope."""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from leakscope.process.guard import traced, untraced

Names = set[str]
PARTS = pytest.mark.parametrize("pure", ["", "1"], ids=["native", "Python"])


def _scripts_own() -> str:
    return "answer"


def _ours(through: Callable[[], Any]) -> Any:
    def nested() -> Any:
        return len([through()])

    return nested()


def _fails() -> None:
    raise KeyError("ours")


def _calls(through: Callable[[], Any] = _scripts_own) -> None:
    """As a script: what is untraced is called in between."""
    _scripts_own()
    untraced(_ours)(through)
    with pytest.raises(KeyError):
        untraced(_fails)()
    _scripts_after()


def _scripts_after() -> None:
    return None


@contextmanager
def _tracing(names: Names) -> Iterator[None]:
    found = sys.gettrace()
    sys.settrace(lambda frame, *_: names.add(frame.f_code.co_name))
    try:
        yield
    finally:
        sys.settrace(found)


@contextmanager
def _c_profiling(names: Names) -> Iterator[None]:
    with cProfile.Profile() as profile:
        yield
    names |= {name for _, _, name in pstats.Stats(profile).stats}  # type: ignore[attr-defined]


TOOLS = pytest.mark.parametrize("tool", [_tracing, _c_profiling])


@PARTS
@TOOLS
def test_our_calls_are_hidden_and_those_of_the_script_are_not(
    tool: Any, pure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKSCOPE_PURE", pure)
    names: Names = set()
    with tool(names):
        _calls()
    assert {"_calls", "_scripts_own", "_scripts_after"} <= names, "they hear again after one that raised, too"
    assert not {"_ours", "nested", "_fails", "len"} & names


@PARTS
@TOOLS
def test_a_call_of_the_script_within_ours_is_seen(tool: Any, pure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKSCOPE_PURE", pure)
    names: Names = set()

    def inner() -> str:
        return "of the script's"

    with tool(names):
        _calls(traced(inner))
    assert "inner" in names and not {"_ours", "nested", "_fails"} & names


SCRIPT = """
import cProfile, pstats, sys
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
traced = set()
def hear(frame, event, of):
    traced.add(frame.f_code.co_filename)
def steps():
    for _ in range(9):
        optimizer.zero_grad()
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()
sys.settrace(hear)
sys.setprofile(hear)
steps()
sys.settrace(None)
sys.setprofile(None)
with cProfile.Profile() as profile:
    steps()
traced |= {name for name, _, _ in pstats.Stats(profile).stats}
print([name for name in traced if "leakscope/" in name and "site-packages" not in name], __file__ in traced)
"""


@pytest.mark.process
def test_a_recorded_script_traces_nothing_of_ours(leakscope: Callable[..., Any], script: Callable[[str], Any]) -> None:
    ran = leakscope("run", script(SCRIPT))
    assert ran.stdout.startswith("[] True\n"), ran.stdout + ran.stderr
    assert "18 steps" in ran.stdout + ran.stderr
