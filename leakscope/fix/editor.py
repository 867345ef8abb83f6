"""Edits of one source file at nodes of Python's `ast`, which keep comments and layout."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

_LINE_END = re.compile(r"\r\n|\r|\n")  # as in Python's tokenizer; str.splitlines also splits at form feeds
_Place = tuple[int, int]
"""Line, from 1, and column in characters, from 0."""
_Statement = cst.BaseSmallStatement | cst.BaseCompoundStatement
_Line = cst.SimpleStatementLine | cst.BaseCompoundStatement
_IMPORTS = (ast.Import, ast.ImportFrom)


class CannotEdit(Exception):
    """A node is not where LibCST sees one, or its statement cannot be edited in this way."""


@dataclass(frozen=True, eq=False)
class _Tree:
    """A parsed text, which several editors share: its nodes are immutable."""

    wrapper: MetadataWrapper
    lines: Sequence[str]

    @property
    def module(self) -> cst.Module:
        """The root."""
        return self.wrapper.module

    @cached_property
    def places(self) -> Mapping[cst.CSTNode, CodeRange]:
        """Each node's range, without its parentheses and decorators."""
        return self.wrapper.resolve(PositionProvider)

    @cached_property
    def _parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        """Each node's parent. LibCST's own provider visits every node with Python callbacks, which takes longer."""
        found: dict[cst.CSTNode, cst.CSTNode] = {}
        waiting: list[cst.CSTNode] = [self.module]
        while waiting:
            node = waiting.pop()
            for name in node.__dataclass_fields__:
                value = getattr(node, name)
                for child in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(child, cst.CSTNode) and not isinstance(child, cst.BaseParenthesizableWhitespace):
                        found[child] = node
                        waiting.append(child)
        return found

    def around(self, nodes: Iterable[cst.CSTNode]) -> set[cst.CSTNode]:
        """Some nodes and all that enclose one of them."""
        found: set[cst.CSTNode] = set()
        for node in nodes:
            above: cst.CSTNode | None = node
            while above is not None and above not in found:
                found.add(above)
                above = self._parents.get(above)
        return {*found, self.module}

    @cached_property
    def blocks(self) -> dict[cst.CSTNode, tuple[cst.CSTNode, int]]:
        """Each statement, mapped to its block and its position in it."""
        found: dict[cst.CSTNode, tuple[cst.CSTNode, int]] = {}
        for block in self.places:
            if isinstance(block, (cst.Module, cst.IndentedBlock, cst.SimpleStatementSuite)):
                members = block.body if isinstance(block, cst.SimpleStatementSuite) else _members(block.body)
                for number, small in enumerate(members):
                    found[small] = block, number
        return found

    @cached_property
    def statements(self) -> dict[_Place, _Statement]:
        """Each statement by its start."""
        kinds = (cst.BaseSmallStatement, cst.BaseCompoundStatement)
        return {(at.start.line, at.start.column): node for node, at in self.places.items() if isinstance(node, kinds)}

    @cached_property
    def expressions(self) -> dict[tuple[_Place, _Place], list[cst.BaseExpression]]:
        """Expressions by start and end."""
        found: dict[tuple[_Place, _Place], list[cst.BaseExpression]] = {}
        for node, at in self.places.items():
            if not isinstance(node, cst.BaseExpression):
                continue
            found.setdefault(_ends(at, at), []).append(node)
            lpar, rpar = _parens(node)
            if lpar and isinstance(node, (cst.Tuple, cst.GeneratorExp)):  # ast counts their own parentheses
                found.setdefault(_ends(self.places[lpar[-1]], self.places[rpar[0]]), []).append(node)
        return found

    def place(self, line: int, column: int) -> _Place:
        """The place of a column that counts UTF-8 bytes, as those of ast do."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return line, len(text.encode()[:column].decode(errors="replace"))


@lru_cache(maxsize=16)
def _tree_of(text: str) -> _Tree:
    return _Tree(MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True), _LINE_END.split(text))


@dataclass
class _Edits:
    """What is done to one statement."""

    before: list[cst.BaseStatement] = field(default_factory=list)
    after: list[cst.BaseStatement] = field(default_factory=list)
    instead: list[cst.BaseStatement] | None = None


@dataclass(frozen=True)
class _Wrap:
    first: cst.CSTNode
    last: cst.CSTNode
    head: cst.BaseCompoundStatement


class SourceEditor:
    r"""Edits of one file, which are applied together.

    Nodes are those of `ast.parse` of the same text, or of a `ParsedFile` of it. Code is given without indentation, its
    blocks indented by four spaces; it is written with the indentation of the file.

    Example:
        >>> text = "for x in xs:\n    rows.append(x)  # for the report\n"
        >>> append = ast.parse(text).body[0].body[0]
        >>> editor = SourceEditor("train.py", text)
        >>> editor.replace(append.value.args[0], "x.detach()")
        >>> editor.insert_after(append, "del x")
        >>> print(editor.text)
        for x in xs:
            rows.append(x.detach())  # for the report
            del x
        <BLANKLINE>

    """

    def __init__(self, name: str, text: str) -> None:
        """Begin without edits.

        Args:
            name: Name of the file, for messages.
            text: Its text, with any line ends.

        Raises:
            CannotEdit: LibCST cannot parse it.

        """
        self.name = name
        self._text = text
        try:
            self._tree = _tree_of(text)
        except (cst.ParserSyntaxError, RecursionError, ValueError) as error:
            raise CannotEdit(f"LibCST cannot parse {name}: {error}") from error
        self._module = self._tree.module
        self._replaced: dict[cst.CSTNode, cst.BaseExpression] = {}
        self._edits: dict[cst.CSTNode, _Edits] = {}
        self._wraps: list[_Wrap] = []
        self._appended: dict[cst.CSTNode, list[cst.BaseStatement]] = {}
        self._decorators: dict[cst.CSTNode, list[cst.Decorator]] = {}
        self._undecorated: set[cst.CSTNode] = set()
        self._imports: list[str] = []

    # -------------------------------------------------------------------------------------------------- operations

    def replace(self, expr: ast.expr, code: str) -> None:
        """Replace an expression; parentheses around it stay.

        Args:
            expr: The expression.
            code: Code of the new one, with the parentheses that it needs at its place.

        Raises:
            CannotEdit: The expression is not found, or part of another one that is replaced.

        """
        old = self._expression(expr)
        outer = _outer_parens(old, expr)
        at = self._tree.places[old]
        new = _parsed_expression(code, bracketed=outer is not None or at.start.line < at.end.line)
        if outer:
            lpar, rpar = _parens(new)
            if lpar and not isinstance(new, (cst.Tuple, cst.GeneratorExp)):
                lpar, rpar = lpar[1:], rpar[:-1]  # one pair is enough
            new = new.with_changes(lpar=[*outer[0], *lpar], rpar=[*rpar, *outer[1]])
        self._replaced[old] = new

    def insert_before(self, statement: ast.stmt, *code: str) -> None:
        """Insert statements before another one of the same block."""
        self._of(statement).before += _statements(code)

    def insert_after(self, statement: ast.stmt, *code: str) -> None:
        """Insert statements after another one of the same block."""
        self._of(statement).after[:0] = _statements(code)

    def replace_statement(self, statement: ast.stmt, *code: str) -> None:
        """Replace a statement; comments before it and behind it stay."""
        self._of(statement).instead = _statements(code)

    def remove(self, statement: ast.stmt) -> None:
        """Remove a statement, with the comment right above it and the one behind it."""
        self._of(statement).instead = []

    def wrap(self, first: ast.stmt, last: ast.stmt, head: str) -> None:
        """Put consecutive statements of one block into a block of their own.

        Args:
            first: The first of them.
            last: The last of them, may be the same.
            head: Head of the block, `with torch.no_grad():`, or a whole statement whose body they replace.

        Raises:
            CannotEdit: They are not found, or not in one block in this order.

        """
        ends = [self._statement(first), self._statement(last)]
        places = [self._tree.blocks.get(end) for end in ends]
        if places[0] is None or places[1] is None or places[0][0] is not places[1][0] or places[0][1] > places[1][1]:
            raise CannotEdit(f"{self.name}:{first.lineno} and {self.name}:{last.lineno} are not in order in one block")
        block = _statements([f"{head}\n    pass" if head.endswith(":") else head])[0]
        if not isinstance(block, cst.BaseCompoundStatement):
            raise CannotEdit(f"{head!r} has no block")
        self._wraps.append(_Wrap(ends[0], ends[1], block))

    def append_to_body(self, compound: ast.stmt, *code: str) -> None:
        """Insert statements at the end of the body of a loop, function, class, `with`, `if` or `try`."""
        found = self._statement(compound)
        body = getattr(found, "body", None)
        if not isinstance(body, (cst.IndentedBlock, cst.SimpleStatementSuite)):
            raise CannotEdit(f"{self.name}:{compound.lineno} has no body")
        self._appended.setdefault(body, []).extend(_statements(code))

    def decorate(self, function: ast.stmt, code: str) -> None:
        """Add a decorator, above the present ones.

        Args:
            function: A function or class.
            code: The decorator without `@`: `torch.no_grad()`.

        Raises:
            CannotEdit: It is not found, or cannot be decorated.

        """
        found = self._statement(function)
        if not isinstance(found, (cst.FunctionDef, cst.ClassDef)):
            raise CannotEdit(f"{self.name}:{function.lineno} cannot be decorated")
        self._decorators.setdefault(found, []).append(cst.Decorator(_parsed_expression(code)))

    def undecorate(self, function: ast.stmt, number: int) -> None:
        """Remove a decorator of a function or class, by its number from 0."""
        found = self._statement(function)
        if not isinstance(found, (cst.FunctionDef, cst.ClassDef)) or number >= len(found.decorators):
            raise CannotEdit(f"{self.name}:{function.lineno} has no decorator {number}")
        self._undecorated.add(found.decorators[number])
        self._decorators.setdefault(found, [])

    def add_import(self, code: str) -> None:
        """Add an import at the top of the file, unless it is there: sorted into its group, otherwise after the last."""
        if code not in self._imports:
            self._imports.append(code)

    def source_of(self, node: ast.expr | ast.stmt) -> str:
        """The code of a node, without indentation and without comments above or behind it."""
        if isinstance(node, ast.expr):
            expr = self._expression(node)
            outer = _outer_parens(expr, node)
            if outer is None:
                return self._module.code_for_node(expr)
            lpar, rpar = _parens(expr)
            own = {"lpar": lpar[len(outer[0]) :], "rpar": rpar[: len(rpar) - len(outer[1])]}
            return self._module.code_for_node(expr.with_changes(**own))
        found = self._statement(node)
        if isinstance(found, cst.BaseCompoundStatement):
            return self._module.code_for_node(_with_leading(found, ())).rstrip("\r\n")
        return self._module.code_for_node(found.with_changes(semicolon=cst.MaybeSentinel.DEFAULT))

    @property
    def text(self) -> str:
        """The text with all edits.

        Raises:
            CannotEdit: They cannot be combined, or do not give Python.

        """
        if not (self._replaced or self._edits or self._wraps or self._appended or self._decorators or self._imports):
            return self._text
        writer = _Writer(self)
        try:
            edited = self._module.visit(writer)
            assert isinstance(edited, cst.Module)
            for code in self._imports:
                edited = _with_import(edited, code)
            text = edited.code
            ast.parse(text)
        except (cst.CSTValidationError, SyntaxError, ValueError, TypeError, RecursionError) as error:
            raise CannotEdit(f"the edits of {self.name} do not give Python: {error}") from error
        if any(node not in writer.replaced for node in self._replaced):
            raise CannotEdit(f"an edit of {self.name} is inside another one")
        return text

    # ------------------------------------------------------------------------------------------------------ places

    def _expression(self, expr: ast.expr) -> cst.BaseExpression:
        if not hasattr(expr, "lineno"):
            raise CannotEdit(f"{ast.unparse(expr)} is not of {self.name}")
        start = self._tree.place(expr.lineno, expr.col_offset)
        end = self._tree.place(expr.end_lineno or expr.lineno, expr.end_col_offset or 0)
        for found in self._tree.expressions.get((start, end), ()):
            if self._is_same(found, expr):
                return found
        inside = self._in_format(expr) if sys.version_info < (3, 12) else None
        if inside is not None:
            return inside
        raise CannotEdit(f"no expression is found at {self.name}:{expr.lineno}")

    def _in_format(self, expr: ast.expr) -> cst.BaseExpression | None:
        """An expression in an f-string, where the positions of Python 3.11 are wrong if it has several lines."""
        tree = ast.parse(self._text)
        for string in ast.walk(tree):
            if not isinstance(string, ast.JoinedStr):
                continue
            equal = [node for node in ast.walk(string) if isinstance(node, ast.expr) and _dump(node) == _dump(expr)]
            number = next((k for k, node in enumerate(equal) if _position(node) == _position(expr)), None)
            if number is None:
                continue
            start = self._tree.place(string.lineno, string.col_offset)
            end = self._tree.place(string.end_lineno or 0, string.end_col_offset or 0)
            whole = self._tree.expressions.get((start, end), ())
            alike = [node for one in whole[:1] for node in _breadth_first(one) if self._is_same(node, expr)]
            return alike[number] if len(alike) == len(equal) else None  # type: ignore[return-value]
        return None

    def _is_same(self, found: cst.CSTNode, expr: ast.expr) -> bool:
        if not isinstance(found, cst.BaseExpression):
            return False
        code = self._module.code_for_node(found)
        try:
            return _dump(ast.parse(f"({code}\n)", mode="eval").body) == _dump(expr)
        except (SyntaxError, ValueError):
            return False

    def _statement(self, statement: ast.stmt) -> _Statement:
        found = self._tree.statements.get(self._tree.place(statement.lineno, statement.col_offset))
        compound = hasattr(statement, "body") or isinstance(statement, ast.Match)
        if found is None or isinstance(found, cst.BaseCompoundStatement) != compound:
            raise CannotEdit(f"no statement is found at {self.name}:{statement.lineno}")
        return found

    def _of(self, statement: ast.stmt) -> _Edits:
        found = self._statement(statement)
        if found not in self._tree.blocks:  # an `elif`
            raise CannotEdit(f"{self.name}:{statement.lineno} is not a statement of a block")
        return self._edits.setdefault(found, _Edits())


def _ends(first: CodeRange, last: CodeRange) -> tuple[_Place, _Place]:
    return (first.start.line, first.start.column), (last.end.line, last.end.column)


def _position(node: ast.expr) -> tuple[int, int, int | None, int | None]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _dump(node: ast.expr) -> str:
    return re.sub(r"ctx=(Load|Store|Del)\(\)", "", ast.dump(node))


def _breadth_first(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """In the order of `ast.walk`."""
    waiting: list[cst.CSTNode] = [node]
    while waiting:
        node = waiting.pop(0)
        yield node
        waiting += node.children


def _parens(node: cst.BaseExpression) -> tuple[Sequence[cst.LeftParen], Sequence[cst.RightParen]]:
    lpar, rpar = getattr(node, "lpar", ()), getattr(node, "rpar", ())
    return (lpar, rpar) if isinstance(lpar, Sequence) and isinstance(rpar, Sequence) else ((), ())


def _outer_parens(
    node: cst.BaseExpression, expr: ast.expr
) -> tuple[Sequence[cst.LeftParen], Sequence[cst.RightParen]] | None:
    """The parentheses around an expression that are not its own; None without any."""
    lpar, rpar = _parens(node)
    if isinstance(expr, ast.GeneratorExp) or (isinstance(expr, ast.Tuple) and lpar):
        lpar, rpar = lpar[:-1], rpar[1:]
    return (lpar, rpar) if lpar else None


def _parsed_expression(code: str, bracketed: bool = False) -> cst.BaseExpression:
    """Parse an expression; if it has several lines, it gets parentheses unless it is `bracketed` already."""
    try:
        return cst.parse_expression(code)
    except cst.ParserSyntaxError:
        pass
    try:
        new = cst.parse_expression(f"({code}\n)" if "\n" in code else f"({code})")
    except cst.ParserSyntaxError as error:
        raise CannotEdit(f"{code!r} is not an expression") from error
    lpar, rpar = _parens(new)
    drop = bracketed or "\n" not in code  # parse_expression does not take a bare `yield`
    return new.with_changes(lpar=lpar[1:], rpar=rpar[:-1]) if drop else new


def _statements(code: Iterable[str]) -> list[cst.BaseStatement]:
    """Statements of a snippet; the indentation of its blocks is the default, whatever that of the file is."""
    text = "\n".join(code)
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise CannotEdit(f"{text!r} is not Python") from error
    body: list[cst.BaseStatement] = [*module.body]
    if body and module.header:
        body[0] = _with_leading(body[0], (*module.header, *_leading(body[0])))
    return body


# ---------------------------------------------------------------------------------------------------------- writing


class _Writer(cst.CSTTransformer):
    """Applies the edits, innermost first."""

    def __init__(self, editor: SourceEditor) -> None:
        super().__init__()
        self._editor = editor
        self.replaced: set[cst.CSTNode] = set()
        wraps = [end for wrap in editor._wraps for end in (wrap.first, wrap.last)]
        edited = (editor._replaced, editor._edits, editor._appended, editor._decorators, wraps)
        self._around = editor._tree.around(node for nodes in edited for node in nodes)

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self._around

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        editor = self._editor
        edit = editor._edits.get(original_node)
        if original_node in editor._replaced or (edit is not None and edit.instead is not None):
            self.replaced -= set(_breadth_first(original_node))
        if original_node in editor._replaced:
            self.replaced.add(original_node)
            return editor._replaced[original_node]
        if isinstance(original_node, (cst.FunctionDef, cst.ClassDef)) and original_node in editor._decorators:
            assert isinstance(updated_node, (cst.FunctionDef, cst.ClassDef))
            pairs = zip(original_node.decorators, updated_node.decorators, strict=True)
            present = [new for old, new in pairs if old not in editor._undecorated]
            return updated_node.with_changes(decorators=[*editor._decorators[original_node], *present])
        if isinstance(original_node, (cst.Module, cst.IndentedBlock, cst.SimpleStatementSuite)):
            return self._block(original_node, updated_node)
        return updated_node

    def _block(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        edits, appended = self._editor._edits, self._editor._appended.get(original, [])
        members = _members(original.body)  # type: ignore[attr-defined]
        ends = {end for wrap in self._editor._wraps for end in (wrap.first, wrap.last)}
        if not appended and not any(small in edits or small in ends for small in members):
            return updated
        if isinstance(original, cst.SimpleStatementSuite):
            assert isinstance(updated, cst.SimpleStatementSuite)
            line = cst.SimpleStatementLine(updated.body, trailing_whitespace=updated.trailing_whitespace)
            original_line = cst.SimpleStatementLine(original.body)
            body = [one for one in self._body([original_line], [line], ends) if not isinstance(one, _Removed)]
            return cst.IndentedBlock([*body, *appended] or [_pass()])
        assert isinstance(updated, (cst.Module, cst.IndentedBlock))
        body = self._body(original.body, updated.body, ends)  # type: ignore[attr-defined]
        kept = _kept_comments(body)
        body = [one for one in kept if not isinstance(one, _Removed)]
        left = [line for one in kept[len(body) :] if isinstance(one, _Removed) for line in one.leading]
        body += appended
        if isinstance(updated, cst.IndentedBlock):
            return updated.with_changes(body=body or [_pass()], footer=[*_without_first_blank(left), *updated.footer])
        return updated.with_changes(body=body, footer=[*left, *updated.footer])

    def _body(self, original: Sequence[cst.CSTNode], updated: Sequence[cst.BaseStatement], ends: set[cst.CSTNode]):  # type: ignore[no-untyped-def]
        edits = self._editor._edits
        found: list[tuple[cst.CSTNode | None, cst.BaseStatement | _Removed]] = []
        """Each statement, with the original one that it stands for; None for an inserted one."""
        for before, after in zip(original, updated, strict=True):
            smalls = _smalls(before)
            if not any(small in edits or small in ends for small in smalls):
                found += [(smalls[-1], after)]
                continue
            for small, line in zip(smalls, _split(after), strict=True):
                edit = edits.get(small, _Edits())
                found += _edited(small, line, edit)
        wraps = [
            wrap for wrap in self._editor._wraps if any(wrap.first is one for line in original for one in _smalls(line))
        ]
        places = {small: k for k, small in enumerate(_members(original))}
        for wrap in sorted(wraps, key=lambda wrap: places[wrap.last] - places[wrap.first]):  # the innermost first
            inside = {small for small, k in places.items() if places[wrap.first] <= k <= places[wrap.last]}
            numbers = [k for k, (small, _) in enumerate(found) if small in inside]
            first, last = numbers[0], numbers[-1]
            block = _wrapped([one for _, one in found[first : last + 1] if not isinstance(one, _Removed)], wrap.head)
            found[first : last + 1] = [(wrap.first, block)]
            for small in inside:
                places[small] = places[wrap.first]
        return [one for _, one in found]


@dataclass(frozen=True)
class _Removed:
    """The place of a removed statement."""

    leading: tuple[cst.EmptyLine, ...]
    """What was above it and stays."""


def _edited(
    small: cst.CSTNode, line: cst.BaseStatement, edit: _Edits
) -> list[tuple[cst.CSTNode | None, cst.BaseStatement | _Removed]]:
    """One statement with what is inserted around it."""
    self_: list[cst.BaseStatement | _Removed] = [line]
    if edit.instead is not None:
        own = list(edit.instead)
        if own:
            own[0] = _with_leading(own[0], (*_leading(line), *_leading(own[0])))
            own[-1] = _with_comment_of(line, own[-1])
            self_ = [*own]
        else:
            self_ = [_Removed(_above_comment(_leading(line))[0])]
    before = list(edit.before)
    if before and isinstance(self_[0], _Removed):
        before[0] = _with_leading(before[0], (*self_[0].leading, *_leading(before[0])))
        self_ = [_Removed(())]
    elif before and not isinstance(self_[0], _Removed):
        above, own_comment = _above_comment(_leading(self_[0]))
        before[0] = _with_leading(before[0], (*above, *_leading(before[0])))
        self_[0] = _with_leading(self_[0], own_comment)
    return [
        *((None, one) for one in before),
        *((small, one) for one in self_),
        *((None, one) for one in edit.after),
    ]


def _with_comment_of(old: cst.BaseStatement, new: cst.BaseStatement) -> cst.BaseStatement:
    """A line with the comment behind another one, unless it has its own."""
    if not isinstance(old, cst.SimpleStatementLine) or not isinstance(new, cst.SimpleStatementLine):
        return new
    return new if new.trailing_whitespace.comment else new.with_changes(trailing_whitespace=old.trailing_whitespace)


def _kept_comments(body: Sequence[cst.BaseStatement | _Removed]) -> list[cst.BaseStatement | _Removed]:
    """A block in which what was above removed statements is above the next one; at its end if there is none."""
    found: list[cst.BaseStatement | _Removed] = []
    waiting: list[cst.EmptyLine] = []
    for one in body:
        if isinstance(one, _Removed):
            waiting += one.leading
        elif waiting:
            own = _leading(one)
            if own and own[0].comment is None and waiting[-1].comment is None:
                own = own[1:]  # one blank line is enough
            found.append(_with_leading(one, (*waiting, *own)))
            waiting = []
        else:
            found.append(one)
    return [*found, _Removed(tuple(waiting))] if waiting else found


def _without_first_blank(lines: Sequence[cst.EmptyLine]) -> Sequence[cst.EmptyLine]:
    return lines if any(line.comment for line in lines) else ()


def _members(lines: Iterable[cst.CSTNode]) -> list[cst.CSTNode]:
    """The statements of some lines."""
    return [small for line in lines for small in _smalls(line)]


def _smalls(line: cst.CSTNode) -> list[cst.CSTNode]:
    """The statements of a line, or the one that has a block of its own."""
    if isinstance(line, cst.SimpleStatementLine):
        return list(line.body)
    return [line]


def _split(line: cst.BaseStatement) -> list[cst.BaseStatement]:
    """Each statement of a line on its own."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) == 1:
        return [line]
    bare = [small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for small in line.body]
    lines = [cst.SimpleStatementLine([small]) for small in bare]
    lines[0] = lines[0].with_changes(leading_lines=line.leading_lines)
    lines[-1] = lines[-1].with_changes(trailing_whitespace=line.trailing_whitespace)
    return [*lines]


