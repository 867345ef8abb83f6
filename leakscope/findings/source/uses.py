"""What else does the program do with what a line stores?"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from leakscope.findings.source.names import key_of, last_name
from leakscope.findings.source.sources import Sources
from leakscope.findings.source.stores import How, Store

_OF_NUMBERS = ("tensor", "as_tensor", "save")
"""Functions of torch that take numbers as they take tensors."""
_THROUGH = ("enumerate", "zip", "reversed", "sorted", "list", "tuple", "iter")
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)

Path = tuple[str, ...]
"""The last name of an expression, and the keys behind it: `('history', "['loss']")`."""


class Uses:
    """The places of the sources that name what a line stores in: for a local those of its function, else all."""

    def __init__(self, store: Store, sources: Sources) -> None:
        self.path = path_of(store.target)
        self.of_items = store.how == How.ADDS
        name = self.path[0]
        owner = store.found.scope.owner(name) if _is_variable(store.target) else None
        if not name:
            self._trees: list[ast.AST] = []
        elif owner is not None and owner.name:
            self._trees = [owner.node]
        else:
            self._trees = [parsed.module.node for parsed in sources.containing(name)]

    def as_object(self) -> bool:
        """Whether the program does with what is stored what a number or a text cannot do: it reads an attribute of it,
        or hands it to a function of torch.
        """
        return not self._trees or any(self._needs_object(node) for node in self._nodes())

    def raised(self) -> bool:
        """Whether what is stored is raised again."""
        parts = (part for node in self._nodes() if isinstance(node, ast.Raise) for part in (node.exc, node.cause))
        return any(part is not None and path_of(part)[0] == self.path[0] for part in parts)

    def differentiated(self) -> bool:
        """Whether the program calls backward on what is stored: then its graph is needed."""
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("backward", "grad")
            and any(path_of(part) == self.path for one in (node.func.value, *node.args) for part in _expressions(one))
            for node in self._nodes()
        )

    def _nodes(self) -> Iterator[ast.AST]:
        return (node for tree in self._trees for node in ast.walk(tree))

    def _needs_object(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return self._is_stored(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in _OF_NUMBERS:
            of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "F")
            return of_torch and any(path_of(given) == self.path for given in node.args)
        if not self.of_items:
            return False
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return self._goes_through(node.iter) and _reads(node.target, node.body)
        loops = node.generators if isinstance(node, _COMPREHENSIONS) else []
        return any(self._goes_through(loop.iter) and _reads(loop.target, [node]) for loop in loops)

    def _is_stored(self, node: ast.expr) -> bool:
        """Whether an expression gives what is stored: an item of the target, or the target itself."""
        if self.of_items:
            return isinstance(node, ast.Subscript) and path_of(node.value) == self.path
        return path_of(node) == self.path

    def _goes_through(self, through: ast.expr) -> bool:
        parts = through.args if isinstance(through, ast.Call) and last_name(through.func) in _THROUGH else [through]
        return any(path_of(part) == self.path for part in parts)


def path_of(node: ast.expr) -> Path:
    """Of `self.history['loss']` the last name, and the keys that the source shows."""
    keys: list[str] = []
    while isinstance(node, ast.Subscript):
        keys.append(key_of(node.slice) or "")
        node = node.value
    return (last_name(node), *reversed(keys))


def _is_variable(node: ast.expr) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name)


def _reads(target: ast.expr, inside: Sequence[ast.AST]) -> bool:
    """Whether an attribute of a loop's variable is read."""
    names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
        for one in inside
        for node in ast.walk(one)
    )


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    return (part for part in ast.walk(node) if isinstance(part, ast.expr))
