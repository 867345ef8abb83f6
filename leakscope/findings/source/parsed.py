"""What stands in the kept source files: statements, the functions they stand in, and what names are bound to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_MOST_NODES = 400_000
"""Nodes of a file that is read: more have only files that a program wrote."""


@dataclass(frozen=True)
class Binding:
    """What one statement binds a name to."""

    value: ast.expr
    of_item: bool = False
    """The name is bound to the items of the value, one after the other."""


@dataclass(eq=False)
class Scope:
    """A module, a class or a function, with the names that it binds."""

    node: ast.AST
    name: str
    """Qualified name as CPython makes it (PEP 3155); "" for a module."""
    outer: Scope | None
    file: str
    bound: dict[str, list[Binding]] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    """Name to the dotted name that it was imported as."""
    elsewhere: set[str] = field(default_factory=set)
    """Names that are declared `global` or `nonlocal`."""

    @property
    def is_class(self) -> bool:
        """Whether names in it are no variables of the functions inside."""
        return isinstance(self.node, ast.ClassDef)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of a function's positional parameters, in order."""
        if not isinstance(self.node, _FUNCTIONS):
            return ()
        given = self.node.args
        return tuple(a.arg for a in (*given.posonlyargs, *given.args))

    @property
    def keywords(self) -> tuple[str, ...]:
        """Names of all parameters that can be given by name."""
        if not isinstance(self.node, _FUNCTIONS):
            return ()
        given = self.node.args
        return tuple(a.arg for a in (*given.args, *given.kwonlyargs))

    @property
    def module(self) -> Scope:
        """The outermost scope around it."""
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope

    def owner(self, name: str) -> Scope | None:
        """The scope whose variable a name is that is read here; None where no scope binds it."""
        scope: Scope | None = self
        while scope is not None:
            own = name in scope.bound or name in scope.imported or name in (*scope.parameters, *scope.keywords)
            if own and name not in scope.elsewhere and (not scope.is_class or scope is self):
                return scope
            scope = scope.outer
        return None


@dataclass(frozen=True, eq=False)
class Found:
    """One node of a file and where it stands."""

    node: ast.AST
    scope: Scope
    statement: ast.stmt
    loops: tuple[ast.stmt, ...]
    """The loops around it inside of its function, the innermost last."""


@dataclass(frozen=True, eq=False)
class ParsedFile:
    """One source file that Python can read."""

    name: str
    lines: tuple[str, ...]
    found: tuple[Found, ...]
    """Every call, assignment, `del`, function and `with`, in the order of the file."""
    scopes: tuple[Scope, ...]
    reads: Mapping[str, Sequence[tuple[ast.expr, Scope]]]
    """Name of a variable or an attribute to each place that reads it."""

    @property
    def module(self) -> Scope:
        """The outermost scope."""
        return self.scopes[0]

    @cached_property
    def _above(self) -> Mapping[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.module.node) for child in ast.iter_child_nodes(node)}

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, the innermost first, up to its function or the module."""
        while node in self._above:
            node = self._above[node]
            yield node
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                return

    @cached_property
    def stored_in_self(self) -> Mapping[tuple[Scope, str], list[tuple[Scope, ast.expr]]]:
        """Class and attribute to what methods assign to it, each with the method: of `self.rows = rows`."""
        stored: dict[tuple[Scope, str], list[tuple[Scope, ast.expr]]] = {}
        for one in self.found:
            own, around = one.scope.parameters[:1], one.scope.outer
            for target, value in pairs(one.node):
                if around is not None and isinstance(target, ast.Attribute) and own == (_name(target.value),):
                    stored.setdefault((around, target.attr), []).append((one.scope, value))
        return stored


def parse(name: str, text: str) -> ParsedFile | None:
    """The file, None where Python cannot read it: a syntax newer than this Python's, nested too deep, no Python at
    all.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    module = Scope(tree, "", None, name)
    scopes, found = [module], []
    reads: dict[str, list[tuple[ast.expr, Scope]]] = {}
    waiting: list[tuple[ast.AST, Scope, ast.stmt | None, tuple[ast.stmt, ...]]] = [(tree, module, None, ())]
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        node, scope, statement, loops = waiting.pop()
        if isinstance(node, ast.stmt):
            statement = node
        if statement is not None and isinstance(node, _KEPT):
            found.append(Found(node, scope, statement, loops))
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            reads.setdefault(node.id if isinstance(node, ast.Name) else node.attr, []).append((node, scope))
        _bind(node, scope)
        inside = _inside(node, scope)
        if inside is not scope:
            scopes.append(inside)
        around = (*loops, node) if isinstance(node, _LOOPS) else () if inside is not scope else loops
        waiting += [(child, inside, statement, around) for child in reversed(list(ast.iter_child_nodes(node)))]
    return ParsedFile(name, tuple(text.split("\n")), tuple(found), tuple(scopes), reads)


