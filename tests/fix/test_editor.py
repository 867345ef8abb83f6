"""Edits of source files: the result is Python, and all that is not edited stays as it is."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leakscope
from leakscope.fix.editor import CannotEdit, SourceEditor

MESSY = '''\
#!/usr/bin/env python
"""Doc."""

from __future__ import annotations

import os
import torch

# Losses, kept for the plot
losses = []; total = 0.0  # two on a line


@torch.no_grad()
def évaluer(modèle, données: list = []):
    """Doc,
    of two lines.
    """
    größe = "é"; losses.append((modèle(données) * größe))
    if größe: return losses[0]
    for x in données: total = x; print(total)
    else: pass
    text = f"{losses[-1]:.2f} {größe!r}"
    return (losses[0]
            + losses[1]  # the second
            ), text


class Model(torch.nn.Module):
    def forward(self, x):
        # a comment
        y = self.net(x)

        # kept apart

        # about the append
        self.outputs.append(y)  # behind
        return y

    async def send(self):
        async with self.lock as lock, self.other: await lock
        async for x in self.rows:
            yield x, (x, 1)
        else:
            with open("x") as f:
                query = """
    not
  indented"""
                # a footer

    # after


if losses:
    pass
elif total:
    print(max(x for x in losses), {**{}}, *[1])
else:
    try:
        del losses
    except* (ValueError, OSError) as e:
        raise e from None
    finally:
        x = y = z[1:2, None] = lambda a, /, b=2, *c: (yield)
while (n := total) > 1: break
'''
TABS = "def f(x):\n\tif x:\n\t\ty = (x +\n\t\t\t1)\n\t\treturn y\n\treturn 0\n"
CRLF = MESSY.replace("\n", "\r\n")
OWN = Path(leakscope.__file__).with_name("shield.py").read_text()
TEXTS = [MESSY, TABS]


def first(tree: ast.AST, kind: type[ast.AST], text: str = "") -> ast.AST:
    return next(n for n in ast.walk(tree) if isinstance(n, kind) and text in ast.unparse(n))


def expressions(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not isinstance(node, (ast.Starred, ast.FormattedValue, ast.JoinedStr)):
            yield node


def statements(tree: ast.AST) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, [])
            for statement in block if isinstance(block, list) else []:
                yield block, statement


def edited(text: str, edit: Callable[[SourceEditor, ast.Module], object]) -> str:
    editor = SourceEditor("train.py", text)
    edit(editor, ast.parse(text))
    return editor.text


def apart(nodes: list[ast.expr]) -> Iterator[list[ast.expr]]:
    """The expressions in groups of which none is inside another one."""
    while nodes:
        inside = {child for node in nodes for child in ast.walk(node) if child is not node}
        yield [node for node in nodes if node not in inside]
        nodes = [node for node in nodes if node in inside]


@pytest.mark.parametrize("text", [MESSY, TABS, CRLF, OWN])
def test_expressions_replaced_by_themselves_leave_the_text(text: str) -> None:
    everything, found = list(expressions(ast.parse(text))), 0
    for group in apart(everything):
        editor = SourceEditor("train.py", text)
        for node in group:
            try:
                editor.replace(node, editor.source_of(node))
            except CannotEdit:
                continue  # a slice of several parts, or a string without a place
            found += 1
        assert editor.text == text
    assert found > 0.95 * len(everything)


@pytest.mark.parametrize("text", TEXTS)
def test_each_expression_can_get_a_method_call(text: str) -> None:
    tree = ast.parse(text)
    patterns = {child for node in ast.walk(tree) if isinstance(node, ast.pattern) for child in ast.walk(node)}
    for group in apart([e for e in expressions(tree) if isinstance(getattr(e, "ctx", ast.Load()), ast.Load)]):
        editor, found = SourceEditor("train.py", text), 0
        for node in set(group) - patterns:
            try:
                editor.replace(node, f"({editor.source_of(node)}).new()")
            except CannotEdit:
                continue
            found += 1
        after = editor.text
        assert after.count(".new()") == found
        assert len(after.splitlines()) == len(text.splitlines())


@pytest.mark.parametrize("text", TEXTS)
def test_statements_are_inserted_before_and_after(text: str) -> None:
    for number, (_, statement) in enumerate(list(statements(ast.parse(text)))[:70]):
        editor = SourceEditor("train.py", text)
        try:
            editor.insert_before(statement, "BEFORE = 1")
        except CannotEdit:
            assert "elif" in text.splitlines()[statement.lineno - 1]
            continue
        if isinstance(statement, ast.ImportFrom):
            continue  # of __future__: nothing may be before it
        editor.insert_after(statement, "AFTER = 1", "if AFTER:\n    del AFTER")
        after = editor.text
        tree = ast.parse(text)
        block, same = list(statements(tree))[number]
        place = block.index(same)
        block[place + 1 : place + 1] = ast.parse("AFTER = 1\nif AFTER:\n    del AFTER").body
        block[place:place] = ast.parse("BEFORE = 1").body
        assert ast.dump(ast.parse(after)) == ast.dump(tree)
        assert after.count("#") == text.count("#")


@pytest.mark.parametrize("text", TEXTS)
def test_a_removed_statement_is_gone_and_the_others_stay(text: str) -> None:
    for number, (_, statement) in enumerate(list(statements(ast.parse(text)))[:70]):
        editor = SourceEditor("train.py", text)
        try:
            editor.remove(statement)
        except CannotEdit:
            continue
        tree = ast.parse(text)
        block, same = list(statements(tree))[number]
        block.remove(same)
        if not block and block is not tree.body:
            block.append(ast.Pass())
        assert ast.dump(ast.parse(editor.text)) == ast.dump(tree)


@pytest.mark.parametrize("text", TEXTS)
def test_wrapped_statements_are_the_same_ones_deeper(text: str) -> None:
    for number, (block, statement) in enumerate(list(statements(ast.parse(text)))[:70]):
        editor = SourceEditor("train.py", text)
        last = block[min(block.index(statement) + 1, len(block) - 1)]
        has_elif = "elif" in text.splitlines()[statement.lineno - 1]
        if has_elif or any("__future__" in ast.unparse(end) for end in (statement, last)):
            continue
        editor.wrap(statement, last, "with torch.no_grad():")
        tree = ast.parse(text)
        its, same = list(statements(tree))[number]
        place = its.index(same)
        head = ast.parse("with torch.no_grad():\n    pass").body[0]
        assert isinstance(head, ast.With)
        head.body = its[place : place + 2]
        its[place : place + 2] = [head]
        assert ast.dump(ast.parse(editor.text)) == ast.dump(tree)


def test_the_layout_of_an_edit() -> None:
    text = textwrap.dedent("""\
        for x in xs:
            # about a
            a = f(x)

            # about b
            b = g(
                a,  # first
            )
            c = 1; d = 2  # both
    """)

    def edit(editor: SourceEditor, tree: ast.Module) -> None:
        a, b, c, d = tree.body[0].body  # type: ignore[attr-defined]
        editor.remove(a)
        editor.wrap(b, c, "with torch.no_grad():")
        editor.replace(b.value, f"{editor.source_of(b.value)}.detach()")
        editor.insert_before(b, "new = 1")
        editor.replace_statement(d, "d = 3")
        editor.append_to_body(tree.body[0], "del d")

    assert edited(text, edit) == textwrap.dedent("""\
        for x in xs:

            new = 1
            # about b
            with torch.no_grad():
                b = g(
                    a,  # first
                ).detach()
                c = 1
            d = 3  # both
            del d
    """)


def test_one_liners_get_a_block_of_their_own() -> None:
    text = "if x: losses.append(x); y = 2  # why\n"
    after = edited(text, lambda editor, tree: editor.insert_after(tree.body[0].body[0], "del x"))  # type: ignore[attr-defined]
    assert after == "if x:\n    losses.append(x)\n    del x\n    y = 2  # why\n"
    assert edited(text, lambda editor, tree: editor.remove(tree.body[0].body[0])) == "if x:\n    y = 2  # why\n"  # type: ignore[attr-defined]


def test_tabs_and_line_ends_of_the_file_are_used() -> None:
    text = "def f(x):\r\n\treturn x\r\n"
    after = edited(text, lambda editor, tree: editor.insert_before(tree.body[0].body[0], "if x:\n    x = 1"))  # type: ignore[attr-defined]
    assert after == "def f(x):\r\n\tif x:\r\n\t\tx = 1\r\n\treturn x\r\n"


def test_a_decorated_function_keeps_its_decorators() -> None:
    text = "@a  # why\n# about\ndef f(x):\n    return x\n"
    after = edited(text, lambda editor, tree: editor.decorate(tree.body[0], "torch.no_grad()"))
    assert after == "@torch.no_grad()\n" + text
    assert edited(text, lambda editor, tree: editor.insert_before(tree.body[0], "y = 1")) == "y = 1\n" + text


@pytest.mark.parametrize(
    ("before", "code", "after"),
    [
        ("import torch\n\nx = 1\n", "import weakref", "import weakref\n\nimport torch\n\nx = 1\n"),
        ("import os\nimport torch\n", "import weakref", "import os\nimport weakref\nimport torch\n"),
        ("import os\nimport weakref\n", "import weakref", "import os\nimport weakref\n"),
        ("from a import b, c\n", "from a import c", "from a import b, c\n"),
        ('"""Doc."""\nx = 1\n', "import weakref", '"""Doc."""\n\nimport weakref\n\nx = 1\n'),
        ("from __future__ import annotations\n", "import gc", "from __future__ import annotations\n\nimport gc\n"),
        ("import sys\nimport re\nx = 1\n", "import math", "import math\nimport sys\nimport re\nx = 1\n"),
        ("import a\ndef f(): pass\nimport z\n", "import a.b", "import a\nimport a.b\ndef f(): pass\nimport z\n"),
        ("x = 1\n", "import gc", "import gc\n\nx = 1\n"),
        ("", "import gc", "import gc\n"),
    ],
)  # fmt: skip
def test_imports_are_sorted_into_the_first_ones(before: str, code: str, after: str) -> None:
    assert edited(before, lambda editor, tree: editor.add_import(code)) == after


def test_expressions_in_format_strings() -> None:
    text = 'x = f"""{a}\n{b} {a:.{b}f}"""\n'

    def edit(editor: SourceEditor, tree: ast.Module) -> None:
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "b"]
        for name in names:
            editor.replace(name, "b.item()")

    assert edited(text, edit) == 'x = f"""{a}\n{b.item()} {a:.{b.item()}f}"""\n'


def test_an_edit_inside_another_one_is_an_error() -> None:
    text = "x = f(a + b)\n"
    editor, tree = SourceEditor("train.py", text), ast.parse(text)
    editor.replace(first(tree, ast.BinOp), "c")  # type: ignore[arg-type]
    editor.replace(first(tree, ast.Name, "a"), "d")  # type: ignore[arg-type]
    with pytest.raises(CannotEdit):
        _ = editor.text
    editor = SourceEditor("train.py", text)
    editor.remove(tree.body[0])
    editor.replace(first(tree, ast.Name, "a"), "d")  # type: ignore[arg-type]
    with pytest.raises(CannotEdit):
        _ = editor.text


def test_nodes_of_another_text_are_an_error() -> None:
    editor = SourceEditor("train.py", "x = 1\n")
    other = ast.parse("\n\ny = f(2)")
    with pytest.raises(CannotEdit):
        editor.replace(other.body[0].value, "3")  # type: ignore[attr-defined]
    with pytest.raises(CannotEdit):
        editor.remove(other.body[0])
    with pytest.raises(CannotEdit):
        SourceEditor("train.py", "x = (")
