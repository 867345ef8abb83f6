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


class Sources:
    """The kept files; each is parsed when it is first asked for, and once."""

    def __init__(self, kept: Mapping[str, Sequence[str]]) -> None:
        self._texts = {name: "\n".join(lines) for name, lines in kept.items()}
        self._parsed: dict[str, ParsedFile | None] = {}
        self._matching: dict[str, tuple[str, ...]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The files, by their names."""
        return tuple(self._texts)

    def containing(self, word: str) -> list[ParsedFile]:
        """The files in whose text a word stands, as it is, between characters that are none of a name's."""
        return self.matching(rf"(?<!\w){re.escape(word)}(?!\w)")

    def matching(self, pattern: str, at_most: int | None = None) -> list[ParsedFile]:
        """The files in whose text a regular expression matches; none where that are more than `at_most`."""
        if pattern not in self._matching:
            found = re.compile(pattern)
            self._matching[pattern] = tuple(name for name, text in self._texts.items() if found.search(text))
        names = self._matching[pattern]
        if at_most is not None and len(names) > at_most:
            return []
        return [parsed for parsed in map(self.file, names) if parsed is not None]

    def file(self, name: str) -> ParsedFile | None:
        """One file by its name; None where it was not kept or is no Python."""
        if name not in self._parsed:
            text = self._texts.get(name)
            self._parsed[name] = None if text is None else parse(name, text)
        return self._parsed[name]

    def of_line(self, name: str) -> ParsedFile | None:
        """The file that a line of a trace is in, by the end of its name where that is written otherwise."""
        alike = [kept for kept in self._texts if kept == name or kept.endswith("/" + name) or name.endswith("/" + kept)]
        return self.file(name if name in self._texts else alike[0]) if len(alike) == 1 or name in self._texts else None

    @cached_property
    def _classes(self) -> Mapping[str, tuple[frozenset[str], tuple[str, ...]]]:
        """Names of the classes of all files, each with those of its bases and the files it is in, as their text shows
        them.
        """
        found: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {}
        for file, text in self._texts.items():
            for name, bases in _CLASS.findall(text):
                names = (base.partition("[")[0].strip().rpartition(".")[2] for base in bases.split(","))
                known, files = found.get(name, (frozenset(), ()))
                found[name] = known | frozenset(names) - {"", name}, (*files, file)
        return found

    def bases(self, name: str) -> set[str]:
        """Names of the classes above one, its own left out."""
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
        """The files of a class, of those above it and of those below."""
        above = {name, *self.bases(name)}
        names = (kin for kin in self._classes if kin in above or name in self.bases(kin))
        files = dict.fromkeys(file for kin in names for file in self._classes[kin][1])
        return [parsed for parsed in map(self.file, files) if parsed is not None]


_CLASS = re.compile(r"^[ \t]*class[ \t]+(\w+)[ \t]*(?:\(([^()]*))?", re.MULTILINE)


OWNERS = (*INSTANCES, ObjectKind.TENSOR, ObjectKind.PARAMETER)
"""Kinds of objects that a class in the source may give attributes."""
_NODE_SUFFIX = "Backward"
"""torch names the grad nodes of a Function so (torch/autograd/function.py, FunctionMeta)."""
_FIRST = (
    *("append", "appendleft", "add", "extend", "extendleft", "put", "put_nowait", "push", "send", "update"),
    *("__iadd__", "__ior__"),
)
_SECOND = ("insert", "setdefault", "__setitem__")
BY_NAME = ("register_buffer", "register_parameter", "register_module", "add_module", "setattr")
"""Of nn.Module (torch/nn/modules/module.py), and Python's own: they are told a name and what is to have it."""
ADDERS = {
    **dict.fromkeys(_FIRST, 0),
    **dict.fromkeys((*_SECOND, *BY_NAME), 1),
    "add_param_group": 0,
}
"""Methods that put an argument into the object they are called on, and which one."""


def file_of(hop: Hop) -> str:
    """The source file that a hop's line is in, "" where it has none."""
    return file_at(hop.where)


def class_of(hop: Hop) -> str:
    """The class that an object is an instance of, or is, without its module; "" where it has none of the user's."""
    if hop.kind == ObjectKind.GRAD_NODE:
        return hop.type.removesuffix(_NODE_SUFFIX)
    if hop.kind == ObjectKind.CLASS:
        return hop.name.rpartition(".")[2]
    return hop.type.rpartition(".")[2] if hop.kind in OWNERS else ""


def last_name(node: ast.expr) -> str:
    """`append` of `self.rows.append`, "" of what has no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_item(reference: str) -> bool:
    """Whether a reference of a trace leads to an item: `[i]`, `['loss']`, `key <Tensor>`."""
    return reference.startswith(("[", "key ", "{")) or reference == "(unnamed)"


def key_of(node: ast.expr) -> str | None:
    """`['loss']` for a key or a place that the source shows; None where it is worked out."""
    return f"[{node.value!r}]" if isinstance(node, ast.Constant) else None


def same_key(reference: str, key: str | None) -> bool:
    """Whether an item of the trace can be the one of a key in the source; both may tell none."""
    literal = re.fullmatch(r"\['.*'\]|\[\d+\]", reference)
    return key is None or literal is None or key == reference


def is_static(function: Scope) -> bool:
    """Whether a method has no `self`."""
    decorators = getattr(function.node, "decorator_list", [])
    return any(last_name(decorator) == "staticmethod" for decorator in decorators)


def is_file(hop: Hop, file: str) -> bool:
    """Whether an object's line may be in this file: also where it has none."""
    own = file_of(hop)
    return not own or own == file or own.endswith("/" + file) or file.endswith("/" + own)


def ends_with(dotted: str, end: str) -> bool:
    """Whether a dotted name is another one, or that in a package."""
    return bool(end) and (dotted == end or dotted.endswith("." + end))


def related(hop: Hop, around: Scope, sources: Sources) -> bool:
    """Whether a class of the source is the object's own, or above or below it."""
    own = around.name.rpartition(".")[2]
    kind = class_of(hop)
    if own == kind:
        return is_file(hop, around.file) or not file_of(hop)
    return kind in sources.bases(own) or own in sources.bases(kind)


def is_cell(file: str) -> bool:
    """Whether a file is a notebook's cell: all of them share their globals."""
    return file.startswith("In[")


def is_module(hop: Hop, file: str) -> bool:
    """Whether this namespace is that of a file."""
    if hop.name == "__main__":
        return is_file(hop, file) or (is_cell(file) and (is_cell(file_of(hop)) or not file_of(hop)))
    path = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return ends_with(path, hop.name) or ends_with(hop.name, path)


def default_of(trace: Sequence[Hop], place: int, name: str, owner: Scope) -> frozenset[int]:
    """The default of a parameter, which its function holds in a tuple or a dict."""
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