def _leading(line: cst.BaseStatement) -> tuple[cst.EmptyLine, ...]:
    return tuple(getattr(line, "leading_lines", ()))


def _with_leading(line: cst.BaseStatement, leading: Sequence[cst.EmptyLine]):  # type: ignore[no-untyped-def]
    return line.with_changes(leading_lines=list(leading))


def _above_comment(leading: Sequence[cst.EmptyLine]) -> tuple[tuple[cst.EmptyLine, ...], tuple[cst.EmptyLine, ...]]:
    """Lines above a statement: those up to the last blank one, and the comment right above it."""
    first = next((k + 1 for k in reversed(range(len(leading))) if leading[k].comment is None), 0)
    return tuple(leading[:first]), tuple(leading[first:])


def _wrapped(body: Sequence[cst.BaseStatement], head: cst.BaseCompoundStatement) -> cst.BaseCompoundStatement:
    if not body:
        return head
    above, *rest = body
    block = cst.IndentedBlock([_with_leading(above, ()), *rest])
    return head.with_changes(leading_lines=list(_leading(above)), body=block)


def _pass() -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([cst.Pass()])


# ---------------------------------------------------------------------------------------------------------- imports


def _with_import(module: cst.Module, code: str) -> cst.Module:
    """A module with one more import at its top."""
    tree = ast.parse(module.code)
    new = ast.parse(code).body[0]
    if any(_gives(statement, new) for statement in tree.body):
        return module
    (line,) = _statements([code])
    body: list[cst.BaseStatement] = [*module.body]
    heads = [_import_of(statement) for statement in body]
    section = next((k for k, one in enumerate(body) if isinstance(one, (cst.FunctionDef, cst.ClassDef))), len(body))
    imports = [k for k in range(section) if heads[k] is not None and heads[k] != "__future__"]
    own = _import_of(line) or ""
    after = next(
        (k for k in reversed(imports) if _group(heads[k]) == _group(own) and _comes_before(body[k], line)), None
    )
    same = [k for k in imports if _group(heads[k]) == _group(own)]
    if after is not None:
        at = after + 1
    elif same:
        at = same[0]
    elif imports and _group(own) < _group(heads[imports[0]]):
        at = imports[0]
    elif imports:
        at = imports[-1] + 1
    else:
        at = _after_docstring(body, heads)
    return _inserted(module, body, at, line, same, imports)


