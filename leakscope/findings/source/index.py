"""An index of the kept source: statements, the functions around them, and what names are bound to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from leakscope.findings.model import Hop
from leakscope.findings.naming import INSTANCES, file_at
from leakscope.graph.model import ObjectKind

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_MAX_NODES = 400_000
"""Maximum nodes of a file that is analysed: only generated files have more."""


@dataclass(frozen=True)
class Binding:
    """The value that one statement binds to a name."""

    value: ast.expr
    of_item: bool = False
    """Whether the name is bound to the items of the value, one after the other."""


@dataclass(eq=False)
class Scope:
    """A module, class or function, with the names that it binds."""

    node: ast.AST
    name: str
    """Qualified name as in CPython (PEP 3155); "" for a module."""
    outer: Scope | None
    file: str
    bound: dict[str, list[Binding]] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    """Name, mapped to the dotted name that it was imported as."""
    elsewhere: set[str] = field(default_factory=set)
    """Names declared `global` or `nonlocal`."""

    @property
    def is_class(self) -> bool:
        """Whether its names are not variables of the functions inside."""
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
        """Names of all parameters that can be passed by name."""
        if not isinstance(self.node, _FUNCTIONS):
            return ()
        given = self.node.args
        return tuple(a.arg for a in (*given.args, *given.kwonlyargs))

    @property
    def module(self) -> Scope:
        """The outermost enclosing scope."""
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope

    def owner(self, name: str) -> Scope | None:
        """The scope of a variable that is read here; None if no scope binds it."""
        scope: Scope | None = self
        while scope is not None:
            own = name in scope.bound or name in scope.imported or name in (*scope.parameters, *scope.keywords)
            if own and name not in scope.elsewhere and (not scope.is_class or scope is self):
                return scope
            scope = scope.outer
        return None


@dataclass(frozen=True, eq=False)
class FoundNode:
    """One node of a file and its position."""

    node: ast.AST
    scope: Scope
    statement: ast.stmt
    loops: tuple[ast.stmt, ...]
    """The loops around it within its function, innermost last."""


@dataclass(frozen=True, eq=False)
class ParsedFile:
    """One source file that Python can parse."""

    name: str
    lines: tuple[str, ...]
    found: tuple[FoundNode, ...]
    """Every call, assignment, `del`, function and `with`, in file order."""
    scopes: tuple[Scope, ...]
    reads: Mapping[str, Sequence[tuple[ast.expr, Scope]]]
    """Name of a variable or attribute, mapped to each place that reads it."""

    @property
    def module(self) -> Scope:
        """The outermost scope."""
        return self.scopes[0]

    @cached_property
    def _above(self) -> Mapping[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.module.node) for child in ast.iter_child_nodes(node)}

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The enclosing nodes, innermost first, up to its function or the module."""
        while node in self._above:
            node = self._above[node]
            yield node
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                return

    @cached_property
    def stored_in_self(self) -> Mapping[tuple[Scope, str], list[tuple[Scope, ast.expr]]]:
        """Class and attribute, mapped to what methods assign to it, each with the method: of `self.rows = rows`."""
        stored: dict[tuple[Scope, str], list[tuple[Scope, ast.expr]]] = {}
        for one in self.found:
            own, around = one.scope.parameters[:1], one.scope.outer
            for target, value in pairs(one.node):
                if around is not None and isinstance(target, ast.Attribute) and own == (_name(target.value),):
                    stored.setdefault((around, target.attr), []).append((one.scope, value))
        return stored


def parse(name: str, text: str) -> ParsedFile | None:
    """Parse a file; None if Python cannot: newer syntax, nesting too deep, or not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    module = Scope(tree, "", None, name)
    scopes, found = [module], []
    reads: dict[str, list[tuple[ast.expr, Scope]]] = {}
    waiting: list[tuple[ast.AST, Scope, ast.stmt | None, tuple[ast.stmt, ...]]] = [(tree, module, None, ())]
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        node, scope, statement, loops = waiting.pop()
        if isinstance(node, ast.stmt):
            statement = node
        if statement is not None and isinstance(node, _KEPT):
            found.append(FoundNode(node, scope, statement, loops))
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
    """The scope of a node's children."""
    if not isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
        return scope
    own = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    return Scope(node, qualified(scope, own), scope, scope.file)