_KEPT = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.NamedExpr, ast.Call, ast.With, *_FUNCTIONS)


def _inside(node: ast.AST, scope: Scope) -> Scope:
    """The scope that the children of a node stand in."""
    if not isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
        return scope
    own = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    return Scope(node, qualified(scope, own), scope, scope.file)


def qualified(scope: Scope, own: str) -> str:
    """The qualified name of a function or class that stands in a scope."""
    if not scope.name:
        return own
    return f"{scope.name}.{own}" if scope.is_class else f"{scope.name}.<locals>.{own}"


def _bind(node: ast.AST, scope: Scope) -> None:
    """Note what a node binds in its scope."""
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        scope.elsewhere.update(node.names)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        _bind_imports(node, scope)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scope.bound.setdefault(node.name, [])
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        _bind_targets(scope, node.target, node.iter, of_item=True)
    elif isinstance(node, ast.ExceptHandler) and node.name:
        scope.bound.setdefault(node.name, [])
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        for name in ast.walk(node.optional_vars):
            if isinstance(name, ast.Name):
                scope.bound.setdefault(name.id, [])
    else:
        for target, value in pairs(node):
            _bind_targets(scope, target, value)


def _bind_imports(node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            scope.imported[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
        elif alias.asname:
            scope.imported[alias.asname] = alias.name
        else:
            top = alias.name.partition(".")[0]
            scope.imported[top] = top


def _bind_targets(scope: Scope, target: ast.expr, value: ast.expr, of_item: bool = False) -> None:
    if isinstance(target, ast.Name):
        scope.bound.setdefault(target.id, []).append(Binding(value, of_item))
        return
    if of_item and isinstance(target, ast.Tuple) and target.elts:
        value, target = _item_of_pairs(value, target)
        if isinstance(target, ast.Name):
            _bind_targets(scope, target, value, of_item=True)
            return
    for name in ast.walk(target):  # unpacked in a way that is not followed: bound, and nobody knows to what
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
            scope.bound.setdefault(name.id, [])


def _item_of_pairs(value: ast.expr, target: ast.Tuple) -> tuple[ast.expr, ast.expr]:
    """(What is gone through, the name of its items) of `for k, v in d.items()` and `for i, x in enumerate(rows)`."""
    _, *second = target.elts
    if isinstance(value, ast.Call) and len(second) == 1:
        if isinstance(value.func, ast.Attribute) and value.func.attr == "items" and not value.args:
            return value, second[0]
        if isinstance(value.func, ast.Name) and value.func.id == "enumerate" and value.args:
            return value.args[0], second[0]
    return value, target


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(Target, value) of an assignment, those of `a, b = x, y` one by one."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _unpacked(target, node.value)
    elif isinstance(node, ast.NamedExpr) or (isinstance(node, ast.AnnAssign) and node.value is not None):
        assert node.value is not None
        yield node.target, node.value


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    several = (ast.Tuple, ast.List)
    if not isinstance(target, several):
        yield target, value
        return
    ends = (*target.elts, *(value.elts if isinstance(value, several) else ()))
    whole = any(isinstance(end, ast.Starred) for end in ends) or len(ends) != 2 * len(target.elts)
    values = value.elts if isinstance(value, several) and not whole else [value] * len(target.elts)
    for one, its in zip(target.elts, values, strict=True):
        yield from _unpacked(one, its)
