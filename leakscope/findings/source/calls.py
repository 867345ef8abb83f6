"""Which functions of the kept source are called, from where and in which loops, and which numbers its names are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite

from leakscope.findings.source.names import is_static, last_name
from leakscope.findings.source.parsed import Found, Scope
from leakscope.findings.source.sources import Sources

_DEEPEST = 8
"""Calls that are followed from a line up to the module: a trainer that calls its own methods has five or six."""
_MOST = 8
"""Callers of one function that are followed; heuristic: a function with more says nothing of any of them."""
_CALLED_BY_TORCH = ("forward", "backward", "step", "zero_grad", "train", "eval", "setup_context")
_TORCHS = frozenset(("Module", "Dataset", "IterableDataset", "Sampler", "Optimizer", "Function", "object", "ABC"))
"""Bases whose methods no library calls but those above and those with two underscores."""
_PLAIN = frozenset(("Protocol", "Generic", "NamedTuple", "Enum", "Exception", "dict", "list", "deque", "OrderedDict"))
_CALLED_BY_LIBRARY = re.compile(r"on_\w+|\w+_(end|start|begin|step)|reset|compute|update|setup|teardown|close|run")
"""Methods that trainers and metrics call of what derives from their classes: Lightning's hooks, torchmetrics' reset."""


class Calls:
    """The calls among the functions of the kept files."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._of: dict[int, tuple[Found, ...]] = {}
        self._reached: dict[int, bool] = {}

    def is_reached(self, scope: Scope) -> bool:
        """Whether something runs the code of a scope: the module, a name that is read in code which is run itself, or a
        library that calls methods of this name.
        """
        if id(scope) not in self._reached:
            self._reached[id(scope)] = False  # what only calls itself is not reached
            self._reached[id(scope)] = self._is_reached(scope)
        return self._reached[id(scope)]

    def _is_reached(self, scope: Scope) -> bool:
        if scope.outer is None or isinstance(scope.node, ast.Lambda):
            return scope.outer is None or self.is_reached(scope.outer)
        if scope.is_class:
            return self.is_reached(scope.outer)
        own = scope.name.rpartition(".")[2]
        if own.startswith("__") and own.endswith("__") and own != "__init__":
            return True
        if getattr(scope.node, "decorator_list", []) and not scope.outer.is_class:
            return True  # what a decorator does with it is not known
        if scope.outer.is_class and self._is_called_by_library(own, scope.outer):
            return True
        called = scope.outer.name.rpartition(".")[2] if own == "__init__" else own
        return any(
            self.is_reached(reader)
            for parsed in self._sources.containing(called)
            for node, reader in parsed.reads.get(called, ())
            if not _is_inside(reader, scope) and _may_be(node, reader, scope)
        )

    def _is_called_by_library(self, own: str, around: Scope) -> bool:
        name = around.name.rpartition(".")[2]
        bases = self._sources.bases(name) or set()
        foreign = {base for base in bases if not self._sources.has_class(base)}
        if not foreign - _PLAIN:
            return False
        if foreign <= _TORCHS | _PLAIN:
            return own in _CALLED_BY_TORCH
        return bool(_CALLED_BY_LIBRARY.fullmatch(own)) or own in _CALLED_BY_TORCH

    def of(self, scope: Scope) -> tuple[Found, ...]:
        """The calls of a function by its name, in code that is run."""
        if id(scope) not in self._of:
            own = scope.name.rpartition(".")[2]
            if own == "__init__" and scope.outer is not None:
                own = scope.outer.name.rpartition(".")[2]
            self._of[id(scope)] = tuple(
                one
                for parsed in (self._sources.containing(own) if own and own != "<lambda>" else ())
                for one in parsed.found
                if isinstance(one.node, ast.Call) and last_name(one.node.func) == own
                if not _is_inside(one.scope, scope) and _may_be(one.node.func, one.scope, scope)
                if self.is_reached(one.scope)
            )
        return self._of[id(scope)]

    def ways(self, one: Found, deep: int = _DEEPEST) -> list[tuple[Found, ...]]:
        """A line, the call of its function, the call of that one and so on, up to the module; for each caller."""
        callers = self.of(one.scope)[:_MOST] if deep and one.scope.outer is not None else ()
        if not callers:
            return [(one,)]
        return [(one, *way) for call in callers for way in self.ways(call, deep - 1)][:_MOST]

    def is_followed(self, way: Sequence[Found]) -> bool:
        """Whether a way leads to the module: no library, thread or callback calls what is not seen to be called."""
        return way[-1].scope.outer is None


def loops_of(way: Sequence[Found]) -> list[tuple[ast.stmt, Scope]]:
    """The loops in which a line runs that is called this way, the innermost first."""
    return [(loop, one.scope) for one in way for loop in reversed(one.loops)]


