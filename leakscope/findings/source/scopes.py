"""Resolves which object of a reference path an expression of the source means."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import PurePosixPath

from leakscope.findings.model import Hop
from leakscope.findings.source.index import (
    ADDERS,
    OWNERS,
    FoundNode,
    ParsedFile,
    Scope,
    Sources,
    class_of,
    default_of,
    ends_with,
    file_of,
    is_cell,
    is_file,
    is_item,
    is_module,
    is_static,
    key_of,
    last_name,
    related,
    same_key,
)
from leakscope.graph.model import ObjectKind

Places = frozenset[int]
"""Positions of objects on the trace."""
NOWHERE: Places = frozenset()

STEPS = 3
"""Assignments, attributes and parameters followed from a name to its meaning: `log = self.history`."""
CALLS = 2
"""Calls followed from a name on the trace: `train(history)`, which calls `keep(history, loss)`."""
_DEEPEST = 30
"""Attributes and items of one expression: programs have three or four."""
_RUNS = (ObjectKind.FRAME, ObjectKind.GENERATOR)
_LIBRARYS = ("grad", "data", "weight", "bias", "state", "param_groups", "defaults", "args", "_base")
"""Attributes of torch's and Python's objects: they say nothing about the meaning of a name."""
_ITEM_METHODS = ("setdefault", "get", "__getitem__")


class Meaning:
    """The objects of one trace, and the expressions of the kept sources that refer to them."""

    def __init__(self, trace: Sequence[Hop], sources: Sources, in_cycle: bool = False, loosely: bool = False) -> None:
        """`in_cycle`: nothing leads to the objects from a root, so that whoever creates one refers to it. `loosely`: an
        attribute of the right name on anything that is not known to be something else counts as the one on the
        trace.
        """
        self.trace = trace
        self.sources = sources
        self.in_cycle = in_cycle
        self._loosely = loosely
        self._known: dict[tuple[int, int], Places] = {}
        self._handed: dict[tuple[str, int | str], Places] = {}
        self._kin: dict[tuple[int, int], bool] = {}

    def of(self, node: ast.expr, scope: Scope, steps: int = STEPS, deep: int = 0) -> Places:
        """Positions of the objects that the expression may refer to; empty for none."""
        if deep > _DEEPEST:
            return NOWHERE
        known = self._known.get((id(node), steps))
        if known is None:
            self._known[id(node), steps] = NOWHERE  # a recursive meaning adds nothing
            known = self._known[id(node), steps] = self.everywhere(self._of(node, scope, steps, deep))
        return known

    def everywhere(self, places: Places) -> Places:
        """All positions of the same objects: a cycle's trace passes one of them twice."""
        indexes = {self.trace[k].index for k in places if k < len(self.trace)} - {None}
        return places | {k for k, hop in enumerate(self.trace) if hop.index in indexes}

    def _of(self, node: ast.expr, scope: Scope, steps: int, deep: int) -> Places:
        if isinstance(node, ast.Name):
            return self._of_name(node.id, scope, steps, deep)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, scope, steps, deep)
        if isinstance(node, ast.Subscript):
            return self._items(self.of(node.value, scope, steps, deep + 1), key_of(node.slice))
        if isinstance(node, ast.Call):
            return self._of_call(node, scope, steps, deep)
        if isinstance(node, (ast.NamedExpr, ast.Await)):
            return self.of(node.value, scope, steps, deep + 1)
        if isinstance(node, ast.BoolOp):
            return NOWHERE.union(*(self.of(value, scope, steps, deep + 1) for value in node.values))
        if isinstance(node, ast.IfExp):
            return self.of(node.body, scope, steps, deep + 1) | self.of(node.orelse, scope, steps, deep + 1)
        return NOWHERE

    def bound_by(self, target: ast.expr, scope: Scope) -> Places:
        """Positions of the objects that an assignment to this target replaces on the trace."""
        return self.everywhere(self._bound_by(target, scope))

    def _bound_by(self, target: ast.expr, scope: Scope) -> Places:
        if isinstance(target, ast.Name):
            owner = scope.owner(target.id)
            return self._variable(target.id, owner) if owner is not None and target.id in owner.bound else NOWHERE
        if not isinstance(target, ast.Attribute):
            return NOWHERE
        above = self.of(target.value, scope)
        if not above and self._loosely and not self._is_known(target.value, scope):
            return self._by_attribute(target.attr)
        return frozenset(k + 1 for k in above if self._is_attribute(k, target.attr))

    def _is_attribute(self, place: int, name: str) -> bool:
        """Whether an object of the trace holds the next one by an attribute of this name."""
        hop, reference = self.trace[place], self._reference(place)
        if reference == f".{name}" or (reference == name and hop.kind == ObjectKind.GRAD_NODE):
            return True
        # the fields of a named tuple are items
        return hop.kind == ObjectKind.CONTAINER and bool(file_of(hop)) and bool(re.fullmatch(r"\[(\d+|i)\]", reference))

    def _by_attribute(self, attribute: str) -> Places:
        """The referent of an attribute of this name, on any object."""
        return frozenset(
            k + 1
            for k, hop in enumerate(self.trace)
            if hop.kind in (*OWNERS, ObjectKind.GRAD_NODE)
            and attribute not in _LIBRARYS
            and self._is_attribute(k, attribute)
        )

    def _of_name(self, name: str, scope: Scope, steps: int, deep: int) -> Places:
        owner = scope.owner(name)
        if owner is None:
            return self._variable(name, scope.module) if is_cell(scope.file) else NOWHERE
        if name in owner.imported:
            return self._of_import(owner.imported[name])
        found = self._variable(name, owner) | self._itself(name, owner)
        if found or steps <= 0:
            return found
        for binding in owner.bound.get(name, ()):
            means = self.of(binding.value, owner, steps - 1, deep + 1)
            found |= self._items(means, None) if binding.of_item else means
        if not found and name in (*owner.parameters, *owner.keywords):
            found = self._given(name, owner)
        return found

    def _variable(self, name: str, owner: Scope) -> Places:
        """The referent of a local, closure variable or global of this name on the trace."""
        found = set()
        for place, hop in enumerate(self.trace):
            if owner.is_class:
                if hop.kind == ObjectKind.CLASS and hop.reference == f".{name}" and self._related(place, owner):
                    found.add(place + 1)
            elif hop.kind == ObjectKind.NAMESPACE:
                if not owner.outer and hop.reference == f".{name}" and is_module(hop, owner.file):
                    found.add(place + 1)
            elif hop.name == owner.name or hop.name.startswith(f"{owner.name}.<locals>."):
                if owner.outer is None or not is_file(hop, owner.file):
                    continue
                if hop.reference == f"closure {name}" or (hop.kind in _RUNS and hop.reference == f"local {name}"):
                    found.add(place + 1)
                elif hop.name == owner.name and hop.kind == ObjectKind.FUNCTION:
                    found |= default_of(self.trace, place, name, owner)
        return frozenset(found)

    def _itself(self, name: str, owner: Scope) -> Places:
        """`self` and `cls` in the methods of a class on the trace, and a class by its name."""
        found = set()
        around = owner.outer
        for place, hop in enumerate(self.trace):
            kind = class_of(hop)
            if not kind:
                continue
            if hop.kind == ObjectKind.CLASS and name == kind and name in owner.bound and is_file(hop, owner.file):
                found.add(place)
            if around is not None and around.is_class and owner.parameters[:1] == (name,):
                static = is_static(owner) and hop.kind != ObjectKind.GRAD_NODE
                if not static and self._related(place, around):
                    found.add(place)
        return frozenset(found)

    def _related(self, place: int, around: Scope) -> bool:
        key = place, id(around)
        if key not in self._kin:
            self._kin[key] = related(self.trace[place], around, self.sources)
        return self._kin[key]

    def _of_attribute(self, node: ast.Attribute, scope: Scope, steps: int, deep: int) -> Places:
        above = self.of(node.value, scope, steps, deep + 1)
        found = frozenset(k + 1 for k in above if self._is_attribute(k, node.attr))
        if found:
            return found
        if steps > 0 and (means := self._given_to_self(node, scope, steps, deep)):
            return means
        if not above and self._loosely and not self._is_known(node.value, scope):
            return self._by_attribute(node.attr)
        return NOWHERE

    def _given_to_self(self, node: ast.Attribute, scope: Scope, steps: int, deep: int) -> Places:
        """The meaning of `self.history` if a method has `self.history = history`, and `history` is on the trace."""
        if not isinstance(node.value, ast.Name):
            return NOWHERE
        owner = scope.owner(node.value.id)
        around = owner.outer if owner is not None else None
        if owner is None or around is None or not around.is_class or owner.parameters[:1] != (node.value.id,):
            return NOWHERE
        parsed = self.sources.file(scope.file)
        stored = parsed.stored_in_self.get((around, node.attr), []) if parsed is not None else []
        return NOWHERE.union(*(self.of(value, method, steps - 1, deep + 1) for method, value in stored))

    def _is_known(self, node: ast.expr, scope: Scope) -> bool:
        """Whether this is certainly not an object of the trace: what it starts from is on it, or is a module, or `self`
        of another class.
        """
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name):
            return False
        owner = scope.owner(node.id)
        if owner is None or node.id in owner.imported or self.of(node, scope):
            return True
        around = owner.outer
        return around is not None and around.is_class and owner.parameters[:1] == (node.id,)

    def _of_call(self, node: ast.Call, scope: Scope, steps: int, deep: int) -> Places:
        if isinstance(node.func, ast.Attribute):
            above = NOWHERE
            if node.func.attr in _ITEM_METHODS and node.args:
                above = self.of(node.func.value, scope, steps, deep + 1)
                return self._items(above, key_of(node.args[0]))
            if node.func.attr in ("values", "items") and not node.args:
                return self.of(node.func.value, scope, steps, deep + 1)
        named = isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1
        if named and isinstance(node.args[1], ast.Constant):
            attribute = ast.Attribute(node.args[0], str(node.args[1].value), ast.Load())
            return self._of_attribute(attribute, scope, steps, deep + 1)
        if self.in_cycle or self._loosely:
            made = last_name(node.func)
            return frozenset(
                k
                for k, hop in enumerate(self.trace)
                if hop.kind != ObjectKind.CLASS and file_of(hop) and made == class_of(hop) != ""
            )
        return NOWHERE

    def _given(self, name: str, owner: Scope) -> Places:
        """What the followed calls pass for a parameter of a function."""
        own = owner.name.rpartition(".")[2]
        of_class = owner.outer is not None and owner.outer.is_class
        called = owner.outer.name.rpartition(".")[2] if own == "__init__" and owner.outer is not None else own
        position = owner.parameters.index(name) if name in owner.parameters else -1
        if of_class and not is_static(owner):
            position -= 1
        return self._handed.get((called, position), NOWHERE) | self._handed.get((called, name), NOWHERE)

    def follow(self, files: Sequence[ParsedFile]) -> list[ParsedFile]:
        """Record what the calls in some files pass on; return those files, and the files of the called functions."""
        for _ in range(CALLS):
            for one in (one for parsed in files for one in parsed.found if isinstance(one.node, ast.Call)):
                self._hand(one, one.node)
            self._known.clear()
            names = "|".join(sorted({re.escape(called) for called, _ in self._handed}))
            more = self.sources.matching(rf"(?<!\w)(def|class)\s+({names})(?!\w)") if names else []
            files = list(dict.fromkeys([*files, *more]))
        return list(files)

    def _hand(self, one: FoundNode, call: ast.AST) -> None:
        called = last_name(call.func) if isinstance(call, ast.Call) else ""
        if not isinstance(call, ast.Call) or not called or called in ADDERS:
            return
        given: list[tuple[int | str, ast.expr]] = [(k.arg, k.value) for k in call.keywords if k.arg is not None]
        given += enumerate(takewhile(lambda argument: not isinstance(argument, ast.Starred), call.args))
        for place, value in given:
            if isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)) and (means := self.of(value, one.scope)):
                self._handed[called, place] = self._handed.get((called, place), NOWHERE) | means

    def _of_import(self, dotted: str) -> Places:
        """A module on the trace, or a global of one."""
        module, _, name = dotted.rpartition(".")
        found = set()
        for place, hop in enumerate(self.trace):
            if hop.kind == ObjectKind.NAMESPACE and hop.name == dotted:
                found.add(place)
            elif hop.kind == ObjectKind.NAMESPACE and hop.reference == f".{name}" and ends_with(hop.name, module):
                found.add(place + 1)
            elif hop.kind == ObjectKind.CLASS and ends_with(hop.name, dotted):
                found.add(place)
        return frozenset(found)

    def _items(self, above: Places, key: str | None) -> Places:
        """The items of objects; only those of one key if both source and trace show it."""
        return frozenset(k + 1 for k in above if is_item(self._reference(k)) and same_key(self._reference(k), key))

    def _reference(self, place: int) -> str:
        return self.trace[place].reference if place < len(self.trace) else ""


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MOST = 3
"""Maximum suggested names. Heuristic: fits on one line."""
_LIKE = 0.5
"""Minimum ratio of difflib for similar names; its default of 0.6 misses `step` for `train_step`."""


