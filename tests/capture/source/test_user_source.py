"""The lines that bind variables and attributes are found in user code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leakscope.process import user_code as source

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
        self.declared = None
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

def retry(rows):
    error: Exception
    error = None
    while (found := rows):
        with found as (left, right):
            error = left
        error = right
    never = None
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(TEXT)
    return str(path)


@pytest.mark.parametrize(
    ("scope", "name", "first", "last"),
    [
        ("", "state", 20, 20),
        ("outer", "state", 2, 2),
        ("outer.<locals>.inner", "state", 4, 4),
        ("other", "state", 18, 18),
        ("other", "batch", 17, 17),
        ("other", "kept", 16, 16),
        ("fill", "rows", 22, 22),
        ("fill", "batch", 24, 28),
        ("fill", "rest", 24, 24),
        ("fill", "state", 26, 26),
        ("retry", "error", 35, 36),
        ("retry", "found", 33, 33),
        ("retry", "right", 34, 34),
        ("retry", "never", 37, 37),
        ("", "outer", 1, 1),
        ("", "kept", 16, 16),
        ("", "missing", 0, 0),
    ],
)
def test_line_of_a_variable(script: str, scope: str, name: str, first: int, last: int) -> None:
    assert source.local_line(script, scope, name) == first
    assert source.local_line(script, scope, name, last=True) == last


def test_line_of_an_attribute(script: str) -> None:
    assert source.attribute_line(script, "Model", "hidden") == 9
    assert source.attribute_line(script, "Model", "hidden", last=True) == 9
    assert source.attribute_line(script, "Model", "declared") == 13
    assert source.attribute_line(script, "Model", "once", last=True) == 12
    assert source.attribute_line(script, "Model", "other") == 0


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a file among the installed packages; gives its path."""
    monkeypatch.setattr(source, "_ADOPTED", [])
    monkeypatch.chdir(tmp_path)

    def write(name: str) -> str:
        path = tmp_path / "job" / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        source.is_users.cache_clear()
        return str(path)

    yield write
    source.is_users.cache_clear()
    source._short.cache_clear()


def test_a_script_that_is_run_from_among_the_libraries_is_the_users(installed: Callable[[str], str]) -> None:
    script, beside, other = map(installed, ("recipes/train.py", "recipes/parts/model.py", "library/__init__.py"))
    assert source.short(script) == "<recipes/train.py>"
    source.adopt_script(script)
    assert [source.is_users(path) for path in (script, beside, other)] == [True, True, False]
    assert source.short(script) == "job/site-packages/recipes/train.py"


@pytest.mark.parametrize(
    ("file", "module", "beside"),
    [
        ("job/tools/train.py", "job.tools.train", [True, False]),
        ("job/tools/__main__.py", "job.tools", [True, False]),
        ("train.py", "", [False, False]),
        ("train.py", "train", [False, False]),
        ("pytest/__main__.py", "pytest", [False, False]),
        ("torch/utils/train.py", "torch.utils.train", [False, False]),
    ],
)
def test_of_a_module_that_is_run_its_package_is_the_users_and_no_other(
    file: str, module: str, beside: list[bool], installed: Callable[[str], str]
) -> None:
    script, package = installed(file), file.partition("/")[0].removesuffix(".py")
    others = [installed(f"{package}/model.py"), installed("library/__init__.py")]
    source.adopt_script(script, module)
    assert source.is_users(script)
    assert [source.is_users(path) for path in others] == beside
