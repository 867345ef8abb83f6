"""Variables that a running function never reads again are identified."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakscope.process.frames import unread_variables


def ask(found: list[set[str]], *_: object) -> None:
    found.append(set(unread_variables(sys._getframe(1))))


def after_the_loop(found: list[set[str]]) -> Any:
    checkpoint, validation, last = "c", "v", ""
    start = checkpoint
    for number in range(2):
        batch = str(number)
        ask(found, batch)
        last = batch + start
    return validation, last


def on_one_way_only(found: list[set[str]]) -> str:
    kept, dropped = "k", "d"
    ask(found)
    if found:
        return kept
    del dropped
    return ""


def in_a_handler(found: list[set[str]]) -> str:
    rare, other = "r", "o"
    try:
        ask(found, other)
    except ValueError:
        return rare
    return ""


def closed_over(found: list[set[str]]) -> Callable[[], str]:
    kept, own = "k", "o"
    ask(found, own)
    return lambda: kept


def by_name(found: list[set[str]]) -> object:
    kept = "k"
    ask(found, kept)
    return locals()


@pytest.mark.parametrize(
    ("function", "unread", "read"),
    [
        (after_the_loop, {"checkpoint"}, {"validation", "start", "batch"}),
        (on_one_way_only, {"dropped"}, {"kept", "found"}),
        (in_a_handler, {"other"}, {"rare"}),
        (closed_over, {"own"}, {"kept"}),
        (by_name, set(), {"kept"}),
    ],
)
def test_a_variable_that_no_path_reads_is_unread(function: Any, unread: set[str], read: set[str]) -> None:
    found: list[set[str]] = []
    function(found)
    assert unread <= found[0] and read.isdisjoint(found[0])


SCRIPT = """
import sys
from leakscope.process.frames import unread_globals

checkpoint, validation, settings = 1, 2, 3

def evaluate():
    return settings

def step():
    return sorted(unread_globals(sys._getframe(1)))

start = checkpoint
for number in range(2):
    batch = number
    if "checkpoint" not in step() or not {"validation", "settings", "batch"}.isdisjoint(step()):
        sys.exit(f"{step()} are unread")
    print(batch)
print(validation, start)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("more", "status"), [("", 0), ("def later():\n    return checkpoint\n", 1), ("eval('1')\n", 1)]
)
def test_a_global_that_a_function_names_is_read(more: str, status: int, tmp_path: Path, starts_processes: None) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("start = checkpoint", more + "start = checkpoint"), encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
