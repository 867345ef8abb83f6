"""Lines of the source that empty a container, or that keep it from gaining more than a bound."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leakscope.findings.model import CutReference, Finding, Hop
from leakscope.findings.source.calls import Calls, loops_of, number_of
from leakscope.findings.source.lines import files_naming, gaining, on_trace
from leakscope.findings.source.meaning import Meaning
from leakscope.findings.source.names import is_item, last_name
from leakscope.findings.source.parsed import Found, Scope, pairs
from leakscope.findings.source.sources import Sources
from leakscope.findings.source.stores import Store, mentions
from leakscope.graph.model import ObjectKind
from leakscope.graph.ownership import is_library_line

_ALL = ("clear", "cache_clear")
"""Methods that take out everything."""
_ONE = ("pop", "popitem", "popleft", "remove", "discard", "get", "get_nowait", "task_done")
"""Methods that take out one item; `get` does of a queue alone."""
QUEUES = ("Queue", "LifoQueue", "PriorityQueue", "SimpleQueue", "JoinableQueue")
_LENGTHS = ("len", "qsize", "currsize", "__len__", "full")
_BEGINS = ("__init__", "__new__", "__post_init__", "__set_name__", "setup")
"""Methods that run before an object gains anything."""
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise)
_EPOCH = re.compile(r"epoch|ep\b|trial|fold|round")
"""Names of what counts something longer than a step."""


@dataclass(frozen=True)
class Emptying:
    """One line that empties a container, or keeps it below a bound."""

    where: str
    bound: int | None = None
    """Items above which it takes effect; None where that is not a number that can be read."""
    every: int | None = None
    """Steps after which it takes effect, where they can be read."""
    is_decided: bool = True
    """It takes effect at a length, a period or the end of a loop; False where its condition is of another kind."""
    is_for_all: bool = True
    """It takes out everything, not what a slice or a length leaves."""


def emptied_at(
    finding: Finding, reference: CutReference, stores: Sequence[Store], sources: Sources
) -> tuple[Emptying, ...]:
    """The lines that empty what gains by one reference of a cut, in the order of the files.

    Lines count where a call leads to them, and where they do not run as often as the lines that add. One item that is
    taken out counts only under a test of the container's length, or in a loop over the container.
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
        self._calls = Calls(sources)
        trace = meaning.trace
        above = {place}
        while place and trace[place].kind == ObjectKind.CONTAINER and is_item(trace[place - 1].reference):
            place -= 1
            above.add(place)
        self._containers = gaining(trace, self._place) | frozenset(
            k for k in above if trace[k].kind == ObjectKind.CONTAINER
        )
        self._named = frozenset(range(1, self._place + 2))
        """Positions of what goes with everything below it when its name is bound to something else."""
        self._adding = [way for store in stores for way in self._calls.ways(store.found)]
        self._often = dict(loops[0] for way in self._adding if (loops := loops_of(way)))
        """The loops in each turn of which something is added, with their scopes."""

    def emptyings(self) -> Iterator[Emptying]:
        for store in self._stores:
            yield from self._kept_below(store)
        for parsed in self._files:
            for one in parsed.found:
                yield from self._of(one)
        yield from self._returned()

    def _of(self, one: Found) -> Iterator[Emptying]:
        kind = self._kind(one)
        if kind is None or not self._calls.is_reached(one.scope):
            return
        whole, kept = kind
        if any(store.found.statement is one.statement for store in self._stores):
            if kept is not None:  # `x = [*x[-9:], new]`
                yield Emptying(f"{one.scope.file}:{one.statement.lineno}", bound=kept, is_for_all=False)
            return
        ways = self._calls.ways(one)
        if not any(self._runs_as_often(way) for way in ways) or kept is not None:
            yield from (found for way in ways if self._runs_between(way) for found in self._by_way(way, whole, kept))

    def _runs_as_often(self, way: Sequence[Found]) -> bool:
        """Whether each turn of a loop that adds takes something out: what grows all the same is not kept from it."""
        in_loop = any(loop in self._often for loop, _ in loops_of(way))
        return in_loop and not any(True for each in way for _ in self._tests(each))

    def _runs_between(self, way: Sequence[Found]) -> bool:
        """Whether it runs again while something is added: in a loop in which that is added as well. What is called by a
        library, or where a library calls what adds, may.
        """
        if any(self._is_at_the_end(one) or one.scope.name.rpartition(".")[2] in _BEGINS for one in way):
            return False
        if not self._calls.is_followed(way):
            return True
        followed = [adding for adding in self._adding if self._calls.is_followed(adding)]
        around = {loop for adding in followed for loop, _ in loops_of(adding)}
        mine = [loop for loop, _ in loops_of(way)]
        if any(loop in around for loop in mine):
            return True
        # a hook or a callback adds: by any other call of the loop
        own = {one.node for one in way}
        others = (node for loop in mine for node in ast.walk(loop) if isinstance(node, ast.Call) and node not in own)
        return len(followed) < len(self._adding) and any(True for _ in others)

    def _is_at_the_end(self, one: Found) -> bool:
        """Whether a line stands in the `finally` of a `try`, which is left with it."""
        return any(
            isinstance(node, ast.Try) and below in node.finalbody for below, node in pairwise(self._parents(one))
        )

    def _by_way(self, way: Sequence[Found], whole: bool, kept: int | None) -> Iterator[Emptying]:
        """A line that takes something out, by the tests under which it runs, called one way."""
        one = way[0]
        where = f"{one.scope.file}:{getattr(one.node, 'lineno', one.statement.lineno)}"
        tests = [(test, each.scope) for each in way for test in self._tests(each)]
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
        """A line that takes out everything, by what makes it run."""
        periods = [period for test, scope in under for period in self._periods(test, scope)]
        if periods:
            return Emptying(where, every=periods[0])
        return Emptying(where, every=None if is_tested else self._length_of_adding_loop(), is_decided=not is_tested)

    def _kind(self, one: Found) -> tuple[bool, int | None] | None:
        """(everything is taken out, items that are left where a slice tells) of a statement that takes something out
        of the container; None of any other.
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

    def _of_call(self, node: ast.Call, one: Found) -> tuple[bool, int | None] | None:
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

    def _deleted(self, target: ast.expr, one: Found) -> tuple[bool, int | None] | None:
        if isinstance(target, ast.Subscript) and self._means(target.value, one.scope):
            if not isinstance(target.slice, ast.Slice):
                return self._in_own_loop(one), None
            kept = self._left(target.slice, one)
            return None if kept is None else (kept == 0, kept or None)
        if isinstance(target, (ast.Name, ast.Attribute)) and self._is_bound(target, one):
            return True, None
        return None

    def _deleted_attribute(self, node: ast.Call, one: Found) -> tuple[bool, int | None] | None:
        if len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            attribute = ast.Attribute(node.args[0], str(node.args[1].value), ast.Store())
            return (True, None) if self._is_bound(attribute, one) else None
        return None

    def _rebound(self, target: ast.Name | ast.Attribute, value: ast.expr, one: Found) -> tuple[bool, int | None] | None:
        """`x = []` where that is not what begins it; `x = x[-9:]`, `x = [row for row in x if row.new]`."""
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
            # what a filter leaves is known when it has run: it is tested like a condition of another kind
            return None if not filters or not self._is_bound(target, one) or not self._tests_any(one) else (True, None)
        return (True, None) if self._is_bound(target, one) and not self._begins(one, target) else None

    def _tests_any(self, one: Found) -> bool:
        return any(True for _ in self._tests(one))

    def _begins(self, one: Found, target: ast.expr) -> bool:
        """Whether a binding is the first of its name: in `__init__`, in a class's body, before all loops, or under a
        test that there is nothing yet: `if not hasattr(module, "seen"): module.seen = []`.
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

    def _is_bound(self, target: ast.expr, one: Found) -> bool:
        return bool(self._meaning.bound_by(target, one.scope) & self._named)

    def _means(self, node: ast.expr, scope: Scope) -> bool:
        return bool(self._meaning.of(node, scope) & self._containers)

    def _is_queue(self) -> bool:
        near = self._meaning.trace[max(self._place - 1, 0) : self._place + 2]
        return any(hop.type.rpartition(".")[2] in QUEUES for hop in near)

    def _left(self, cut: ast.Slice, one: Found) -> int | None:
        """Items that `del x[cut]` leaves; None where it does not tell."""
        if cut.lower is None and cut.upper is None:
            return 0
        if cut.lower is None and cut.upper is not None:
            number = number_of(cut.upper, one.scope, self._sources)
            return -number if number is not None and number < 0 else None
        if cut.upper is None and cut.lower is not None:
            number = number_of(cut.lower, one.scope, self._sources)
            return number if number is not None and number >= 0 else None
        return None

    def _kept(self, part: ast.Slice, one: Found) -> int | None:
        """Items that `x[part]` has at most."""
        if part.lower is not None and part.upper is None:
            number = number_of(part.lower, one.scope, self._sources)
            return -number if number is not None and number < 0 else None
        if part.upper is not None and part.lower is None:
            number = number_of(part.upper, one.scope, self._sources)
            return number if number is not None and number >= 0 else None
        return None

    def _in_own_loop(self, one: Found) -> bool:
        """Whether the innermost loop around a line goes through the container, or runs until it is empty."""
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

    def _tests(self, one: Found) -> Iterator[ast.AST]:
        """The tests and handlers around a line, up to its function, that are not around the lines that add."""
        around = {id(node) for store in self._stores for node in self._parents(store.found)}
        own = one.loops[-1] if one.loops and self._in_own_loop(one) else None
        for below, node in pairwise(self._parents(one)):
            if isinstance(node, (ast.If, ast.IfExp, ast.While)) and below is not node.test:
                endless = isinstance(node, ast.While) and isinstance(node.test, ast.Constant)
                # the other branch of one `if` is under its test too
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

    def _before(self, one: Found) -> Iterator[ast.stmt]:
        """Statements before a line in the blocks around it, within its function, that do not stand before the lines
        that add as well.
        """
        ours = {id(s) for store in self._stores for s in _earlier(self._parents(store.found))}
        return (s for s in _earlier(self._parents(one)) if id(s) not in ours)

    def _parents(self, one: Found) -> list[ast.AST]:
        parsed = self._sources.file(one.scope.file)
        return [one.node, *(parsed.above(one.node) if parsed is not None else ())]

    def _lengths(self, test: ast.expr, scope: Scope) -> list[ast.AST]:
        """The comparisons in a test that are about the container's length."""
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
        """A test of the length that an adding line stands under, or behind: `if len(x) < 9: x.append(y)`."""
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
        """Whether a test says that the container is short; `other`: whether the branch where it fails does."""
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
        """Steps of `step % 9 == 0`, where what is counted are turns of the loop that adds."""
        for node in ast.walk(test):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
                continue
            number = number_of(node.right, scope, self._sources)
            if number is not None and number > 0 and not _EPOCH.search(ast.unparse(node.left)):
                yield number

    def _length_of_adding_loop(self) -> int | None:
        """Turns of the loop that adds, where it goes over a `range` of a known length."""
        lengths = {self._turns(loop, scope) for loop, scope in self._often.items()}
        return lengths.pop() if len(lengths) == 1 else None

    def _turns(self, loop: ast.stmt, scope: Scope) -> int | None:
        over = loop.iter if isinstance(loop, (ast.For, ast.AsyncFor)) else None
        if not isinstance(over, ast.Call) or last_name(over.func) != "range" or len(over.args) != 1:
            return None
        return number_of(over.args[0], scope, self._sources)

    def _returned(self) -> Iterator[Emptying]:
        """The return of the function whose local it is, where a loop calls that function; undecided where more than
        that local leads to the object of a class which has it.
        """
        root = self._meaning.trace[0] if self._meaning.trace else None
        if root is None or root.kind != ObjectKind.FRAME or not root.reference.startswith("local "):
            return
        between = [hop for hop in self._meaning.trace[1 : self._place + 1] if hop.kind != ObjectKind.CONTAINER]
        if any(not hop.where or is_library_line(hop.where) for hop in between):
            return  # a library may keep what it hands out, for every call to share
        shared = bool(between) and root.frees_bytes == 0
        name = root.reference.removeprefix("local ")
        for scope in self._scopes(root, name):
            if name in (*scope.parameters, *scope.keywords) or _is_handed_out(scope, name):
                continue
            calls = self._calls.of(scope)
            if calls and all(loops_of(way) for call in calls for way in self._calls.ways(call)):
                where = calls[0].scope.file + f":{calls[0].statement.lineno}"
                yield Emptying(where, every=self._length_of_adding_loop(), is_decided=not shared)

    def _scopes(self, root: Hop, name: str) -> Iterator[Scope]:
        for parsed in self._files:
            for scope in parsed.scopes:
                if scope.outer is not None and scope.name == root.name and name in scope.bound:
                    yield scope


