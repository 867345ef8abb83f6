"""Memory held in a notebook is named by variable, output or error, and the suggested commands free it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="runs no kernel: pip install 'leakscope[test]'")

from support.pages.notebooks import Notebook, notebook

pytestmark = pytest.mark.process

BEGIN = """
import gc, json, sys, weakref
import torch
import leakscope
watched = {}
def watch(name, tensor):
    weakref.finalize(tensor.untyped_storage(), watched.pop, name, None)
    watched[name] = tensor.untyped_storage().nbytes()
    return tensor
gc.disable()
"""
FAILS = """
def forward(batch):
    activations = watch("activations", torch.ones(30000))
    return torch.empty(1 << 50)
def train():
    batch = watch("batch", torch.ones(7000))
    return forward(batch)
train()
"""
REPORTED = """
from leakscope.report.holders import to_type
told = leakscope.holders()
commands = [text for text, _ in to_type(told.alive.typed)]
sizes = [step.bytes for step in told.alive.typed]
print(json.dumps([json.loads(told.to_json()), list(zip(commands, sizes)), sum(watched.values())]))
"""


PROFILED = """
history = []
net = torch.nn.Linear(256, 256)
with leakscope.Profiler(budget=1.0) as profiler:
    for _ in range(8):
        with profiler.step():
            history.append(net(torch.ones(256, 256)).sum())
found, history, net = profiler.findings, None, None
found
"""


ACROSS = """
for _ in range(8):
    with across.step():
        kept.append(torch.ones(128, 256))
kept = None
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the cells of one notebook have printed, by name."""
    folder = tmp_path_factory.mktemp("notebook")
    with notebook(folder) as book:
        cells = {
            "begin": book.run(BEGIN),
            "x": book.run('x = watch("x", torch.ones(1000, 100))'),
            "shown": book.run('watch("shown", torch.ones(20000))'),
            "y": book.run('y = [watch(f"y{k}", torch.ones(5000)) for k in range(3)]\ny[0]'),
            "fails": book.run(FAILS),
            "told": book.run(REPORTED),
            "table": book.run("print(told)\ntold"),
        }
        cells["html"] = book.shown()["text/html"]
        cells |= {"ways": book.run("leakscope.holders(y[0])"), "svg": book.shown().get("image/svg+xml", "")}
        cells["picture"] = book.run("leakscope.draw(x)") + book.shown().get("image/svg+xml", "")
        cells |= {f"profiled {k}": book.run(PROFILED) + book.shown()["text/html"] for k in range(2)}
        for k in range(2):
            book.run("across = leakscope.Profiler(budget=1.0).start(); kept = []")
            book.run(ACROSS)
            cells[f"across {k}"] = book.run("print(across.stop())")
        cells |= _typed(book, json.loads(cells["told"])[1])
        cells |= _debugged(book, folder)
        book.save(folder / "cells.ipynb")
    return cells


def _typed(book: Notebook, commands: list[tuple[str, int]]) -> dict[str, str]:
    """What is alive after each of the commands, in the order told."""
    return {f"after {text}": _alive_after(book, text) for text, _ in commands}


def _alive_after(book: Notebook, text: str) -> str:
    # IPython lets go of the result of one cell when the next has run
    book.run(text)
    return book.run("print(json.dumps(watched))")


def _debugged(book: Notebook, folder: Path) -> dict[str, str]:
    """The same after `%debug`, which a file of pdb's own quits."""
    (folder / ".pdbrc").write_text("q\n")
    book.run("train()")
    book.run("%debug")
    reported = book.run(REPORTED)
    commands = [text for text, _ in json.loads(reported)[1]]
    last = [_alive_after(book, text) for text in commands][-1]
    return {"debugged": reported, "after debugged": last}


def test_the_error_is_the_one_that_was_asked_for(cells: dict[str, str]) -> None:
    assert "DefaultCPUAllocator" in cells["fails"]


def test_memory_is_named_by_variable_output_and_error(cells: dict[str, str]) -> None:
    reported, _, alive = json.loads(cells["told"])
    lines = {(line["name"], line["where"], line["kept"]): line["bytes"] for line in reported["lines"]}
    assert lines == {
        ("x", "In[2]:1", "program"): 400_000,
        ("activations in forward()", "In[5]:2", "error"): 120_000,
        ("Out[3], _3, __", "In[3]", "output"): 80_000,
        ("y", "In[4]:1", "program"): 60_000,
        ("batch in train()", "In[5]:5", "error"): 28_000,
    }
    assert reported["bytes"] == alive == sum(lines.values())
    assert reported["error"] == "RuntimeError"


def test_each_command_frees_what_is_told(cells: dict[str, str]) -> None:
    _, commands, alive = json.loads(cells["told"])
    for text, size in commands:
        left = json.loads(cells[f"after {text}"])
        assert alive - sum(left.values()) == size, text
        alive = sum(left.values())
    assert alive == 0
    assert [text for text, _ in commands][-2:] == ["del x", "del y"]


def test_debugger_is_let_go_of_too(cells: dict[str, str]) -> None:
    reported, commands, _ = json.loads(cells["debugged"])
    assert {line["name"] for line in reported["lines"]} >= {"activations in forward()", "batch in train()"}
    assert "get_ipython().InteractiveTB.pdb = None" in "\n".join(text for text, _ in commands)
    assert json.loads(cells["after debugged"]) == {}


def test_a_profiler_runs_again_in_the_same_cell_and_shows_lines_of_the_cell(cells: dict[str, str]) -> None:
    assert "In[10]:6" in cells["profiled 0"]
    assert "In[11]:6" in cells["profiled 1"]
    assert "history.append(net(torch.ones(256, 256)).sum())" in cells["profiled 1"]


def test_a_profiler_records_over_several_cells_again_and_again(cells: dict[str, str]) -> None:
    for k in range(2):
        assert "LEAKS" in cells[f"across {k}"]
        assert "`kept" in cells[f"across {k}"]


def test_it_is_shown_as_a_table_and_as_pictures(cells: dict[str, str]) -> None:
    assert "To free memory, run the lines you no longer need, in this order:" in cells["table"]
    assert cells["html"].count("<tr>") == 6
    assert "In[2]:1" in cells["html"]
    assert cells["svg"].startswith("<svg")
    assert "y" in cells["picture"]
    assert "<svg" in cells["picture"]
