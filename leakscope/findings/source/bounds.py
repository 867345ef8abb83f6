"""Containers that the source empties or bounds: calls, loops, and the line that does it."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from leakscope.findings.candidates import MOST_OF_MEMORY
from leakscope.findings.facts import Bounded, EmptiedLater, FreedBy, Severity, TooLarge
from leakscope.findings.model import CutReference, Finding, Hop
from leakscope.findings.rules import rule_named
from leakscope.findings.rules.worker_growth import WorkerGrowthFacts
from leakscope.findings.source.index import FoundNode, Scope, Sources, is_item, is_static, last_name, pairs
from leakscope.findings.source.scopes import Meaning
from leakscope.findings.source.stores import Store, files_naming, gaining, mentions, on_trace
from leakscope.findings.source.uses import Uses
from leakscope.findings.thresholds import memory_there
from leakscope.graph.model import ObjectKind
from leakscope.graph.ownership import is_library_line
from leakscope.run.model import Run
from leakscope.run.rows import MadeBy

_DEEPEST = 8
"""Calls followed from a line up to the module: a trainer that calls its own methods has five or six."""
_MOST = 8
"""Callers of one function that are followed. Heuristic: a function with more is not followed."""
_CALLED_BY_TORCH = ("forward", "backward", "step", "zero_grad", "train", "eval", "setup_context")
_TORCHS = frozenset(("Module", "Dataset", "IterableDataset", "Sampler", "Optimizer", "Function", "object", "ABC"))
"""Bases of which libraries call only the methods above and those with two underscores."""
_PLAIN = frozenset(("Protocol", "Generic", "NamedTuple", "Enum", "Exception", "dict", "list", "deque", "OrderedDict"))
_CALLED_BY_LIBRARY = re.compile(r"on_\w+|\w+_(end|start|begin|step)|reset|compute|update|setup|teardown|close|run")
"""Methods that trainers and metrics call on subclasses of theirs: Lightning's hooks, torchmetrics' reset."""


class CallGraph:
    """The calls among the functions of the kept files."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._of: dict[int, tuple[FoundNode, ...]] = {}
        self._reached: dict[int, bool] = {}

    def is_reached(self, scope: Scope) -> bool:
        """Whether anything runs the code of a scope: the module, a name read in code that is itself run, or a library
        that calls methods of this name.
        """
        if id(scope) not in self._reached:
            self._reached[id(scope)] = False  # a function that only calls itself is unreachable
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
            return True  # the effect of a decorator on it is unknown
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

    def of(self, scope: Scope) -> tuple[FoundNode, ...]:
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

    def call_chains(self, one: FoundNode, deep: int = _DEEPEST) -> list[tuple[FoundNode, ...]]:
        """A line, the call of its function, the call of that function and so on, up to the module; for each caller."""
        callers = self.of(one.scope)[:_MOST] if deep and one.scope.outer is not None else ()
        if not callers:
            return [(one,)]
        return [(one, *chain) for call in callers for chain in self.call_chains(call, deep - 1)][:_MOST]

    def is_followed(self, chain: Sequence[FoundNode]) -> bool:
        """Whether a call chain leads to the module: otherwise a library, thread or callback may be the caller."""
        return chain[-1].scope.outer is None


def loops_of(chain: Sequence[FoundNode]) -> list[tuple[ast.stmt, Scope]]:
    """The loops in which a line runs through this call chain, innermost first."""
    return [(loop, one.scope) for one in chain for loop in reversed(one.loops)]


