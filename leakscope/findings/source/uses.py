"""Uses of a value that a line stores, under every name it is bound to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leakscope.findings.source.index import Scope, Sources, key_of, last_name, pairs
from leakscope.findings.source.stores import How, Store

_NUMBERS_OF = (
    "float",
    "int",
    "bool",
    "len",
    "sum",
    "max",
    "min",
    "abs",
    "round",
    "print",
    "str",
    "repr",
    "format",
    "id",
)
"""Builtins that accept a tensor of one element as a number."""
_THROUGH = (
    "enumerate",
    "zip",
    "reversed",
    "sorted",
    "list",
    "tuple",
    "iter",
    "dict",
    "set",
    "deque",
    "values",
    "items",
)
"""Calls that return the items of their argument."""
_OF_NUMBERS = (
    "tensor",
    "as_tensor",
    "save",
    "mean",
    "fmean",
    "median",
    "std",
    "array",
    "asarray",
    "dump",
    "dumps",
    "plot",
)
"""Functions of torch, numpy, statistics, json, pickle and matplotlib that take lists of numbers."""
_OF_THEM = ("torch", "np", "numpy", "statistics", "json", "pickle", "math", "plt", "ax", "logging", "logger", "log")
_CHANGES = (
    *("append", "extend", "insert", "clear", "pop", "popleft", "popitem", "appendleft", "remove", "sort", "reverse"),
    *("setdefault", "update", "keys", "put", "get", "add", "discard", "index", "count", "copy"),
)
"""Methods of containers that only pass items on."""
_PUTS = ("append", "extend", "appendleft", "add", "put", "put_nowait", "clear")
"""Methods of containers that read nothing of them."""
_DIFFERENTIATES = ("backward", "grad")
_ENDS_GRAPH = ("float", "int", "item", "len", "str", "print", "detach", "tolist")
"""Calls whose result has no graph."""
_DEEPEST = 3
"""Depth of calls of kept functions through which a value is followed: a helper that calls a helper."""

Path = tuple[str, ...]
"""The last name of an expression, and the keys after it: `('history', "['loss']")`."""


@dataclass(frozen=True, eq=False)
class _Read:
    """An expression that gives the stored value, or a container of it."""

    node: ast.expr
    tree: ast.AST
    """The enclosing function or module."""
    is_item: bool
    """Whether it may be one item: a loop variable or a subscript."""


class Uses:
    """All places of the sources that refer to the target of a store, under any name: for a local those of its function,
    else all, and those of the functions that receive it.
    """

    def __init__(self, store: Store, sources: Sources) -> None:
        target = of_default(store.target)
        self.path = path_of(target)
        self._sources = sources
        self._adds = store.how == How.ADDS
        self._stored = store.found.statement
        name = self.path[0]
        owner = store.found.scope.owner(name) if _is_variable(target) else None
        self._starts: list[tuple[ast.AST, str]] = []
        """Functions and modules that refer to it, each with the name."""
        if name and owner is not None and owner.name:
            self._starts = [(owner.node, name), *self._given(name, owner, _DEEPEST)]
        elif name:
            self._starts = [(parsed.module.node, name) for parsed in sources.containing(name)]
        self._reads: list[_Read] | None = None
        self._followed: set[tuple[int, str]] = set()
        self._returned: set[int] = set()
        self._parents: dict[int, dict[ast.AST, ast.AST]] = {}

    def as_object(self) -> bool:
        """Whether the program may use the stored value in a way that a number or string does not support: everything
        except uses known to take numbers, such as a call that is not followed.
        """
        return not self._starts or any(self._needs_object(read) for read in self._all())

    def as_text(self) -> bool:
        """Whether the program uses it only in ways that a string supports as well as an exception: it is counted,
        printed or formatted.
        """
        return bool(self._starts) and all(self._is_printed(read) for read in self._all())

    def raised(self) -> bool:
        """Whether the stored value is raised again."""
        return any(
            any(isinstance(above, ast.Raise) for above in self._above(read.node, read.tree)) for read in self._all()
        )

    def differentiated(self) -> bool:
        """Whether backward may be called on the stored value, or on something computed from it, so that its graph is
        needed.
        """
        return any(self._is_differentiated(read) for read in self._all())

    def only_read_by_key(self, key: str) -> bool:
        """Whether a dict is only read by one key: its other entries are never used."""
        for read in self._all():
            above = next(iter(self._above(read.node, read.tree)), None)
            item = isinstance(above, ast.Subscript) and above.value is read.node and ast.unparse(above.slice) == key
            is_test = isinstance(above, ast.Compare) and isinstance(above.ops[0], (ast.In, ast.NotIn))
            if not (item and isinstance(getattr(above, "ctx", None), (ast.Load, ast.Store))) and not is_test:
                return False
        return bool(self._starts)

    def never_read(self) -> bool:
        """Whether the program only adds to it."""
        return bool(self._starts) and all(self._is_written(read) for read in self._all())

    def waited_for(self) -> ast.stmt | None:
        """The single statement that iterates over the container and waits for each item, if it is otherwise only
        counted for a slice of that iteration.
        """
        found: dict[int, ast.stmt] = {}
        for read in self._containers():
            above = list(self._above(read.node, read.tree))
            if self._is_written(read) or _is_counted_for_a_slice(read.node, above):
                continue
            waits = _waiting(read.node, above)
            if waits is None:
                return None
            found[id(waits)] = waits
        return next(iter(found.values())) if len(found) == 1 else None

    def _containers(self) -> Iterator[_Read]:
        return (read for read in self._all() if not read.is_item)

    def items_from_end(self) -> int | None:
        """Maximum number of last items that are read, as `x[-1]` and `x[-9:]`; None if others may be."""
        most = 0
        for read in self._containers():
            if self._is_written(read):
                continue
            above = next(iter(self._above(read.node, read.tree)), None)
            back = _back(above) if isinstance(above, ast.Subscript) and above.value is read.node else None
            if back is None or not isinstance(getattr(above, "ctx", None), ast.Load):
                return None
            most = max(most, back)
        return most if self._starts else None

    def _all(self) -> list[_Read]:
        """Every expression that may give it, or its container."""
        if self._reads is None:
            self._reads = []
            for tree, name in self._starts:
                self._follow(tree, name, _DEEPEST, not self._adds)
        return self._reads

    def _given(self, name: str, owner: Scope, deep: int) -> Iterator[tuple[ast.AST, str]]:
        """What calls pass for a parameter of a function: the callers' names for it."""
        if not deep or name not in (*owner.parameters, *owner.keywords):
            return
        called = owner.name.rpartition(".")[2]
        if called == "__init__" and owner.outer is not None:
            called = owner.outer.name.rpartition(".")[2]
        for parsed in self._sources.containing(called):
            for one in parsed.found:
                if not isinstance(one.node, ast.Call) or last_name(one.node.func) != called:
                    continue
                for given in (*one.node.args, *(keyword.value for keyword in one.node.keywords)):
                    if _parameter(one.node, given, owner) != name or not isinstance(given, (ast.Name, ast.Attribute)):
                        continue
                    around = one.scope.owner(given.id) if isinstance(given, ast.Name) else None
                    yield (parsed.module.node if around is None else around.node), last_name(given)
                    if isinstance(given, ast.Name) and around is not None:
                        yield from self._given(given.id, around, deep - 1)

    def _follow(self, tree: ast.AST, first: str, deep: int, is_item: bool) -> None:
        """Record the expressions in a function that give it under a name, and under names bound to it."""
        assert self._reads is not None
        if (id(tree), first) in self._followed:
            return
        self._followed.add((id(tree), first))
        known = {first: is_item}
        waiting = [first]
        while waiting:
            name = waiting.pop()
            for node in ast.walk(tree):
                if not isinstance(node, (ast.Name, ast.Attribute)) or last_name(node) != name:
                    continue
                if not isinstance(node.ctx, ast.Load) or (isinstance(node, ast.Attribute) and name != first):
                    continue
                if name == self.path[0] and not self._is_of_path(node, tree):
                    continue
                self._note(_Read(node, tree, known[name]), known, waiting, deep)

    def _note(self, read: _Read, known: dict[str, bool], waiting: list[str], deep: int) -> None:
        """Record one expression, the names in its function bound to it, and where it goes from there."""
        assert self._reads is not None
        self._reads.append(read)
        for other, item in self._bound(read):
            if other.startswith("."):
                for parsed in self._sources.containing(other[1:]) if deep else ():
                    self._follow(parsed.module.node, other[1:], deep - 1, item)
            elif other not in known:
                known[other] = item
                waiting.append(other)
        self._hand_on(read, deep)
        if deep and any(isinstance(above, ast.Return) for above in self._above(read.node, read.tree)):
            self._hand_back(read, deep - 1)

    def _hand_back(self, read: _Read, deep: int) -> None:
        """Follow it to the calls of the function that returns it, or something computed from it."""
        function = next((up for up in self._above(read.node, read.tree) if isinstance(up, ast.FunctionDef)), read.tree)
        called = getattr(function, "name", "")
        for parsed in self._sources.containing(called) if called and id(function) not in self._returned else ():
            self._returned.add(id(function))
            for one in parsed.found:
                if isinstance(one.node, ast.Call) and last_name(one.node.func) == called:
                    again = _Read(one.node, one.scope.node, read.is_item)
                    known: dict[str, bool] = {}
                    waiting: list[str] = []
                    self._note(again, known, waiting, deep)
                    for name, is_item in known.items():
                        self._follow(one.scope.node, name, deep, is_item)

    def _is_of_path(self, node: ast.expr, tree: ast.AST) -> bool:
        """Whether the keys after a name, if the source shows them, are those of the path."""
        keys = []
        for above in self._above(node, tree):
            if not isinstance(above, ast.Subscript) or above.value is not node:
                break
            keys.append(key_of(above.slice) or "")
            node = above
        return all(a == b or not a or not b for a, b in zip(keys, self.path[1:], strict=False))

    def _bound(self, read: _Read) -> Iterator[tuple[str, bool]]:
        """Names that a statement binds to the value of an expression, or to something computed from it, each with
        whether that may be an item.
        """
        node: ast.AST = read.node
        for above in self._above(read.node, read.tree):
            if isinstance(above, (ast.For, ast.AsyncFor, ast.comprehension)) and node is above.iter:
                yield from ((name, True) for name in _names(above.target))
                return
            if isinstance(above, ast.Assign) and node is above.value:
                if above is not self._stored:
                    for target in above.targets:
                        yield from ((name, read.is_item or node is not read.node) for name in _names(target))
                return
            if isinstance(above, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node is above.value:
                yield from ((name, True) for name in _names(above.target))
                return
            if isinstance(above, ast.Call) and last_name(above.func) in _ENDS_GRAPH:
                return
            if isinstance(above, ast.stmt):
                return
            node = above

    def _hand_on(self, read: _Read, deep: int) -> None:
        """Follow it into a kept function that receives it."""
        call = next(iter(self._above(read.node, read.tree)), None)
        if not deep or not isinstance(call, ast.Call) or call.func is read.node:
            return
        for scope in self._functions(call):
            if name := _parameter(call, read.node, scope):
                self._follow(scope.node, name, deep - 1, read.is_item)

    def _functions(self, call: ast.Call) -> list[Scope]:
        called = last_name(call.func)
        found = self._sources.matching(rf"def\s+{called}\s*\(") if called.isidentifier() else []
        return [
            scope for parsed in found for scope in parsed.scopes if getattr(scope.node, "name", "") == called
        ]  # fmt: skip

    def _needs_object(self, read: _Read) -> bool:
        node: ast.AST = read.node
        for above in self._above(read.node, read.tree):
            if isinstance(above, ast.Subscript) and node is above.value:
                node = above
                continue
            if isinstance(above, ast.Attribute):
                item = read.is_item or isinstance(node, ast.Subscript)
                return above.attr not in _CHANGES or (item and not self._is_container_of(node))
            if isinstance(above, ast.Call):
                name = last_name(above.func)
                if node is above.func:
                    return False
                if isinstance(above.func, ast.Name) and name in (*_NUMBERS_OF, *_THROUGH):
                    return False
                if isinstance(above.func, ast.Attribute) and name in _OF_NUMBERS and _root(above.func) in _OF_THEM:
                    return not (name in ("tensor", "as_tensor", "save") or _root(above.func) != "torch")
                if isinstance(above.func, ast.Attribute) and name in _CHANGES:
                    return False
                return not self._functions(above)  # followed expressions are judged at their use
            return isinstance(above, (ast.Return, ast.Yield, ast.YieldFrom, ast.Raise)) and read.is_item
        return False

    def _is_container_of(self, node: ast.AST) -> bool:
        """Whether a subscript gives a container rather than an item: it has no more keys than the path."""
        depth = 0
        while isinstance(node, ast.Subscript):
            depth, node = depth + 1, node.value
        return self._adds and depth < len(self.path) and depth > 0

    def _is_printed(self, read: _Read) -> bool:
        for above in self._above(read.node, read.tree):
            if isinstance(above, (ast.FormattedValue, ast.Delete)):
                return True
            if isinstance(above, ast.Call):
                name = last_name(above.func)
                if isinstance(above.func, ast.Name) and name in ("print", "len", "str", "repr", "bool"):
                    return True
                if read.node in above.args and self._functions(above):
                    return True  # judged at its use there
                return isinstance(above.func, ast.Attribute) and (
                    name in _CHANGES or _root(above.func) in ("logging", "logger", "log")
                )
            if isinstance(above, ast.Attribute):
                if above.attr not in _CHANGES or read.is_item:
                    return False
            elif isinstance(above, ast.Subscript):
                continue
            elif isinstance(above, ast.stmt):
                return isinstance(above, (ast.Expr, ast.If, ast.While, ast.Assign, ast.For))
        return False

    def _is_differentiated(self, read: _Read) -> bool:
        node: ast.AST = read.node
        for above in self._above(read.node, read.tree):
            if isinstance(above, ast.Call) and last_name(above.func) in _DIFFERENTIATES:
                return True
            if isinstance(above, ast.Attribute) and above.attr in _DIFFERENTIATES:
                return read.is_item or node is not read.node or not self._adds
            if isinstance(above, ast.Call) and last_name(above.func) in (
                "float",
                "int",
                "item",
                "len",
                "detach",
                "append",
            ):
                return False
            if isinstance(above, ast.stmt):
                return False
            node = above
        return False

    def _is_written(self, read: _Read) -> bool:
        """Whether an expression is in the storing line, or in one that only adds or initialises."""
        for above in self._above(read.node, read.tree):
            if above is self._stored:
                return True
            if isinstance(above, ast.Attribute) and above.attr in _PUTS:
                call = next((up for up in self._above(above, read.tree)), None)
                parent = next((up for up in self._above(call, read.tree)), None) if call is not None else None
                return isinstance(call, ast.Call) and isinstance(parent, ast.Expr)
            if isinstance(above, ast.stmt):
                return False
        return False

    def _above(self, node: ast.AST, tree: ast.AST) -> Iterator[ast.AST]:
        parents = self._parents.get(id(tree))
        if parents is None:
            parents = {child: each for each in ast.walk(tree) for child in ast.iter_child_nodes(each)}
            self._parents[id(tree)] = parents
        while node in parents and node is not tree:
            node = parents[node]
            yield node


def path_of(node: ast.expr) -> Path:
    """For `self.history['loss']`: the last name, and the keys that the source shows."""
    keys: list[str] = []
    node = of_default(node)
    while isinstance(node, ast.Subscript):
        keys.append(key_of(node.slice) or "")
        node = node.value
    return (last_name(node), *reversed(keys))


def of_default(target: ast.expr) -> ast.expr:
    """`x[key]` of `x.setdefault(key, [])`."""
    called = target.func if isinstance(target, ast.Call) else None
    if not isinstance(target, ast.Call) or not isinstance(called, ast.Attribute) or called.attr != "setdefault":
        return target
    return ast.Subscript(called.value, target.args[0], ast.Load()) if target.args else target


def _waiting(node: ast.AST, above: Sequence[ast.AST]) -> ast.stmt | None:
    """The loop over a container, or a slice of it, that calls `wait` on each item and does nothing else with it."""
    for up in above:
        if isinstance(up, ast.Subscript) and up.value is node and isinstance(up.slice, ast.Slice):
            node = up
        elif isinstance(up, ast.comprehension) and up.iter is node:
            around = [a for a in above if isinstance(a, (ast.ListComp, ast.stmt))]
            ends = len(around) > 1 and isinstance(around[1], ast.Expr) and isinstance(around[0], ast.ListComp)
            return around[1] if ends and not up.ifs and _only_waits(up.target, around[0]) else None  # type: ignore[return-value]
        elif isinstance(up, ast.For) and up.iter is node:
            leaves = any(isinstance(inner, (ast.Break, ast.Return, ast.Continue)) for inner in ast.walk(up))
            return up if not leaves and not up.orelse and _only_waits(up.target, up) else None
        else:
            return None
    return None


def _only_waits(target: ast.expr, inside: ast.AST) -> bool:
    """Whether the only use of a loop variable is a `wait` that runs for each item."""
    if not isinstance(target, ast.Name):
        return False
    reads = [n for n in ast.walk(inside) if isinstance(n, ast.Name) and n.id == target.id and n is not target]
    calls = [n.func for n in ast.walk(inside) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    waits = [func for func in calls if func.attr == "wait" and func.value in reads]
    is_tested = any(isinstance(n, (ast.If, ast.IfExp, ast.Try)) for n in ast.walk(inside))
    return len(reads) == len(waits) == 1 and not is_tested


def _is_counted_for_a_slice(node: ast.AST, above: Sequence[ast.AST]) -> bool:
    """`first = len(works)` if it is only used as `works[first:]`."""
    call = above[0] if above else None
    counts = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "len"
    statement = next((up for up in above if isinstance(up, ast.stmt)), None)
    function = next((up for up in above if isinstance(up, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module))), None)
    if not counts or not isinstance(statement, ast.Assign) or function is None or not isinstance(node, ast.expr):
        return False
    name = next((t.id for target, value in pairs(statement) if value is call and isinstance(t := target, ast.Name)), "")
    reads = {n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)}
    text = ast.unparse(node)
    bounds = {
        n.slice.lower
        for n in ast.walk(function)
        if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice) and n.slice.upper is None
        if ast.unparse(n.value) == text
    }
    return bool(name) and reads <= bounds


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(target: ast.AST) -> list[str]:
    """The names that a target binds, attributes with a leading dot."""
    bound = (node for node in ast.walk(target) if isinstance(getattr(node, "ctx", None), ast.Store))
    return [
        node.id if isinstance(node, ast.Name) else f".{node.attr}"
        for node in bound
        if isinstance(node, (ast.Name, ast.Attribute))
    ]


def _parameter(call: ast.Call, given: ast.expr, scope: Scope) -> str:
    """The parameter for which a call passes an expression."""
    named = next((keyword.arg for keyword in call.keywords if keyword.value is given), None)
    if named:
        return named if named in (*scope.parameters, *scope.keywords) else ""
    if given not in call.args:
        return ""
    own = isinstance(call.func, ast.Attribute) and scope.outer is not None and scope.outer.is_class
    place = call.args.index(given) + own
    return scope.parameters[place] if place < len(scope.parameters) else ""


def _back(node: ast.Subscript) -> int | None:
    """1 of `x[-1]`, 9 of `x[-9:]`."""
    ends = isinstance(node.slice, ast.Slice) and node.slice.upper is None and node.slice.step is None
    bound = node.slice.lower if isinstance(node.slice, ast.Slice) and ends else node.slice
    if isinstance(bound, ast.UnaryOp) and isinstance(bound.op, ast.USub) and isinstance(bound.operand, ast.Constant):
        return bound.operand.value if isinstance(bound.operand.value, int) else None
    return None


def _is_variable(node: ast.expr) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name)