def qualified(scope: Scope, own: str) -> str:
    """The qualified name of a function or class in a scope."""
    if not scope.name:
        return own
    return f"{scope.name}.{own}" if scope.is_class else f"{scope.name}.<locals>.{own}"


def _bind(node: ast.AST, scope: Scope) -> None:
    """Record what a node binds in its scope."""
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
    for name in ast.walk(target):  # unpacked in a way that is not followed: bound to an unknown value
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
            scope.bound.setdefault(name.id, [])


def _item_of_pairs(value: ast.expr, target: ast.Tuple) -> tuple[ast.expr, ast.expr]:
    """(iterable, name of its items) for `for k, v in d.items()` and `for i, x in enumerate(rows)`."""
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
    """(target, value) of an assignment, those of `a, b = x, y` one by one."""
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


class Sources:
    """The kept files; each is parsed once, on first use."""

    def __init__(self, kept: Mapping[str, Sequence[str]]) -> None:
        self._texts = {name: "\n".join(lines) for name, lines in kept.items()}
        self._parsed: dict[str, ParsedFile | None] = {}
        self._matching: dict[str, tuple[str, ...]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files."""
        return tuple(self._texts)

    def containing(self, word: str) -> list[ParsedFile]:
        """The files whose text contains a word, as a whole name."""
        return self.matching(rf"(?<!\w){re.escape(word)}(?!\w)")

    def matching(self, pattern: str, at_most: int | None = None) -> list[ParsedFile]:
        """The files whose text matches a regular expression; empty if there are more than `at_most`."""
        if pattern not in self._matching:
            found = re.compile(pattern)
            self._matching[pattern] = tuple(name for name, text in self._texts.items() if found.search(text))
        names = self._matching[pattern]
        if at_most is not None and len(names) > at_most:
            return []
        return [parsed for parsed in map(self.file, names) if parsed is not None]

    def file(self, name: str) -> ParsedFile | None:
        """One file by its name; None if it was not kept or is not Python."""
        if name not in self._parsed:
            text = self._texts.get(name)
            self._parsed[name] = None if text is None else parse(name, text)
        return self._parsed[name]

    def of_line(self, name: str) -> ParsedFile | None:
        """The file of a trace's line, matched by the end of its name if it is written differently."""
        alike = [kept for kept in self._texts if kept == name or kept.endswith("/" + name) or name.endswith("/" + kept)]
        return self.file(name if name in self._texts else alike[0]) if len(alike) == 1 or name in self._texts else None

    @cached_property
    def _classes(self) -> Mapping[str, tuple[frozenset[str], tuple[str, ...]]]:
        """Names of the classes of all files, each with its bases and files, according to their text."""
        found: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {}
        for file, text in self._texts.items():
            for name, bases in _CLASS.findall(text):
                names = (base.partition("[")[0].strip().rpartition(".")[2] for base in bases.split(","))
                known, files = found.get(name, (frozenset(), ()))
                found[name] = known | frozenset(names) - {"", name}, (*files, file)
        return found

    def bases(self, name: str) -> set[str]:
        """Names of the base classes of one, without its own."""
        above: set[str] = set()
        waiting = [name]
        while waiting:
            new = self._classes.get(waiting.pop(), (frozenset(), ()))[0] - above
            above |= new
            waiting += new
        return above

    def has_class(self, name: str) -> bool:
        """Whether a kept file has a class of this name."""
        return name in self._classes

    def files_of_class(self, name: str) -> list[ParsedFile]:
        """The files of a class, its bases and its subclasses."""
        above = {name, *self.bases(name)}
        names = (kin for kin in self._classes if kin in above or name in self.bases(kin))
        files = dict.fromkeys(file for kin in names for file in self._classes[kin][1])
        return [parsed for parsed in map(self.file, files) if parsed is not None]


_CLASS = re.compile(r"^[ \t]*class[ \t]+(\w+)[ \t]*(?:\(([^()]*))?", re.MULTILINE)


OWNERS = (*INSTANCES, ObjectKind.TENSOR, ObjectKind.PARAMETER)
"""Kinds of objects whose attributes a class in the source may set."""
_NODE_SUFFIX = "Backward"
"""Suffix that torch gives the grad nodes of a Function (torch/autograd/function.py, FunctionMeta)."""
_FIRST = (
    *("append", "appendleft", "add", "extend", "extendleft", "put", "put_nowait", "push", "send", "update"),
    *("__iadd__", "__ior__"),
)
_SECOND = ("insert", "setdefault", "__setitem__")
BY_NAME = ("register_buffer", "register_parameter", "register_module", "add_module", "setattr")
"""Methods of nn.Module (torch/nn/modules/module.py), and Python's, that take a name and its value."""
ADDERS = {
    **dict.fromkeys(_FIRST, 0),
    **dict.fromkeys((*_SECOND, *BY_NAME), 1),
    "add_param_group": 0,
}
"""Methods that add an argument to their object, and which argument."""


def file_of(hop: Hop) -> str:
    """The source file of a hop's line, "" without one."""
    return file_at(hop.where)


def class_of(hop: Hop) -> str:
    """The class of an object, or the object itself if it is one, without its module; "" if it is not the user's."""
    if hop.kind == ObjectKind.GRAD_NODE:
        return hop.type.removesuffix(_NODE_SUFFIX)
    if hop.kind == ObjectKind.CLASS:
        return hop.name.rpartition(".")[2]
    return hop.type.rpartition(".")[2] if hop.kind in OWNERS else ""


def last_name(node: ast.expr) -> str:
    """`append` of `self.rows.append`, "" without a name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_item(reference: str) -> bool:
    """Whether a reference of a trace leads to an item: `[i]`, `['loss']`, `key <Tensor>`."""
    return reference.startswith(("[", "key ", "{")) or reference == "(unnamed)"


def key_of(node: ast.expr) -> str | None:
    """`['loss']` for a key or position that the source shows; None if it is computed."""
    return f"[{node.value!r}]" if isinstance(node, ast.Constant) else None


def same_key(reference: str, key: str | None) -> bool:
    """Whether an item of the trace can be that of a key in the source; both may be unknown."""
    literal = re.fullmatch(r"\['.*'\]|\[\d+\]", reference)
    return key is None or literal is None or key == reference


def is_static(function: Scope) -> bool:
    """Whether a method has no `self`."""
    decorators = getattr(function.node, "decorator_list", [])
    return any(last_name(decorator) == "staticmethod" for decorator in decorators)


def is_file(hop: Hop, file: str) -> bool:
    """Whether an object's line may be in this file; also if it has none."""
    own = file_of(hop)
    return not own or own == file or own.endswith("/" + file) or file.endswith("/" + own)


def ends_with(dotted: str, end: str) -> bool:
    """Whether a dotted name is another one, or that in a package."""
    return bool(end) and (dotted == end or dotted.endswith("." + end))


def related(hop: Hop, around: Scope, sources: Sources) -> bool:
    """Whether a class of the source is the object's own, a base or a subclass."""
    own = around.name.rpartition(".")[2]
    kind = class_of(hop)
    if own == kind:
        return is_file(hop, around.file) or not file_of(hop)
    return kind in sources.bases(own) or own in sources.bases(kind)


def is_cell(file: str) -> bool:
    """Whether a file is a notebook's cell: all cells share their globals."""
    return file.startswith("In[")


def is_module(hop: Hop, file: str) -> bool:
    """Whether this namespace is that of a file."""
    if hop.name == "__main__":
        return is_file(hop, file) or (is_cell(file) and (is_cell(file_of(hop)) or not file_of(hop)))
    path = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return ends_with(path, hop.name) or ends_with(hop.name, path)


def default_of(trace: Sequence[Hop], place: int, name: str, owner: Scope) -> frozenset[int]:
    """The default of a parameter, which its function holds in a tuple or dict."""
    hop, below = trace[place], trace[place + 1 : place + 2]
    arguments = owner.node.args if isinstance(owner.node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    if arguments is None or not below:
        return frozenset()
    key = below[0].reference
    if hop.reference == ".__defaults__":
        with_default = owner.parameters[len(owner.parameters) - len(arguments.defaults) :]
        index = with_default.index(name) if name in with_default else None
        return frozenset({place + 2}) if index is not None and key in (f"[{index}]", "[i]") else frozenset()
    return frozenset({place + 2}) if hop.reference == ".__kwdefaults__" and key == f"['{name}']" else frozenset()
