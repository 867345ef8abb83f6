"""The documentation checker rejects wrong blocks and keeps correct ones unchanged."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from support.commands.preloaded import Copies
from support.pages import PAGES
from support.pages.blocks import blocks_of, commands_of, needs_of, with_texts
from support.pages.cells import cells_of
from support.pages.comparison import agree, updated
from support.pages.walk import Walk, patch
from support.snapshots.building import training

PAGE = """---
needs: lightning, torchmetrics
---
Text.

```python title="train.py"
a = 1
```

* An item:

    ```console
    $ cat train.py
    a = 1
    $ echo one \\
    >     two
    one two
    ```

```diff title="train.py"
-a = 1
+a = 2
```

```pycon
>>> 1 + 1
2
>>> {}["a"]
Traceback (most recent call last):
    ...
KeyError: 'a'
```

```console
$ cat train.py; false
a = 2
$ echo $?
1
```
"""


def test_blocks_have_lines_titles_and_no_indent() -> None:
    blocks = blocks_of(PAGE)
    assert [(block.line, block.language, block.title) for block in blocks] == [
        (7, "python", "train.py"),
        (13, "console", ""),
        (21, "diff", "train.py"),
        (26, "pycon", ""),
        (35, "console", ""),
    ]
    assert blocks[1].text.startswith("$ cat train.py\na = 1\n$ echo one \\\n>     two\n")
    assert [command.words for command in commands_of(blocks[1].text)] == ["cat train.py", "echo one \\\n    two"]
    assert with_texts(PAGE, [block.text for block in blocks]) == PAGE
    assert needs_of(PAGE) == ["lightning", "torchmetrics"] and needs_of("# Page") == []


def test_output_may_differ_in_what_no_two_runs_have_in_common() -> None:
    assert agree(["took 1.2 s, 7 looks", "...", "end"], ["took 3 s, 7 looks", "a", "b", "end"])
    assert not agree(["took 1.2 s, 7 looks"], ["took 1.2 s, 8 looks"])
    assert not agree(["one", "two"], ["one"])
    assert not agree([], ["one"])


@pytest.mark.parametrize(
    ("shown", "actual", "expected"),
    [
        (["1.0 s", "a"], ["2.0 s", "b"], ["1.0 s", "b"]),
        (["a", "...", "z"], ["b", "c", "d", "z"], ["b", "...", "z"]),
        (["a", "...", "line 7 of it", "...", "z"], ["a", "k", "line 8 of it", "l", "m"],
         ["a", "...", "line 8 of it", "...", "m"]),
    ],
)  # fmt: skip
def test_what_is_recorded_keeps_what_is_right_and_what_is_left_out(
    shown: list[str], actual: list[str], expected: list[str]
) -> None:
    assert updated(shown, actual) == expected


@pytest.mark.parametrize("diff", ["-b = 1\n+b = 2\n", " a = 1\n+b = 2\n"])
def test_a_change_is_made_to_lines_that_stand_there_once(diff: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a = 1\na = 1\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"train\.py has these lines [02] times"):
        patch(path, diff)


@pytest.mark.process
def test_a_page_is_walked_through_as_it_is_typed(tmp_path: Path, copies: Copies) -> None:
    (tmp_path / "job").mkdir()
    assert with_texts(PAGE, list(Walk(tmp_path / "job", copies).through(blocks_of(PAGE)))) == PAGE


@pytest.mark.process
@pytest.mark.parametrize(
    ("right", "wrong"), [("one two", "one three"), (">>> 1 + 1\n2", ">>> 1 + 1\n3"), ("\n1\n", "\n0\n")]
)
def test_a_wrong_page_is_told_what_happens(right: str, wrong: str, tmp_path: Path, copies: Copies) -> None:
    (tmp_path / "job").mkdir()
    page = PAGE.replace(right, wrong)
    assert page != PAGE and with_texts(page, list(Walk(tmp_path / "job", copies).through(blocks_of(page)))) == PAGE


@pytest.mark.process
def test_a_page_whose_python_fails_or_whose_block_would_not_run_is_refused(tmp_path: Path, copies: Copies) -> None:
    for name, page, expected in (
        ("raises", "```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("untraced", "```yaml\na: 1\n```\n", "never runs"),
        ("unnamed", "```\nls\n```\n", "never runs"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises(AssertionError, match=expected):
            list(Walk(tmp_path / name, copies).through(blocks_of(page)))


@pytest.mark.parametrize(("name", "keeps"), [("growing", True), ("steady", False)])
def test_a_snapshot_to_try_is_laid_out_as_torch_does_it(name: str, keeps: bool) -> None:
    path = PAGES / "how-to" / f"{name}.pickle"
    assert pickle.loads(path.read_bytes()) == training(12, keeps)


def test_cells_of_a_notebook_are_read_with_what_they_show() -> None:
    block = "In [9]: a = 1\n   ...: a + 1\n2\n\n2.5\n\nIn [10]: def f():\n    ...:     pass\n    ...:\n    ...: f()\n"
    first, second = cells_of(block)
    assert (first.source, first.output) == ("a = 1\na + 1", ("2", "", "2.5"))
    assert (second.source, second.output) == ("def f():\n    pass\n\nf()", ())
    with pytest.raises(AssertionError, match="cells begin with"):
        list(cells_of("a = 1\n"))