def _may_be(node: ast.expr, reader: Scope, scope: Scope) -> bool:
    """Whether a name or attribute may refer to a function: methods are not read as plain names."""
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
    """The whole number of an expression, if the source shows it: a literal, a constant, a default that
    no call changes.
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
    """Possible values of a name or an attribute of `self`, each with its scope."""
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
    """Values that calls pass for a parameter, and its default for calls that do not."""
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


def _calls_by_name(own: str, sources: Sources) -> Iterable[FoundNode]:
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


_ALL = ("clear", "cache_clear")
"""Methods that remove everything."""
_ONE = ("pop", "popitem", "popleft", "remove", "discard", "get", "get_nowait", "task_done")
"""Methods that remove one item; `get` does only for a queue."""
QUEUES = ("Queue", "LifoQueue", "PriorityQueue", "SimpleQueue", "JoinableQueue")
_LENGTHS = ("len", "qsize", "currsize", "__len__", "full")
_BEGINS = ("__init__", "__new__", "__post_init__", "__set_name__", "setup")
"""Methods that run before an object gains anything."""
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise)
_EPOCH = re.compile(r"epoch|ep\b|trial|fold|round")
"""Names of counters of something longer than a step."""


@dataclass(frozen=True)
class Emptying:
    """A line that empties a container, or keeps it below a bound."""

    where: str
    bound: int | None = None
    """Items above which it takes effect; None if no number can be read."""
    every: int | None = None
    """Steps after which it takes effect, if they can be read."""
    is_decided: bool = True
    """Whether it takes effect at a length, a period or the end of a loop; False if its condition is of another kind."""
    is_for_all: bool = True
    """Whether it removes everything, rather than leaving a slice or a length."""


def emptied_at(
    finding: Finding, reference: CutReference, stores: Sequence[Store], sources: Sources
) -> tuple[Emptying, ...]:
    """The lines that empty what grows through one reference of a cut, in the order of the files.

    Lines count if a call leads to them, and if they do not run as often as the lines that add. Removing one item counts
    only under a test of the container's length, or in a loop over the container.
    """
    place, trace = on_trace(finding, reference)
    if place is None:
        return ()
    for loosely in (False, True):
        meaning = Meaning(trace, sources, loosely=loosely)
        search = _Search(meaning, place, stores, sources)
        if found := tuple(search.emptyings()):
            return tuple({one.where: one for one in found}.values())
    return ()


class _Search:
    """The search for one reference of a cut."""

    def __init__(self, meaning: Meaning, place: int, stores: Sequence[Store], sources: Sources) -> None:
        self._meaning, self._place, self._stores, self._sources = meaning, place, stores, sources
        self._files = files_naming(meaning, place, sources)
        self._calls = CallGraph(sources)
        trace = meaning.trace
        above = {place}
        while place and trace[place].kind == ObjectKind.CONTAINER and is_item(trace[place - 1].reference):
            place -= 1
            above.add(place)
        self._containers = gaining(trace, self._place) | frozenset(
            k for k in above if trace[k].kind == ObjectKind.CONTAINER
        )
        self._named = frozenset(range(1, self._place + 2))
        """Positions of what is released with everything below it when its name is rebound."""
        self._adding = [chain for store in stores for chain in self._calls.call_chains(store.found)]
        self._often = dict(loops[0] for chain in self._adding if (loops := loops_of(chain)))
        """The loops that add something in each iteration, with their scopes."""

    def emptyings(self) -> Iterator[Emptying]:
        for store in self._stores:
            yield from self._kept_below(store)
        for parsed in self._files:
            for one in parsed.found:
                yield from self._of(one)
        yield from self._returned()

    def _of(self, one: FoundNode) -> Iterator[Emptying]:
        kind = self._kind(one)
        if kind is None or not self._calls.is_reached(one.scope):
            return
        whole, kept = kind
        if any(store.found.statement is one.statement for store in self._stores):
            if kept is not None:  # `x = [*x[-9:], new]`
                yield Emptying(f"{one.scope.file}:{one.statement.lineno}", bound=kept, is_for_all=False)
            return
        call_chains = self._calls.call_chains(one)
        if not any(self._runs_as_often(chain) for chain in call_chains) or kept is not None:
            yield from (
                found
                for chain in call_chains
                if self._runs_between(chain)
                for found in self._by_chain(chain, whole, kept)
            )

    def _runs_as_often(self, chain: Sequence[FoundNode]) -> bool:
        """Whether each iteration of an adding loop removes something: what grows nevertheless is not bounded by it."""
        in_loop = any(loop in self._often for loop, _ in loops_of(chain))
        return in_loop and not any(True for each in chain for _ in self._tests(each))

    def _runs_between(self, chain: Sequence[FoundNode]) -> bool:
        """Whether it runs again between additions: in a loop that also adds. What a library calls, or what adds through
        a library, may.
        """
        if any(self._is_at_the_end(one) or one.scope.name.rpartition(".")[2] in _BEGINS for one in chain):
            return False
        if not self._calls.is_followed(chain):
            return True
        followed = [adding for adding in self._adding if self._calls.is_followed(adding)]
        around = {loop for adding in followed for loop, _ in loops_of(adding)}
        mine = [loop for loop, _ in loops_of(chain)]
        if any(loop in around for loop in mine):
            return True
        # a hook or callback adds: through any other call in the loop
        own = {one.node for one in chain}
        others = (node for loop in mine for node in ast.walk(loop) if isinstance(node, ast.Call) and node not in own)
        return len(followed) < len(self._adding) and any(True for _ in others)

    def _is_at_the_end(self, one: FoundNode) -> bool:
        """Whether a line is in the `finally` of a `try`, which is left with it."""
        return any(
            isinstance(node, ast.Try) and below in node.finalbody for below, node in pairwise(self._parents(one))
        )

    def _by_chain(self, chain: Sequence[FoundNode], whole: bool, kept: int | None) -> Iterator[Emptying]:
        """A line that removes something, by its enclosing tests, for one call chain."""
        one = chain[0]
        where = f"{one.scope.file}:{getattr(one.node, 'lineno', one.statement.lineno)}"
        tests = [(test, each.scope) for each in chain for test in self._tests(each)]
        if any(isinstance(test, ast.ExceptHandler) for test, _ in tests):
            return
        under = [(test, scope) for test, scope in tests if isinstance(test, ast.expr)]
        lengths = [(test, scope) for test, scope in under if self._lengths(test, scope)]
        if lengths:
            known = [bound for test, scope in lengths if (bound := self._bound_of(test, scope)) is not None]
            yield Emptying(where, bound=max(known, default=None), is_for_all=whole)
        elif kept is not None:
            yield Emptying(where, bound=kept, is_for_all=False, is_decided=not tests)
        elif whole:
            yield self._emptied(where, under, bool(tests))

    def _emptied(self, where: str, under: Sequence[tuple[ast.expr, Scope]], is_tested: bool) -> Emptying:
        """A line that removes everything, by what makes it run."""
        periods = [period for test, scope in under for period in self._periods(test, scope)]
        if periods:
            return Emptying(where, every=periods[0])
        return Emptying(where, every=None if is_tested else self._length_of_adding_loop(), is_decided=not is_tested)

    def _kind(self, one: FoundNode) -> tuple[bool, int | None] | None:
        """(whether everything is removed, items left by a slice) for a statement that removes something from the
        container; None for others.
        """
        node, scope = one.node, one.scope
        if isinstance(node, ast.Call):
            return self._of_call(node, one)
        if isinstance(node, ast.Delete):
            return next((kind for target in node.targets if (kind := self._deleted(target, one)) is not None), None)
        for target, value in pairs(node):
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):
                if self._means(target.value, scope) and (kept := self._left(target.slice, one)) is not None:
                    return kept == 0, kept or None
            elif isinstance(target, (ast.Name, ast.Attribute)) and (kind := self._rebound(target, value, one)):
                return kind
        return None

    def _of_call(self, node: ast.Call, one: FoundNode) -> tuple[bool, int | None] | None:
        name = last_name(node.func)
        if name in ("heappop", "heappushpop", "heapreplace", "delattr"):
            given = node.args[0] if node.args else None
            if name == "delattr":
                return self._deleted_attribute(node, one)
            return (self._in_own_loop(one), None) if given is not None and self._means(given, one.scope) else None
        if not isinstance(node.func, ast.Attribute) or name not in (*_ALL, *_ONE):
            return None
        if not self._means(node.func.value, one.scope):
            return None
        if name in ("get", "get_nowait", "task_done") and not self._is_queue():
            return None
        return (name in _ALL or self._in_own_loop(one), None)

    def _deleted(self, target: ast.expr, one: FoundNode) -> tuple[bool, int | None] | None:
        if isinstance(target, ast.Subscript) and self._means(target.value, one.scope):
            if not isinstance(target.slice, ast.Slice):
                return self._in_own_loop(one), None
            kept = self._left(target.slice, one)
            return None if kept is None else (kept == 0, kept or None)
        if isinstance(target, (ast.Name, ast.Attribute)) and self._is_bound(target, one):
            return True, None
        return None

    def _deleted_attribute(self, node: ast.Call, one: FoundNode) -> tuple[bool, int | None] | None:
        if len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            attribute = ast.Attribute(node.args[0], str(node.args[1].value), ast.Store())
            return (True, None) if self._is_bound(attribute, one) else None
        return None

    def _rebound(
        self, target: ast.Name | ast.Attribute, value: ast.expr, one: FoundNode
    ) -> tuple[bool, int | None] | None:
        """`x = []` unless it is the initial binding; `x = x[-9:]`, `x = [row for row in x if row.new]`."""
        sliced = value
        if (
            isinstance(sliced, ast.Call)
            and sliced.args
            and last_name(sliced.func) in ("list", "tuple", "deque", "dict")
        ):
            sliced = sliced.args[0]
        if isinstance(sliced, ast.Subscript) and isinstance(sliced.slice, ast.Slice) and mentions(sliced, target):
            kept = self._kept(sliced.slice, one)
            return (False, kept) if kept is not None and self._is_bound(target, one) else None
        if mentions(value, target):
            filters = isinstance(value, (ast.ListComp, ast.DictComp, ast.SetComp)) and any(
                loop.ifs for loop in value.generators
            )
            # what a filter leaves is known only at run time: it is treated like a condition of another kind
            return None if not filters or not self._is_bound(target, one) or not self._tests_any(one) else (True, None)
        return (True, None) if self._is_bound(target, one) and not self._begins(one, target) else None

    def _tests_any(self, one: FoundNode) -> bool:
        return any(True for _ in self._tests(one))

    def _begins(self, one: FoundNode, target: ast.expr) -> bool:
        """Whether a binding is the initial one: in `__init__`, in a class body, before all loops, or under a test for
        absence: `if not hasattr(module, "seen"): module.seen = []`.
        """
        if one.scope.is_class or one.scope.name.rpartition(".")[2] in _BEGINS:
            return not one.loops
        if isinstance(target, ast.Name) and target.id not in one.scope.elsewhere:
            return not one.loops
        return any(
            _is_absent(target, node.test, below in node.body)
            for below, node in pairwise(self._parents(one))
            if isinstance(node, ast.If) and below is not node.test
        )

    def _is_bound(self, target: ast.expr, one: FoundNode) -> bool:
        return bool(self._meaning.bound_by(target, one.scope) & self._named)

    def _means(self, node: ast.expr, scope: Scope) -> bool:
        return bool(self._meaning.of(node, scope) & self._containers)

    def _is_queue(self) -> bool:
        near = self._meaning.trace[max(self._place - 1, 0) : self._place + 2]
        return any(hop.type.rpartition(".")[2] in QUEUES for hop in near)

    def _left(self, cut: ast.Slice, one: FoundNode) -> int | None:
        """Items left by `del x[cut]`; None if unknown."""
        if cut.lower is None and cut.upper is None:
            return 0
        if cut.lower is None and cut.upper is not None:
            number = number_of(cut.upper, one.scope, self._sources)
            return -number if number is not None and number < 0 else None
        if cut.upper is None and cut.lower is not None:
            number = number_of(cut.lower, one.scope, self._sources)
            return number if number is not None and number >= 0 else None
        return None

    def _kept(self, part: ast.Slice, one: FoundNode) -> int | None:
        """Maximum items of `x[part]`."""
        if part.lower is not None and part.upper is None:
            number = number_of(part.lower, one.scope, self._sources)
            return -number if number is not None and number < 0 else None
        if part.upper is not None and part.lower is None:
            number = number_of(part.upper, one.scope, self._sources)
            return number if number is not None and number >= 0 else None
        return None

    def _in_own_loop(self, one: FoundNode) -> bool:
        """Whether the innermost loop around a line iterates over the container, or runs until it is empty."""
        if not one.loops:
            return False
        loop = one.loops[-1]
        over = (
            loop.test
            if isinstance(loop, ast.While)
            else loop.iter
            if isinstance(loop, (ast.For, ast.AsyncFor))
            else None
        )
        if over is None or any(loop is node for store in self._stores for node in store.found.loops):
            return False
        return any(self._means(node, one.scope) for node in ast.walk(over) if isinstance(node, ast.expr))

    def _tests(self, one: FoundNode) -> Iterator[ast.AST]:
        """The tests and handlers around a line, up to its function, that do not enclose the lines that add."""
        around = {id(node) for store in self._stores for node in self._parents(store.found)}
        own = one.loops[-1] if one.loops and self._in_own_loop(one) else None
        for below, node in pairwise(self._parents(one)):
            if isinstance(node, (ast.If, ast.IfExp, ast.While)) and below is not node.test:
                endless = isinstance(node, ast.While) and isinstance(node.test, ast.Constant)
                # the other branch of an `if` is under its test too
                same_branch = id(node) in around and id(below) in around
                if not endless and not same_branch and (node is not own or self._lengths(node.test, one.scope)):
                    yield node.test
            elif isinstance(node, ast.BoolOp) and below in node.values[1:]:
                yield from node.values[: node.values.index(below)]
            elif isinstance(node, (ast.ExceptHandler, ast.match_case)) and id(node) not in around:
                yield node
        for statement in self._before(one):  # `if step % 9: return`
            if isinstance(statement, ast.If) and any(isinstance(leaf, _LEAVES) for leaf in statement.body[-1:]):
                yield statement.test

    def _before(self, one: FoundNode) -> Iterator[ast.stmt]:
        """Statements before a line in its enclosing blocks, within its function, that do not also precede the lines
        that add.
        """
        ours = {id(s) for store in self._stores for s in _earlier(self._parents(store.found))}
        return (s for s in _earlier(self._parents(one)) if id(s) not in ours)

    def _parents(self, one: FoundNode) -> list[ast.AST]:
        parsed = self._sources.file(one.scope.file)
        return [one.node, *(parsed.above(one.node) if parsed is not None else ())]

    def _lengths(self, test: ast.expr, scope: Scope) -> list[ast.AST]:
        """The comparisons of a test that concern the container's length."""
        return [
            node
            for node in ast.walk(test)
            if isinstance(node, ast.Compare)
            and any(self._is_length(part, scope) for part in (node.left, *node.comparators))
        ]

    def _is_length(self, node: ast.expr, scope: Scope) -> bool:
        if not isinstance(node, ast.Call):
            return False
        if last_name(node.func) not in _LENGTHS:
            return False
        given = node.args[0] if isinstance(node.func, ast.Name) and node.args else None
        if given is None and isinstance(node.func, ast.Attribute):
            given = node.func.value
        return given is not None and self._means(given, scope)

    def _bound_of(self, test: ast.expr, scope: Scope) -> int | None:
        for node in self._lengths(test, scope):
            assert isinstance(node, ast.Compare)
            for part in (node.left, *node.comparators):
                if not self._is_length(part, scope) and (number := number_of(part, scope, self._sources)) is not None:
                    return number
        return None

    def _kept_below(self, store: Store) -> Iterator[Emptying]:
        """A test of the length before or around an adding line: `if len(x) < 9: x.append(y)`."""
        scope, parents = store.found.scope, self._parents(store.found)
        where = f"{scope.file}:{store.line}"
        for below, node in pairwise(parents):
            if isinstance(node, (ast.If, ast.IfExp, ast.While)) and below is not node.test:
                other = below in node.orelse if isinstance(node, (ast.If, ast.While)) else below is node.orelse
                if self._is_below(node.test, scope, other):
                    yield Emptying(where, bound=self._bound_of(node.test, scope), is_for_all=False)
        for statement in _earlier(parents):
            if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], _LEAVES):
                continue
            if self._is_below(statement.test, scope, True):
                yield Emptying(where, bound=self._bound_of(statement.test, scope), is_for_all=False)

    def _is_below(self, test: ast.expr, scope: Scope, other: bool) -> bool:
        """Whether a test means that the container is short; `other`: in the branch where it fails."""
        wanted, less = (
            ((ast.Gt, ast.GtE, ast.Eq), (ast.Lt, ast.LtE))
            if other
            else ((ast.Lt, ast.LtE, ast.NotEq), (ast.Gt, ast.GtE))
        )
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or if other else ast.And):
            return any(self._is_below(part, scope, other) for part in test.values)
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return False
        if self._is_length(test.left, scope):
            return isinstance(test.ops[0], wanted) and not _is_zero(test.comparators[0])
        return self._is_length(test.comparators[0], scope) and isinstance(test.ops[0], less)

    def _periods(self, test: ast.expr, scope: Scope) -> Iterator[int]:
        """Steps of `step % 9 == 0` if iterations of the adding loop are counted."""
        for node in ast.walk(test):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
                continue
            number = number_of(node.right, scope, self._sources)
            if number is not None and number > 0 and not _EPOCH.search(ast.unparse(node.left)):
                yield number

    def _length_of_adding_loop(self) -> int | None:
        """Iterations of the adding loop, if it runs over a `range` of known length."""
        lengths = {self._turns(loop, scope) for loop, scope in self._often.items()}
        return lengths.pop() if len(lengths) == 1 else None

    def _turns(self, loop: ast.stmt, scope: Scope) -> int | None:
        over = loop.iter if isinstance(loop, (ast.For, ast.AsyncFor)) else None
        if not isinstance(over, ast.Call) or last_name(over.func) != "range" or len(over.args) != 1:
            return None
        return number_of(over.args[0], scope, self._sources)

    def _returned(self) -> Iterator[Emptying]:
        """The return of the function whose local it is, if a loop calls that function; undecided if more than that
        local leads to its owner.
        """
        root = self._meaning.trace[0] if self._meaning.trace else None
        if root is None or root.kind != ObjectKind.FRAME or not root.reference.startswith("local "):
            return
        between = [hop for hop in self._meaning.trace[1 : self._place + 1] if hop.kind != ObjectKind.CONTAINER]
        if any(not hop.where or is_library_line(hop.where) for hop in between):
            return  # a library may keep what it returns, shared by all calls
        shared = bool(between) and root.frees_bytes == 0
        name = root.reference.removeprefix("local ")
        for scope in self._scopes(root, name):
            if name in (*scope.parameters, *scope.keywords) or _is_handed_out(scope, name):
                continue
            calls = self._calls.of(scope)
            if calls and all(loops_of(chain) for call in calls for chain in self._calls.call_chains(call)):
                where = calls[0].scope.file + f":{calls[0].statement.lineno}"
                yield Emptying(where, every=self._length_of_adding_loop(), is_decided=not shared)

    def _scopes(self, root: Hop, name: str) -> Iterator[Scope]:
        for parsed in self._files:
            for scope in parsed.scopes:
                if scope.outer is not None and scope.name == root.name and name in scope.bound:
                    yield scope