def _earlier(parents: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    """Statements that stand before a node in the blocks around it, the innermost block first."""
    for below, node in pairwise(parents):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and below in block:
                yield from block[: block.index(below)]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return


def _is_handed_out(scope: Scope, name: str) -> bool:
    """Whether a function returns or yields one of its variables as it is."""
    given = (node.value for node in ast.walk(scope.node) if isinstance(node, (ast.Return, ast.Yield)))
    return any(
        isinstance(part, ast.Name) and part.id == name
        for value in given
        if isinstance(value, (ast.Name, ast.Tuple))
        for part in ast.walk(value)
    )


def _is_absent(target: ast.expr, test: ast.expr, holds: bool) -> bool:
    """Whether a test says of a target, where it `holds` or fails, that it is not bound, None or empty."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_absent(target, test.operand, not holds)
    if isinstance(test, ast.BoolOp):  # `a or b` fails as a whole, `a and b` holds as a whole
        whole = holds == isinstance(test.op, ast.And)
        return (any if whole else all)(_is_absent(target, part, holds) for part in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        is_none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        tells = isinstance(test.ops[0], (ast.Is, ast.Eq) if holds else (ast.IsNot, ast.NotEq))
        if is_none and tells:
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
    """The one of several lines to name: one whose condition is known, then one whose bound or period is."""
    return min(found, key=lambda one: (not one.is_decided, one.bound is None and one.every is None, one.where))


def without_reached(found: Sequence[Emptying], items: int, gained: float, span: int) -> tuple[Emptying, ...]:
    """Those that cannot have taken effect yet.

    Args:
        found: the lines.
        items: what the container has.
        gained: items that it gains between two steps.
        span: steps between the first and the last snapshot, at each of which it had grown.

    """
    return tuple(
        one
        for one in found
        if not (one.bound is not None and items > one.bound + max(2 * gained, 1))
        and not (one.every is not None and span > one.every + 1)
    )
