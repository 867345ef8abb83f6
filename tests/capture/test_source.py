"""Which line binds a name: the first for what is filled later, the last for what is bound anew?"""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.capture import source

TEXT = """\
def outer():
    state = 1
    def inner():
        state = 2
    return inner

class Model:
    def forward(self, x):
        self.hidden = x
    def __init__(self):
        self.hidden = None
        self.once = []

state = None
def other(batch):
    kept = batch
    for batch in range(3):
        state = batch
for _ in range(3):
    state = outer()

def fill(rows):
    rows[0] = rows
    batch, (rows.grad, *rest) = rows
    state.grad = rows
    state += [rows]
    for rows[1] in rest:
        batch = rows
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(TEXT)
    return str(path)


@pytest.mark.parametrize(
    ("scope", "name", "first", "last"),
    [
        ("", "state", 14, 20),
        ("outer", "state", 2, 2),
        ("outer.<locals>.inner", "state", 4, 4),
        ("other", "state", 18, 18),
        ("other", "batch", 17, 17),
        ("other", "kept", 16, 16),
        ("fill", "rows", 22, 22),
        ("fill", "batch", 24, 28),
        ("fill", "rest", 24, 24),
        ("fill", "state", 26, 26),
        ("", "outer", 1, 1),
        ("", "kept", 16, 16),
        ("", "missing", 0, 0),
    ],
)
def test_line_of_a_variable(script: str, scope: str, name: str, first: int, last: int) -> None:
    assert source.local_line(script, scope, name) == first
    assert source.local_line(script, scope, name, last=True) == last


def test_line_of_an_attribute(script: str) -> None:
    assert source.attribute_line(script, "Model", "hidden") == 11
    assert source.attribute_line(script, "Model", "hidden", last=True) == 9
    assert source.attribute_line(script, "Model", "once", last=True) == 12
    assert source.attribute_line(script, "Model", "other") == 0
