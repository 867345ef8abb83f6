"""Files are classified as user or library code, and the lines that bind variables are found in user code."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from leakscope.process import user_code
from leakscope.process.user_code import adopt_script, attribute_line, is_users, local_line, short

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
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(TEXT)
    return str(path)


@pytest.mark.parametrize(
    ("scope", "name", "first", "last"),
    [
        ("", "state", 20, 20), ("outer", "state", 2, 2), ("outer.<locals>.inner", "state", 4, 4),
        ("other", "state", 18, 18), ("other", "batch", 17, 17), ("fill", "rows", 22, 22), ("fill", "batch", 24, 28),
        ("fill", "rest", 24, 24), ("fill", "state", 26, 26), ("retry", "error", 35, 36), ("retry", "found", 33, 33),
        ("retry", "right", 34, 34), ("", "outer", 1, 1), ("", "kept", 16, 16), ("", "missing", 0, 0),
    ],
)  # fmt: skip
def test_line_of_a_variable(script: str, scope: str, name: str, first: int, last: int) -> None:
    assert local_line(script, scope, name) == first
    assert local_line(script, scope, name, last=True) == last


def test_line_of_an_attribute(script: str) -> None:
    lines = {name: attribute_line(script, "Model", name) for name in ("hidden", "declared", "once", "other")}
    assert lines == {"hidden": 9, "declared": 13, "once": 12, "other": 0}
    assert attribute_line(script, "Model", "hidden", last=True) == 9


@pytest.mark.parametrize(
    ("module", "file", "library"),
    [
        ("pytest.conv_GCN_propagate", "pytest.conv_GCN_propagate_5cmue4ew.py", True),
        ("pytest.written.cab", "ab/cab.py", True),
        ("pytest.added", "pytest/added.py", False),
        ("pytest_of_mine.train", "train.v2.py", False),
        ("mine.train", "cache/train_5cmue4ew.py", False),
        ("__main__", "pytest.py", False),
        ("", "pytest.conv_GCN_propagate_5cmue4ew.py", False),
    ],
)
def test_a_file_that_a_library_wrote_is_the_librarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, file: str, library: bool
) -> None:
    user_code.modules_by_file.cache_clear()
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    if module:
        made = ModuleType(module)
        made.__file__ = str(path)
        monkeypatch.setitem(sys.modules, module, made)
    assert short(str(path)) == (f"<pytest/{path.name}>" if library else path.name)
    assert is_users(str(path)) != library


def test_files_of_inductor_are_torchs_and_modules_are_searched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(tempfile.gettempdir())
    assert short(str(folder / "torchinductor_me" / "ab" / "cab.py")) == "<torch/cab.py>"
    assert is_users(str(folder / "mine" / "torchinductor_tests" / "train.py"))
    user_code.modules_by_file.cache_clear()
    is_users(str(tmp_path / "first.py"))
    searched: list[object] = []
    monkeypatch.setattr(user_code, "_file_of", lambda module: searched.append(module) or "")
    assert all(is_users(str(tmp_path / f"{number}.py")) for number in range(9))
    assert len(searched) <= len(sys.modules)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a file among the installed packages; gives its path."""
    monkeypatch.setattr(user_code, "_ADOPTED", [])
    monkeypatch.chdir(tmp_path)

    def write(name: str) -> str:
        path = tmp_path / "job" / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        is_users.cache_clear()
        return str(path)

    yield write
    is_users.cache_clear()
    user_code._short.cache_clear()


@pytest.mark.parametrize(
    ("file", "module", "beside"),
    [
        ("recipes/train.py", None, True),
        ("job/tools/train.py", "job.tools.train", True),
        ("job/tools/__main__.py", "job.tools", True),
        ("train.py", "", False),
        ("pytest/__main__.py", "pytest", False),
        ("torch/utils/train.py", "torch.utils.train", False),
    ],
)
def test_a_script_that_is_run_from_among_the_libraries_is_the_users_with_its_package(
    file: str, module: str | None, beside: bool, installed: Callable[[str], str]
) -> None:
    script, package = installed(file), file.partition("/")[0].removesuffix(".py")
    others = [installed(f"{package}/parts/model.py"), installed("library/__init__.py")]
    assert short(script).startswith("<")
    adopt_script(script) if module is None else adopt_script(script, module)
    assert is_users(script) and [is_users(path) for path in others] == [beside, False]
