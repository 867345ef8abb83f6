"""Statements that store something: `append`, assignments, `setattr` and the like."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.source.index import ADDERS, BY_NAME, Found, ParsedFile, last_name, pairs


class How(StrEnum):
    """What a statement does with what stands on its left."""

    ADDS = "adds"
    """The object that the expression means gains something."""
    BINDS = "binds"
    """The name or attribute itself is bound to something else."""


@dataclass(frozen=True, eq=False)
class Store:
    """One place that puts something somewhere."""

    found: Found
    how: How
    target: ast.expr
    """What gains it, or is bound to it."""
    values: tuple[ast.expr, ...]
    """What is put there, as far as it is written there."""
    name: str = ""
    """Method that is called."""
    key: ast.expr | None = None
    """Of `target[key] = value`, or the name that `register_buffer` and its like are told."""
    gains: int | None = None
    """Position on the trace of the object that gains it, where one does."""

    @property
    def line(self) -> int:
        """Number of its line, from 1."""
        return int(getattr(self.found.node, "lineno", self.found.statement.lineno))

    @property
    def where(self) -> str:
        """`train.py:31`."""
        return f"{self.found.scope.file}:{self.line}"


def stores_of(parsed: ParsedFile) -> Iterator[Store]:
    """All that a file's statements put somewhere, in its order."""
    for found in parsed.found:
        node = found.node
        if isinstance(node, ast.Call):
            yield from _of_call(found, node)
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Subscript):
                yield Store(found, How.ADDS, node.target.value, (node.value,), key=node.target.slice)
            else:
                yield Store(found, How.BINDS, node.target, (node.value,))
            yield Store(found, How.ADDS, node.target, (node.value,))
        else:
            for target, value in pairs(node):
                yield from _of_pair(found, target, value)


def _of_call(found: Found, node: ast.Call) -> Iterator[Store]:
    given = node.args
    for method in (*given, *(keyword.value for keyword in node.keywords)):
        # `loop.call_later(1, rows.append, x)`, `map(rows.append, losses)`
        if isinstance(method, ast.Attribute) and method.attr in _HANDED_ON:
            others = tuple(other for other in given if other is not method)
            yield Store(found, How.ADDS, method.value, others or (node,), method.attr)
    if isinstance(node.func, ast.Name) and node.func.id == "setattr":
        if given:
            yield Store(found, How.ADDS, given[0], tuple(given[2:3]), "setattr", _first(given[1:]))
    elif (handed := _FUNCTIONS.get(last_name(node.func))) is not None and len(given) > handed[1]:
        target, value = handed
        yield Store(found, How.ADDS, given[target], tuple(given[value:]), last_name(node.func))
    elif isinstance(node.func, ast.Name) and (alias := _alias(node.func, found)) is not None:
        put = given[ADDERS[alias.attr] :] or given
        yield Store(found, How.ADDS, alias.value, tuple(put), alias.attr)
    elif _is_unbound(node.func):
        assert isinstance(node.func, ast.Attribute)
        if len(given) > 1:
            yield Store(found, How.ADDS, given[0], tuple(given[1:]), node.func.attr)
    elif isinstance(node.func, ast.Attribute) and node.func.attr in ADDERS:
        name, place = node.func.attr, ADDERS[node.func.attr]
        values = given[place : place + 1] or [keyword.value for keyword in node.keywords[-1:]]
        key = _first(given) if name in BY_NAME else None
        if values or name == "update":
            yield Store(found, How.ADDS, node.func.value, tuple(values), name, key)


_FUNCTIONS = {
    **dict.fromkeys(("heappush", "heappushpop", "heapreplace", "insort", "insort_left", "insort_right"), (0, 1)),
    **dict.fromkeys(("iadd", "ior", "iconcat"), (0, 1)),
    "setitem": (0, 2),
}
"""Functions of heapq, bisect and operator that put something into one of their arguments: which, and which they put."""
_HANDED_ON = ("append", "appendleft", "add", "extend", "put", "put_nowait", "update")
"""Methods that are handed to what calls them."""
_TYPES_THAT_ADD = ("list", "dict", "set", "deque", "OrderedDict", "defaultdict")