def _inserted(
    module: cst.Module,
    body: list[cst.BaseStatement],
    at: int,
    line: cst.BaseStatement,
    same: list[int],
    imports: list[int],
) -> cst.Module:
    blank = cst.EmptyLine(indent=False)
    if not same and imports and at == imports[0]:  # a group of its own, above the others
        line = _with_leading(line, _leading(body[at]))
        body[at] = _with_leading(body[at], [blank])
    elif same and at == same[0]:
        line = _with_leading(line, _leading(body[at]))
        body[at] = _with_leading(body[at], ())
    elif not same:
        line = _with_leading(line, [blank] if at else ())
        if at < len(body) and not _leading(body[at]):
            body[at] = _with_leading(body[at], [blank])
    return module.with_changes(
        body=[*body[:at], line, *body[at:]], has_trailing_newline=module.has_trailing_newline or not body
    )


def _gives(statement: ast.stmt, new: ast.stmt) -> bool:
    """Whether an import already has all names of another one."""
    if type(statement) is not type(new) or not isinstance(statement, _IMPORTS) or not isinstance(new, _IMPORTS):
        return False
    if getattr(statement, "module", None) != getattr(new, "module", None):
        return False
    names = {(alias.name, alias.asname) for alias in statement.names}
    return all((alias.name, alias.asname) in names for alias in new.names)