def _may_be(node: ast.expr, reader: Scope, scope: Scope) -> bool:
    """Whether a name or an attribute that is read may be that of a function: no method is read as a plain name."""
    if not isinstance(node, ast.Name):
        return True
    called = scope.outer if scope.name.endswith("__init__") else scope
    owner = reader.owner(node.id)
    if owner is None or called is None:
        return False
    return owner is called.outer or (node.id in owner.imported and owner.file != scope.file)


def _is_inside(scope: Scope, other: Scope) -> bool:
    around: Scope | None = scope
    while around is not None:
        if around is other:
            return True
        around = around.outer
    return False


def number_of(node: ast.expr, scope: Scope, sources: Sources, deep: int = 5) -> int | None:
    """The whole number that an expression is, where the source shows it: a literal, a constant, a default that no call
    changes.
    """
    if deep <= 0:
        return None
    if isinstance(node, ast.Constant):
        known = isinstance(node.value, (int, float)) and not isinstance(node.value, bool) and isfinite(node.value)
        return int(node.value) if known else None  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = number_of(node.operand, scope, sources, deep - 1)
        return None if number is None else -number
    if isinstance(node, ast.BinOp):
        left, right = (number_of(part, scope, sources, deep - 1) for part in (node.left, node.right))
        return None if left is None or right is None else _worked_out(node.op, left, right)
    values = list(_values(node, scope, sources))
    numbers = {number_of(value, its, sources, deep - 1) for value, its in values}
    return numbers.pop() if len(numbers) == 1 else None


def _worked_out(op: ast.operator, left: int, right: int) -> int | None:
    if isinstance(op, ast.Add):
        return left + right
    if isinstance(op, ast.Sub):
        return left - right
    if isinstance(op, ast.Mult):
        return left * right
    if isinstance(op, ast.FloorDiv) and right:
        return left // right
    return left**right if isinstance(op, ast.Pow) and 0 <= right < 64 and abs(left) < 100 else None  # noqa: PLR2004


def _values(node: ast.expr, scope: Scope, sources: Sources) -> Iterator[tuple[ast.expr, Scope]]:
    """What a name or an attribute of `self` may be, each with the scope in which it is written."""
    if isinstance(node, ast.Name):
        owner = scope.owner(node.id)
        if owner is None:
            return
        if node.id in owner.imported:
            yield from _of_import(owner.imported[node.id], sources)
        elif node.id in (*owner.parameters, *owner.keywords) and node.id not in owner.bound:
            yield from _given(node.id, owner, sources)
        else:
            yield from ((binding.value, owner) for binding in owner.bound.get(node.id, ()))
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = scope.owner(node.value.id)
        around = owner.outer if owner is not None else None
        if owner is None or around is None or not around.is_class or owner.parameters[:1] != (node.value.id,):
            return
        parsed = sources.file(scope.file)
        stored = parsed.stored_in_self.get((around, node.attr), []) if parsed is not None else []
        yield from ((value, method) for method, value in stored)
        if not stored:
            yield from ((binding.value, around) for binding in around.bound.get(node.attr, ()))


def _of_import(dotted: str, sources: Sources) -> Iterator[tuple[ast.expr, Scope]]:
    module, _, name = dotted.rpartition(".")
    for parsed in sources.containing(name) if module else ():
        path = parsed.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if path == module or path.endswith("." + module):
            yield from ((binding.value, parsed.module) for binding in parsed.module.bound.get(name, ()))


def _given(name: str, owner: Scope, sources: Sources) -> Iterator[tuple[ast.expr, Scope]]:
    """What calls give for a parameter, and its default where there is none that does."""
    node = owner.node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    own = owner.name.rpartition(".")[2]
    method = owner.outer is not None and owner.outer.is_class and not is_static(owner)
    if own == "__init__" and owner.outer is not None:
        own = owner.outer.name.rpartition(".")[2]
    place = owner.parameters.index(name) - method if name in owner.parameters else -1
    default = _default(name, owner)
    for one in _calls_by_name(own, sources):
        assert isinstance(one.node, ast.Call)
        by_name = [keyword.value for keyword in one.node.keywords if keyword.arg == name]
        by_place = one.node.args[place : place + 1] if place >= 0 else []
        values = by_name or by_place or ([default] if default is not None else [])
        yield from ((value, owner.outer or owner if value is default else one.scope) for value in values)
    if default is not None and not any(True for _ in _calls_by_name(own, sources)):
        yield default, owner.outer or owner


def _calls_by_name(own: str, sources: Sources) -> Iterable[Found]:
    return (
        one
        for parsed in sources.containing(own)
        for one in parsed.found
        if isinstance(one.node, ast.Call) and last_name(one.node.func) == own
    )


def _default(name: str, owner: Scope) -> ast.expr | None:
    given = getattr(owner.node, "args", None)
    if not isinstance(given, ast.arguments):
        return None
    with_default = owner.parameters[len(owner.parameters) - len(given.defaults) :] if given.defaults else ()
    if name in with_default:
        return given.defaults[with_default.index(name)]
    names = [argument.arg for argument in given.kwonlyargs]
    return given.kw_defaults[names.index(name)] if name in names else None