def functions_in(tree: ast.AST, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Each function, by its name and those of the enclosing classes and functions: `Trainer.training_step`."""
    for node in ast.iter_child_nodes(tree):
        within = (*above, node.name) if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) else above
        if isinstance(node, _FUNCTIONS):
            yield ".".join(within)
        yield from functions_in(node, within)


def like(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Names that may have been meant, the most similar first."""
    last = name.rpartition(".")[2].lower()
    lasts = {has: has.rpartition(".")[2].lower() for has in names}
    close = get_close_matches(name, names, _MOST, _LIKE)
    close += [has for has, its in lasts.items() if its == last or get_close_matches(last, [its], 1, _LIKE)]
    return tuple(dict.fromkeys(close))[:_MOST]


def like_in(name: str, sources: Mapping[str, Sequence[str]], script: str) -> tuple[str, ...]:
    """Similar names in all kept files; a function outside the `script` is prefixed with its module."""
    names = []
    for file, lines in sources.items():
        try:
            tree = ast.parse("\n".join(lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        is_script = PurePosixPath(file).name == PurePosixPath(script).name
        module = "" if is_script else f"{PurePosixPath(file).with_suffix('').as_posix().replace('/', '.')}."
        names += [f"{module}{function}" for function in functions_in(tree)]
    return like(name, names)