def _import_of(line: cst.CSTNode) -> str | None:
    """The imported module of a line that is one import, "" for one of its own package; None for another line."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    small = line.body[0]
    if isinstance(small, cst.Import):
        return _dotted(small.names[0].name)
    if isinstance(small, cst.ImportFrom):
        return _dotted(small.module) if small.module is not None and not small.relative else ""
    return None


def _dotted(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def _group(module: str | None) -> int:
    """0 for the standard library, 1 for another package, 2 for a relative import."""
    top = (module or "").partition(".")[0]
    return 0 if top in sys.stdlib_module_names else 1 if top else 2


def _comes_before(line: cst.CSTNode, new: cst.CSTNode) -> bool:
    """Whether isort puts a line before another one of its group."""

    def key(one: cst.CSTNode) -> tuple[bool, str]:
        small = one.body[0] if isinstance(one, cst.SimpleStatementLine) else None
        return isinstance(small, cst.ImportFrom), (_import_of(one) or "").lower()

    return key(line) < key(new)


def _after_docstring(body: Sequence[cst.BaseStatement], heads: Sequence[str | None]) -> int:
    at = 0
    if body and isinstance(body[0], cst.SimpleStatementLine) and isinstance(body[0].body[0], cst.Expr):
        at = int(isinstance(body[0].body[0].value, (cst.SimpleString, cst.ConcatenatedString)))
    while at < len(body) and heads[at] == "__future__":
        at += 1
    return at