def _is_unbound(function: ast.expr) -> bool:
    """Whether it is a method of a type that is given the object: `list.append` in `list.append(rows, x)`."""
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return False
    return function.value.id in _TYPES_THAT_ADD and (function.attr in ADDERS or function.attr == "__setitem__")


def _alias(function: ast.Name, found: Found) -> ast.Attribute | None:
    """`rows.append` of `add` after `add = rows.append`."""
    owner = found.scope.owner(function.id)
    bound = owner.bound.get(function.id, []) if owner is not None else []
    values = [binding.value for binding in bound if not binding.of_item]
    if len(values) != 1 or not isinstance(values[0], ast.Attribute) or values[0].attr not in ADDERS:
        return None
    return values[0]


def _first(given: Sequence[ast.expr]) -> ast.expr | None:
    return given[0] if given else None


def _of_pair(found: Found, target: ast.expr, value: ast.expr) -> Iterator[Store]:
    if isinstance(target, ast.Subscript):
        if (
            not isinstance(target.slice, ast.Slice)
            or mentions(value, target.value)
            or mentions(target.slice, target.value)
        ):
            yield Store(found, How.ADDS, target.value, (value, target.slice), key=target.slice)
    elif isinstance(target, (ast.Name, ast.Attribute)):
        yield Store(found, How.BINDS, target, (value,))


def mentions(value: ast.AST, target: ast.expr) -> bool:
    """Whether a value is made of what it is assigned to: `total + loss` to `total`."""
    return any(True for _ in mentions_of(value, target))


def mentions_of(value: ast.AST, target: ast.expr) -> Iterator[ast.expr]:
    """The expressions in a value that read what it is assigned to."""
    text = ast.unparse(target)
    for node in ast.walk(value):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and ast.unparse(node) == text:
            yield node


_NUMBERS = ("item", "tolist", "numel", "nbytes", "element_size", "perf_counter", "time", "format", "join", "dim")
_PLAIN = (
    "float",
    "int",
    "str",
    "type",
    "bool",
    "len",
    "repr",
    "round",
    "hash",
    "id",
    "ord",
    "format",
    "perf_counter",
    "time",
)
_EMPTY = ("list", "dict", "set", "tuple", "deque", "defaultdict", "OrderedDict", "Counter", "Queue", "LifoQueue")


def may_hold(value: ast.expr, found: Found) -> bool:
    """Whether what an expression gives may hold memory, as far as it shows: no number, no text, nothing empty.

    A name counts by what is bound to it in its function, one step back.
    """
    if isinstance(value, ast.Name):
        owner = found.scope.owner(value.id)
        bound = owner.bound.get(value.id, []) if owner is not None else []
        one_step = not bound or value.id in owner.parameters if owner is not None else True
        return one_step or any(binding.of_item or _may(binding.value) for binding in bound)
    return _may(value)


def _may(value: ast.expr) -> bool:
    if isinstance(value, (ast.Constant, ast.JoinedStr, ast.Compare)):
        return False
    if isinstance(value, ast.Attribute):
        return value.attr not in ("shape", "dtype", "device", "ndim")
    if isinstance(value, ast.Call):
        name = last_name(value.func)
        if name in (_PLAIN if isinstance(value.func, ast.Name) else _NUMBERS):
            return False
        return name not in _EMPTY or any(map(_may, value.args))
    parts = _parts(value)
    return parts is None or any(map(_may, parts))


def _parts(value: ast.expr) -> list[ast.expr] | None:
    """What may be the memory of a value that is made of others; None where it is not."""
    if isinstance(value, ast.IfExp):
        return [value.body, value.orelse]
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return value.elts
    if isinstance(value, ast.Dict):
        return [*value.values, *(key for key in value.keys if key is not None)]
    if isinstance(value, ast.UnaryOp):
        return [value.operand]
    return [value.left, value.right] if isinstance(value, ast.BinOp) else None
