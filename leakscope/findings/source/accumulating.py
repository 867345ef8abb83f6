"""Variables that the source makes from their own previous value: `seen = torch.cat([seen, x])`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

_JOINS = frozenset(
    (
        "cat",
        "concat",
        "concatenate",
        "stack",
        "hstack",
        "vstack",
        "dstack",
        "column_stack",
        "row_stack",
        "pad",
        "append",
    )
)
"""Last names of the functions of torch, torch.nn.functional and numpy that make one array larger than it was."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.AsyncFor, ast.While, ast.Module)


def variable_of(references: Sequence[str]) -> str:
    """The name under which the source knows what a path's last references hold: `seen` of `.seen` or `local seen`."""
    for reference in reversed(references):
        named = re.search(r"([A-Za-z_]\w*)(?:'\]|\"\])?$", reference)
        if named:
            return named[1]
    return ""


def is_made_from_itself(sources: Mapping[str, Sequence[str]], variable: str) -> bool:
    """Whether any of the files joins a variable's previous value with more, and does not set it anew before.

    `x = torch.cat([token, x])` in a loop or a function that has `x = embed(ids)` as well joins nothing of the last
    step's.
    """
    return bool(variable) and any(
        _joins_itself(tree, variable) for tree in map(_parsed, sources.values()) if tree is not None
    )


def _parsed(lines: Sequence[str]) -> ast.Module | None:
    try:
        return ast.parse("\n".join(line.rstrip("\n") for line in lines))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _joins_itself(tree: ast.Module, variable: str) -> bool:
    for scope in (node for node in ast.walk(tree) if isinstance(node, _SCOPES)):
        values = [value for value in _values_in(scope, variable) if value is not None]
        joined = [value for value in values if _mentions(value, variable)]
        if any(_is_join(value, variable) for value in joined) and len(joined) == len(values):
            return True
    return False


def _values_in(scope: ast.AST, variable: str) -> Iterator[ast.expr | None]:
    """What is assigned to the variable in a scope, not in loops and functions within it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_is_named(target, variable) for target in targets):
                yield node.value
        if not isinstance(node, _SCOPES):
            yield from _values_in(node, variable)


def _is_named(node: ast.AST, variable: str) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == variable
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(_is_named(each, variable) for each in node.elts)
    return (isinstance(node, ast.Name) and node.id == variable) or (
        isinstance(node, ast.Attribute) and node.attr == variable
    )


def _mentions(value: ast.expr, variable: str) -> bool:
    return any(_is_named(node, variable) for node in ast.walk(value))


def _is_join(value: ast.expr, variable: str) -> bool:
    """Whether a call in it joins what it is given, and is given the variable."""
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    return any(
        isinstance(call.func, (ast.Name, ast.Attribute))
        and (call.func.id if isinstance(call.func, ast.Name) else call.func.attr) in _JOINS
        and _mentions(call, variable)
        for call in calls
    )
