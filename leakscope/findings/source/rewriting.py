"""How do lines of the source look with one expression in them written otherwise, or with a line more?"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping

from leakscope.findings.model import Suggestion
from leakscope.findings.source.parsed import ParsedFile

_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.List, ast.Tuple, ast.Dict)
"""Expressions to which a method can be written without brackets."""


_MOST_LINES = 12
"""Lines of one edit, chosen: more would be a rewriting of the program."""


def with_method(parsed: ParsedFile, value: ast.expr, method: str) -> Suggestion | None:
    """The line with `.detach()` or the like behind one of its expressions; the last line of one that has several."""
    text, end = _text(parsed, value), value.end_lineno
    if text is None:
        if not isinstance(value, (ast.Call, ast.Subscript)) or end is None or end > len(parsed.lines):
            return None
        line = parsed.lines[end - 1].encode()
        after = line[: value.end_col_offset] + f".{method}()".encode() + line[value.end_col_offset :]
        return _suggestion(parsed, end, after.decode(errors="replace").strip())
    bare = isinstance(value, _ATOMS) and not (isinstance(value, ast.Tuple) and not text.startswith("("))
    return with_text(parsed, value, f"{text if bare else f'({text})'}.{method}()")


def with_text(parsed: ParsedFile, value: ast.expr | ast.stmt, new: str) -> Suggestion | None:
    """The line with other text for one of its expressions; None where that does not stand on one line."""
    if _text(parsed, value) is None or value.end_col_offset is None:
        return None
    line = _line(parsed, value).encode()  # offsets of ast count bytes of UTF-8
    after = line[: value.col_offset] + new.encode() + line[value.end_col_offset :]
    return _suggestion(parsed, value.lineno, after.decode(errors="replace").strip())


def with_texts(parsed: ParsedFile, texts: Mapping[ast.AST, str]) -> Suggestion | None:
    """The lines from the first of some nodes to the last, with other text for each; None where they are too far apart
    or one does not stand on one line.
    """
    nodes = sorted(texts, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
    first, last = (int(getattr(node, "lineno", 0)) for node in (nodes[0], nodes[-1]))
    if last - first >= _MOST_LINES or any(
        getattr(node, "end_lineno", 0) != getattr(node, "lineno", 0) for node in nodes
    ):
        return None
    lines = [line.encode() for line in parsed.lines[first - 1 : last]]
    before = textwrap.dedent("\n".join(parsed.lines[first - 1 : last]))
    for node in reversed(nodes):
        place, start, end = (getattr(node, name) for name in ("lineno", "col_offset", "end_col_offset"))
        line = lines[place - first]
        lines[place - first] = line[:start] + texts[node].encode() + line[end:]
    after = textwrap.dedent("\n".join(line.decode(errors="replace") for line in lines))
    return Suggestion(f"{parsed.name}:{first}", before, after)


def with_lines_after(parsed: ParsedFile, node: ast.AST, prefix: str, *more: str) -> Suggestion | None:
    """The line of a statement that has it for itself, with `prefix` before it and further lines behind."""
    start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
    if start != end or not 0 < start <= len(parsed.lines):
        return None
    line = parsed.lines[start - 1]
    if line.encode()[: getattr(node, "col_offset", 0)].strip():
        return None
    return _suggestion(parsed, start, "\n".join((prefix + line.strip(), *more)))


def with_lines_before(parsed: ParsedFile, statement: ast.stmt, *more: str) -> Suggestion | None:
    """The first line of a statement with further lines before it; None where another statement begins that line."""
    line = parsed.lines[statement.lineno - 1]
    if line.encode()[: statement.col_offset].strip():
        return None
    return _suggestion(parsed, statement.lineno, "\n".join((*more, line.strip())))


def with_lines_behind(parsed: ParsedFile, statement: ast.stmt, *more: str) -> Suggestion | None:
    """The last lines of a statement with further lines behind them, those of its block; None where the line is that of
    a block's head as well.
    """
    above = next(parsed.above(statement), parsed.module.node)
    same_line = getattr(above, "lineno", 0) == statement.lineno
    block = [s for name in ("body", "orelse", "finalbody") for s in getattr(above, name, ()) or ()]
    last, blocks = statement, block if statement in block else []
    while after := next((s for s in blocks if s.lineno == last.end_lineno and s.col_offset > last.col_offset), None):
        last = after
    first = next((s for s in blocks if s.lineno == statement.lineno), statement)
    return None if same_line else with_lines_around(parsed, first, last, "", *more)


def with_lines_inside(parsed: ParsedFile, statement: ast.stmt, head: str) -> Suggestion | None:
    """The lines of a statement, one level deeper, behind the head of a block."""
    edit = with_lines_around(parsed, statement, statement, "")
    return edit and Suggestion(edit.where, edit.before, f"{head}\n{textwrap.indent(edit.before, '    ')}")


def with_lines_around(
    parsed: ParsedFile, first: ast.stmt, last: ast.stmt, prefix: str, *more: str
) -> Suggestion | None:
    """The lines of some statements, with `prefix` before the first and further lines behind the last."""
    end = last.end_lineno or last.lineno
    if end > len(parsed.lines) or end - first.lineno >= _MOST_LINES:
        return None
    if parsed.lines[first.lineno - 1].encode()[: first.col_offset].strip():
        return None
    before = textwrap.dedent("\n".join(parsed.lines[first.lineno - 1 : end]))
    return Suggestion(f"{parsed.name}:{first.lineno}", before, "\n".join((prefix + before, *more)))


def without(parsed: ParsedFile, statement: ast.stmt, rest: str = "") -> Suggestion | None:
    """The lines of a statement without it, or with what is left of it: `pass` where its block has no other; None where
    it shares its lines with another one and does not stand on one line.
    """
    above = next(parsed.above(statement), parsed.module.node)
    fields = (getattr(above, name, None) for name in ("body", "orelse", "finalbody"))
    block = next((block for block in fields if isinstance(block, list) and statement in block), [])
    rest = rest or ("pass" if len(block) <= 1 else "")
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    neighbours = [s for s in block if s is not statement and s.lineno <= last and (s.end_lineno or 0) >= first]
    line = parsed.lines[first - 1].encode()
    starts, ends = not line[: statement.col_offset].strip(), statement.end_col_offset or 0
    if not neighbours and starts and last - first < _MOST_LINES:
        before = textwrap.dedent("\n".join(parsed.lines[first - 1 : last])).strip()
        comment = parsed.lines[last - 1].encode()[ends:].decode(errors="replace") if rest not in ("", "pass") else ""
        return Suggestion(f"{parsed.name}:{first}", before, (rest + comment).rstrip())
    if first != last:
        return None
    if rest or not neighbours:
        return with_text(parsed, statement, rest or "pass")
    after, at = line[ends:], line[: statement.col_offset].rstrip()
    if after.lstrip().startswith(b";"):
        text = line[: statement.col_offset] + after.lstrip()[1:].lstrip()
    else:
        text = at.removesuffix(b";") + after
    return _suggestion(parsed, first, text.decode(errors="replace").strip())


def text_of(parsed: ParsedFile, value: ast.expr) -> str:
    """An expression as it is written, "" where it does not stand on one line."""
    return _text(parsed, value) or ""


def _suggestion(parsed: ParsedFile, number: int, after: str) -> Suggestion:
    return Suggestion(f"{parsed.name}:{number}", parsed.lines[number - 1].strip(), after)


def _text(parsed: ParsedFile, value: ast.expr | ast.stmt) -> str | None:
    if value.lineno != value.end_lineno or not 0 < value.lineno <= len(parsed.lines):
        return None
    return _line(parsed, value).encode()[value.col_offset : value.end_col_offset].decode(errors="replace")


def _line(parsed: ParsedFile, value: ast.expr | ast.stmt) -> str:
    return parsed.lines[value.lineno - 1]