def _earlier(parents: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    """Statements before a node in its enclosing blocks, innermost block first."""
    for below, node in pairwise(parents):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and below in block:
                yield from block[: block.index(below)]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return


def _is_handed_out(scope: Scope, name: str) -> bool:
    """Whether a function returns or yields one of its variables unchanged."""
    given = (node.value for node in ast.walk(scope.node) if isinstance(node, (ast.Return, ast.Yield)))
    return any(
        isinstance(part, ast.Name) and part.id == name
        for value in given
        if isinstance(value, (ast.Name, ast.Tuple))
        for part in ast.walk(value)
    )


def _is_absent(target: ast.expr, test: ast.expr, holds: bool) -> bool:
    """Whether a test, when it `holds` or fails, means that a target is unbound, None or empty."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_absent(target, test.operand, not holds)
    if isinstance(test, ast.BoolOp):  # `a or b` fails as a whole, `a and b` holds as a whole
        whole = holds == isinstance(test.op, ast.And)
        return (any if whole else all)(_is_absent(target, part, holds) for part in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        is_none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        is_decisive = isinstance(test.ops[0], (ast.Is, ast.Eq) if holds else (ast.IsNot, ast.NotEq))
        if is_none and is_decisive:
            return _is_absent(target, test.left, False)
        return isinstance(test.ops[0], ast.NotIn if holds else ast.In) and _names(target, test.left)
    if holds:
        return False
    if isinstance(test, ast.Call) and last_name(test.func) in ("hasattr", "getattr") and len(test.args) > 1:
        return _names(target, test.args[1])
    return ast.unparse(test) == ast.unparse(target)


def _names(target: ast.expr, word: ast.expr) -> bool:
    """Whether a text is the name of a target: `"seen"` of `module.seen`."""
    name = target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else None
    return isinstance(word, ast.Constant) and word.value == name is not None


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def first_of(found: Sequence[Emptying]) -> Emptying:
    """The line to report among several: one with a known condition, then one with a known bound or period."""
    return min(found, key=lambda one: (not one.is_decided, one.bound is None and one.every is None, one.where))


def without_reached(found: Sequence[Emptying], items: int, gained: float, span: int) -> tuple[Emptying, ...]:
    """The lines that cannot have emptied the container yet.

    Args:
        found: The lines.
        items: Items of the container.
        gained: Items that it gains between two steps.
        span: Steps between the first and the last snapshot, at each of which it had grown.

    """
    return tuple(
        one
        for one in found
        if not (one.bound is not None and items > one.bound + max(2 * gained, 1))
        and not (one.every is not None and span > one.every + 1)
    )


_NEVER_FILLING = (ObjectKind.NN_MODULE, ObjectKind.PARAMETER, ObjectKind.OPTIMIZER, ObjectKind.EXCEPTION)
"""Kinds of objects of which one per step is a leak even if they are released later: each keeps a model, or frames."""
_ITEMS = re.compile(r", ([\d,]+) items?\b")


def emptied_later(
    finding: Finding, found: Sequence[Sequence[Store]], run: Run, sources: Sources
) -> EmptiedLater | TooLarge | None:
    """The line of the source that empties everything that a finding names, which no snapshot can have seen yet.

    Its bound, if that does not justify the growth; None if there is no such line. `found` are the adding lines of each
    reference to cut.
    """
    if finding.settled_by is not None or not _may_fill(finding, found, run, sources):
        return None
    assert finding.cut is not None
    emptied = None
    for reference, stores in zip(finding.cut.references, found, strict=True):
        items, gained = _items(finding)
        lines = emptied_at(finding, reference, stores, sources)
        left = without_reached(lines, items, gained, _span(finding))
        if not left or len(left) < len(lines):
            return None  # a line that took effect, and memory grew nevertheless
        emptied = first_of([one for one in (emptied, first_of(left)) if one is not None])
    return None if emptied is None else _settled_by(finding, emptied, run)


def _may_fill(finding: Finding, found: Sequence[Sequence[Store]], run: Run, sources: Sources) -> bool:
    if finding.cut is None or finding.freed_by != FreedBy.PROGRAM or not rule_named(finding.rule).may_fill:
        return False
    if run.made_by not in (MadeBy.COMMAND, MadeBy.PROFILER) or not all(found):
        return False
    place = max((r.trace for r in finding.cut.references if r.trace is not None), default=0)
    below = {hop.kind for hop in finding.trace[place + 1 :]}
    if not below.isdisjoint(_NEVER_FILLING):
        return False
    graphs = finding.keeps_graphs or ObjectKind.GRAD_NODE in below
    return not graphs or all(Uses(store, sources).differentiated() for stores in found for store in stores)


def _items(finding: Finding) -> tuple[int, float]:
    """(items, items per step) of the growing container, -1 if unknown."""
    assert finding.cut is not None
    place, trace = on_trace(finding, finding.cut.references[0])
    label = next((hop.object for hop in trace[place or 0 :] if hop.kind == ObjectKind.CONTAINER), "")
    match = _ITEMS.search(label)
    if match is None:
        return -1, 0.0
    items = int(match[1].replace(",", ""))
    if isinstance(finding.facts, WorkerGrowthFacts):
        return items, finding.facts.items_per_batch / max(finding.facts.workers, 1)
    return items, items * finding.bytes_per_step / max(finding.retained_bytes, 1)


def _span(finding: Finding) -> int:
    """Steps between the first and the last snapshot, on the rank with the fewest."""
    seen = [[s.step for s in finding.sightings if s.rank == rank] for rank in finding.ranks]
    return min((max(steps) - min(steps) for steps in seen), default=0)


def _settled_by(finding: Finding, emptied: Emptying, run: Run) -> EmptiedLater | TooLarge | None:
    items, gained = _items(finding)
    each = finding.retained_bytes / items if items > 0 else 0.0
    last = max((s.step for s in finding.sightings), default=0)
    steps = full = None
    if emptied.bound is not None and items >= 0:
        full = round(each * max(emptied.bound, items))
        steps = last + math.ceil(max(emptied.bound - items, 0) / gained) + 1 if gained > 0 else None
    elif emptied.every is not None:
        steps = max(last, run.warmup + 2 * emptied.every)
        full = round(finding.bytes_per_step * emptied.every)
    if emptied.bound is not None and full is not None and _is_too_large(finding, full, run):
        there = memory_there(run.ranks[0], False)
        return TooLarge(Bounded(items, emptied.bound, full), "", there)
    if finding.severity == Severity.NOTE and not emptied.is_decided:
        return None
    ran = max((len(rank.steps) for rank in run.ranks if rank.number in finding.ranks), default=0)
    return EmptiedLater(
        where=emptied.where,
        items=items,
        bound=emptied.bound,
        every=emptied.every,
        is_decided=emptied.is_decided,
        steps=steps,
        seen=last if steps is not None and ran >= steps else 0,
        full_bytes=full,
    )


def _is_too_large(finding: Finding, full: int, run: Run) -> bool:
    """Whether the bound does not justify the growth, as for a bound of the container itself."""
    rank = next((rank for rank in run.ranks if rank.number in finding.ranks), None)
    there = (
        memory_there(rank, 2 * finding.host_bytes < finding.retained_bytes and run.device != "cpu") if rank else None
    )
    return there is not None and full > MOST_OF_MEMORY * there
