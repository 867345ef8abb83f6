"""Statements that store something, closures, and the lines that add to a container."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from leakscope.findings.facts import FreedBy
from leakscope.findings.model import CutReference, Finding, Hop
from leakscope.findings.naming import place_of
from leakscope.findings.rules.step_growth import GrowsIn, GrowthFacts
from leakscope.findings.rules.uncollectable_cycle import ClosedBy, UncollectableFacts
from leakscope.findings.source.index import (
    ADDERS,
    BY_NAME,
    FoundNode,
    ParsedFile,
    Scope,
    Sources,
    class_of,
    file_of,
    is_item,
    last_name,
    pairs,
    qualified,
)
from leakscope.findings.source.scopes import Meaning
from leakscope.graph.model import ObjectKind


class How(StrEnum):
    """What a statement does to its target."""

    ADDS = "adds"
    """The object of the expression gains something."""
    BINDS = "binds"
    """The name or attribute itself is rebound."""


@dataclass(frozen=True, eq=False)
class Store:
    """One place that stores something."""

    found: FoundNode
    how: How
    target: ast.expr
    """What gains it, or is bound to it."""
    values: tuple[ast.expr, ...]
    """The stored values, as far as they are written there."""
    name: str = ""
    """The called method."""
    key: ast.expr | None = None
    """The key of `target[key] = value`, or the name passed to `register_buffer` and the like."""
    gains: int | None = None
    """Position on the trace of the object that gains it, if one does."""

    @property
    def line(self) -> int:
        """Its line number, from 1."""
        return int(getattr(self.found.node, "lineno", self.found.statement.lineno))

    @property
    def where(self) -> str:
        """`train.py:31`."""
        return f"{self.found.scope.file}:{self.line}"


def stores_of(parsed: ParsedFile) -> Iterator[Store]:
    """All stores of a file's statements, in order."""
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


def _of_call(found: FoundNode, node: ast.Call) -> Iterator[Store]:
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
"""Functions of heapq, bisect and operator that add something to one of their arguments: positions of both."""
_HANDED_ON = ("append", "appendleft", "add", "extend", "put", "put_nowait", "update")
"""Methods that are passed as callbacks."""
_TYPES_THAT_ADD = ("list", "dict", "set", "deque", "OrderedDict", "defaultdict")


def _is_unbound(function: ast.expr) -> bool:
    """Whether it is a method of a type called with the object: `list.append` in `list.append(rows, x)`."""
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return False
    return function.value.id in _TYPES_THAT_ADD and (function.attr in ADDERS or function.attr == "__setitem__")


def _alias(function: ast.Name, found: FoundNode) -> ast.Attribute | None:
    """The original of an alias: `rows.append` for `add` after `add = rows.append`."""
    owner = found.scope.owner(function.id)
    bound = owner.bound.get(function.id, []) if owner is not None else []
    values = [binding.value for binding in bound if not binding.of_item]
    if len(values) != 1 or not isinstance(values[0], ast.Attribute) or values[0].attr not in ADDERS:
        return None
    return values[0]


def _first(given: Sequence[ast.expr]) -> ast.expr | None:
    return given[0] if given else None


def _of_pair(found: FoundNode, target: ast.expr, value: ast.expr) -> Iterator[Store]:
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
    """Whether a value is computed from its target: `total + loss` for `total`."""
    return any(True for _ in mentions_of(value, target))


def mentions_of(value: ast.AST, target: ast.expr) -> Iterator[ast.expr]:
    """The expressions in a value that read its target."""
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


def may_hold(value: ast.expr, found: FoundNode) -> bool:
    """Whether the value of an expression may hold memory, as far as it shows: not a number, a string or something
    empty.

    A name is followed one step back, to what is bound to it in its function.
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
        named = [keyword.value for keyword in value.keywords] if name in ("dict", "OrderedDict") else []
        return name not in _EMPTY or any(map(_may, (*value.args, *named)))
    parts = _parts(value)
    return parts is None or any(map(_may, parts))


def _parts(value: ast.expr) -> list[ast.expr] | None:
    """The parts of a compound value that may hold the memory; None if it is not compound."""
    if isinstance(value, ast.IfExp):
        return [value.body, value.orelse]
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return value.elts
    if isinstance(value, ast.Dict):
        return [*value.values, *(key for key in value.keys if key is not None)]
    if isinstance(value, ast.UnaryOp):
        return [value.operand]
    return [value.left, value.right] if isinstance(value, ast.BinOp) else None


PACK = "pack hook"
"""Marks, in place of a method, a line on which a pack hook returns."""
_REGISTERS = re.compile(r"_?register_\w*hook|add_done_callback|finalize|subscribe|connect|ref")


def where_closed(trace: Sequence[Hop], place: int, sources: Sources) -> tuple[Store, ...]:
    """The lines that store the function whose closure is cut, and the line of its definition.

    A recursive function is stored by its own `def`.
    """
    hop = trace[place]
    for parsed in _files(hop, sources):
        for function in _functions(hop, parsed, hop.reference.removeprefix("closure ")):
            stored = _stored(function, parsed, sources)
            return tuple({store.line: store for store in (*stored, _written(function))}.values())
    return ()


def where_hooked(trace: Sequence[Hop], place: int, meaning: Meaning, sources: Sources) -> tuple[Store, ...]:
    """The lines that register the hooks of one object: those that name the function on the trace, else those that
    register that kind of hook on it.
    """
    registers = _register(trace[place].reference)
    for hook in trace[place + 1 :]:
        if hook.kind == ObjectKind.METHOD and (named := where_registered(hook.where, sources, registers)):
            return named
        # the first may be a decorator's wrapper around the user's own, which it holds as `__wrapped__`
        for parsed in _files(hook, sources) if hook.kind == ObjectKind.FUNCTION else ():
            for function in _functions(hook, parsed):
                kept = tuple(s for s in _stored(function, parsed, sources) if registers.fullmatch(s.name))
                if kept:
                    return kept
    found: list[Store] = []
    for parsed in meaning.follow(sources.matching(r"\._?register_\w*hook")):
        for one in parsed.found:
            if isinstance(one.node, ast.Call) and isinstance(one.node.func, ast.Attribute):
                name = one.node.func.attr
                if registers.fullmatch(name) and place in meaning.of(one.node.func.value, one.scope):
                    found.append(Store(one, How.ADDS, one.node.func.value, tuple(one.node.args), name))
    return tuple(found)


def where_registered(where: str, sources: Sources, registers: re.Pattern[str] = _REGISTERS) -> tuple[Store, ...]:
    """The lines that register the function or method defined at a line of the source, in the same file."""
    place = place_of(where)
    parsed = None if place is None else sources.of_line(place.file)
    written = [] if parsed is None or place is None else [f for f in parsed.found if _is_at(f, place.line)]
    if parsed is None or len(written) != 1:
        return ()
    own = getattr(written[0].node, "name", "")
    return tuple(
        Store(one, How.ADDS, one.node.func.value, tuple(one.node.args), one.node.func.attr)
        for one in parsed.found
        if isinstance(one.node, ast.Call) and isinstance(one.node.func, ast.Attribute)
        if registers.fullmatch(one.node.func.attr)
        if any(
            last_name(given) == own and _may_be(given, one.scope, written[0].scope, sources)
            for given in _given(one.node)
        )
    )


def _may_be(given: ast.expr, scope: Scope, written_in: Scope, sources: Sources) -> bool:
    """Whether a passed name may be that of a function of a scope: `self.hook` in a related class."""
    start = given.value if isinstance(given, ast.Attribute) else given
    owner = scope.owner(start.id) if isinstance(start, ast.Name) else None
    if not isinstance(given, ast.Attribute):
        return owner is written_in
    around = owner.outer if owner is not None else None
    if around is None or not around.is_class or not isinstance(start, ast.Name):
        return written_in.is_class
    own, other = (one.name.rpartition(".")[2] for one in (written_in, around))
    return own == other or own in sources.bases(other) or other in sources.bases(own)


_HANDED_TO = (
    (re.compile(r"\bfinalize\b"), ("finalize",)),
    (
        re.compile(r"\bTimerHandle\b|asyncio\.events\.Handle\b"),
        ("call_later", "call_at", "call_soon", "call_soon_threadsafe"),
    ),
    (re.compile(r"\batexit\b"), ("register",)),
    (re.compile(r"threading\.Timer\b"), ("Timer",)),
)
"""Types and names of a trace, mapped to the calls that receive a function and its arguments."""


def where_handed_on(trace: Sequence[Hop], sources: Sources) -> tuple[Store, ...]:
    """The calls that pass the referent to `weakref.finalize`, an event loop, `atexit` or a timer; only those that name
    the function on the trace, if it has one.
    """
    labels = " ".join(f"{hop.type} {hop.name} {hop.object}" for hop in trace)
    names = next((calls for marks, calls in _HANDED_TO if marks.search(labels)), ())
    calls = [
        Store(one, How.ADDS, one.node.func, tuple(_given(one.node)), last_name(one.node.func))
        for name in names
        for parsed in sources.containing(name)
        for one in parsed.found
        if isinstance(one.node, ast.Call) and last_name(one.node.func) == name
    ]
    functions = {hop.name.rpartition(".")[2] for hop in trace if hop.kind in (ObjectKind.FUNCTION, ObjectKind.METHOD)}
    named = [call for call in calls if any(last_name(given) in functions for given in call.values)]
    return tuple(named or calls)


def where_exit_handler(trace: Sequence[Hop], sources: Sources) -> tuple[Store, ...]:
    """The calls that pass the function at the start of a trace to `atexit`; native code shows no other sign of it."""
    own = trace[0].name.rpartition(".")[2] if trace else ""
    return tuple(
        Store(one, How.ADDS, one.node.func, tuple(_given(one.node)), "register")
        for parsed in sources.containing("atexit")
        for one in parsed.found
        if isinstance(one.node, ast.Call) and last_name(one.node.func) == "register"
        if own and any(last_name(given) == own for given in _given(one.node))
    )


def where_packed(sources: Sources) -> tuple[Store, ...]:
    """The lines on which the pack hook returns, and the line that sets hooks for saved tensors; () if several do, since
    the trace does not show which.
    """
    calls = [
        Store(one, How.ADDS, one.node.func, tuple(one.node.args), "saved_tensors_hooks")
        for parsed in sources.containing("saved_tensors_hooks")
        for one in parsed.found
        if isinstance(one.node, ast.Call) and last_name(one.node.func) == "saved_tensors_hooks"
    ]
    if len(calls) != 1:
        return ()
    return (*_returns(calls[0], sources), *calls)


def _returns(call: Store, sources: Sources) -> Iterator[Store]:
    """What the pack hook returns, if it is a function of the same file."""
    given = call.values[0] if call.values else None
    owner = call.found.scope.owner(given.id) if isinstance(given, ast.Name) else None
    parsed = sources.of_line(call.found.scope.file)
    if parsed is None or owner is None or not isinstance(given, ast.Name):
        return
    for scope in parsed.scopes:
        if isinstance(scope.node, ast.FunctionDef) and scope.outer is owner and scope.node.name == given.id:
            returned = (node for node in ast.walk(scope.node) if isinstance(node, ast.Return))
            for node in sorted(returned, key=lambda one: one.lineno):
                if node.value is not None:
                    yield Store(FoundNode(node, scope, node, ()), How.BINDS, node.value, (node.value,), PACK)


def _is_at(one: FoundNode, line: int) -> bool:
    """Whether a function is defined on this line; its decorators are above it."""
    return isinstance(one.node, (ast.FunctionDef, ast.AsyncFunctionDef)) and one.node.lineno == line


def _register(reference: str) -> re.Pattern[str]:
    """The methods that add a hook to the dict of this name (torch/nn/modules/module.py, torch/_tensor.py,
    torch/optim/optimizer.py).
    """
    sort = re.sub(r"^\._(global_|optimizer_)?|_hooks(_with_kwargs)?$", "", reference)
    names = {
        "forward": "register_forward_hook|register_module_forward_hook",
        "forward_pre": "register_forward_pre_hook|register_module_forward_pre_hook",
        "backward": r"register_hook|register_(full_|module_full_|module_)?backward_hook",
        "backward_pre": "register_full_backward_pre_hook|register_module_full_backward_pre_hook",
        "post_accumulate_grad": "register_post_accumulate_grad_hook",
        "step_post": "register_step_post_hook|register_optimizer_step_post_hook",
        "step_pre": "register_step_pre_hook|register_optimizer_step_pre_hook",
    }
    return re.compile(names.get(sort, r"_?register_\w*hook"))


def _files(hop: Hop, sources: Sources) -> list[ParsedFile]:
    """The files in which a function may be defined."""
    own = hop.name.rpartition(".")[2]
    if name := file_of(hop):
        parsed = sources.of_line(name)
        return [parsed] if parsed is not None else []
    return sources.containing("lambda" if own == "<lambda>" else own)


def _functions(hop: Hop, parsed: ParsedFile, variable: str = "") -> list[FoundNode]:
    """The functions of this qualified name; of several lambdas those that read the variable."""
    alike = [
        one
        for one in parsed.found
        if isinstance(one.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and _name(one) == hop.name
    ]
    reading = [one for one in alike if any(isinstance(n, ast.Name) and n.id == variable for n in ast.walk(one.node))]
    chosen = reading if variable else alike
    if variable or len(chosen) <= 1:
        return chosen if len(chosen) == 1 else []
    place = place_of(hop.where)
    return [one for one in chosen if place is not None and getattr(one.node, "lineno", 0) == place.line]


def function_of(hop: Hop, sources: Sources) -> tuple[ParsedFile, FoundNode] | None:
    """The source of a function on a trace, and of the variable that it closes over, if it is one of the kept files."""
    for parsed in _files(hop, sources):
        for function in _functions(hop, parsed, hop.reference.removeprefix("closure ")):
            return parsed, function
    return None


def _name(one: FoundNode) -> str:
    own = "<lambda>" if isinstance(one.node, ast.Lambda) else str(getattr(one.node, "name", ""))
    return qualified(one.scope, own)


def _written(function: FoundNode) -> Store:
    node = function.node
    value = node if isinstance(node, ast.Lambda) else ast.Name(getattr(node, "name", ""), ast.Load())
    return Store(function, How.BINDS, value, (value,), "def")


def _stored(function: FoundNode, parsed: ParsedFile, sources: Sources) -> list[Store]:
    """The places that pass it to something that keeps it, or assign it to something other than a local: in the
    enclosing function, and where that is called if it returns it.
    """
    found = [store for store in _kept_by(function, [one for one in parsed.found if one.scope is function.scope])]
    maker = function.scope.node
    if isinstance(maker, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
        isinstance(node, ast.Return) and node.value is not None and _is(node.value, function)
        for node in ast.walk(maker)
    ):
        made = FoundNode(ast.Name(maker.name, ast.Load()), function.scope, function.statement, ())
        for other in sources.containing(maker.name):
            found += _kept_by(made, other.found)
    return found


def _kept_by(function: FoundNode, places: Iterable[FoundNode]) -> list[Store]:
    found = []
    for one in places:
        node = one.node
        if isinstance(node, ast.Call) and any(_is(given, function) for given in _given(node)):
            method = isinstance(node.func, ast.Attribute)
            kept = method and (_REGISTERS.fullmatch(last_name(node.func)) or last_name(node.func) in _KEEPS)
            if kept and isinstance(node.func, ast.Attribute):
                found.append(Store(one, How.ADDS, node.func.value, tuple(node.args), node.func.attr))
        elif isinstance(node, ast.Assign) and _is(node.value, function):
            found += [
                Store(one, How.BINDS, target, (node.value,))
                for target in node.targets
                if isinstance(target, (ast.Attribute, ast.Subscript))
            ]
    return found


_KEEPS = ("append", "add", "insert", "setdefault", "put", "appendleft", "update", "partial")


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is(value: ast.expr, function: FoundNode) -> bool:
    """Whether a value is the function, or wraps it."""
    if value is function.node:
        return True
    if isinstance(value, ast.Name):
        return value.id == getattr(function.node, "name", None)
    if isinstance(value, ast.Call):
        made = isinstance(function.node, ast.Name) and last_name(value.func) == function.node.id
        return made or any(_is(given, function) for given in _given(value))
    return isinstance(value, (ast.Tuple, ast.List)) and any(_is(one, function) for one in value.elts)


def is_hooks(reference: str) -> bool:
    """Whether a reference leads to an object's dict of hooks: `._forward_hooks`, `hooks` of a grad node."""
    return reference in ("hooks", "pre-hooks", "post-hook", "pre-hook") or bool(
        re.fullmatch(r"\._\w*hooks(_with_kwargs)?", reference)
    )


def runs_hook(statement: ast.stmt, register: str, of: ast.expr) -> bool:
    """Whether a statement may run the hook that the method `register` puts on an object: a forward hook if that object
    or an enclosing one is called, and if a backward runs it again (torch/utils/checkpoint.py); a step hook if
    something steps; any other if backward is called.
    """
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = {last_name(function) for function in calls}
    if "_step_" in register:
        return "step" in names
    if "forward" in register:
        return "backward" in names or any(ast.unparse(function) in _parts_of(of) for function in calls)
    return "backward" in names


def _parts_of(node: ast.expr) -> list[str]:
    """`self.net[0]`, and `self.net` of it."""
    parts = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        parts.append(ast.unparse(node))
        node = node.value
    return [*parts, ast.unparse(node)]


LINES = 3
"""Maximum lines reported for one reference: more would be a listing of the program."""
FILES = 30
"""Files beside those of its class that are searched for an attribute. Heuristic: a name in more files
is not specific.
"""
_TENSORS = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.STORAGE, ObjectKind.GRAD_NODE, ObjectKind.WORK)
_ADDED_TO = (ObjectKind.CONTAINER, ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER)
CACHE = "functools._lru_cache_wrapper"
_ARRAY = "numpy.ndarray"
_NAME = re.compile(r"[^\W\d]\w*")


def stores_for(finding: Finding, reference: CutReference, sources: Sources, at_most: int = LINES) -> tuple[Store, ...]:
    """The places that store something at one reference of a finding's cut, the likeliest first; () if the sources show
    none.

    They are searched where the trace places its names: a local in its function and what it is passed to, an attribute
    in the methods of the class, a global in its module and where it is imported.
    """
    place, trace = on_trace(finding, reference)
    if isinstance(finding.facts, GrowthFacts) and finding.facts.grows_in == GrowsIn.CALLBACK:
        return where_exit_handler(trace, sources)[:at_most]
    if isinstance(finding.facts, UncollectableFacts) and finding.facts.closed_by == ClosedBy.PACK_HOOK:
        return where_packed(sources)
    if place is None:
        return where_registered(reference.where, sources)[:at_most] if is_item(reference.name) else ()
    in_cycle = finding.freed_by != FreedBy.PROGRAM
    if place and is_item(trace[place].reference) and is_hooks(trace[place - 1].reference):
        place -= 1
    holder = trace[place]
    if is_hooks(holder.reference):
        return where_hooked(trace, place, Meaning(trace, sources, in_cycle), sources)[:at_most]
    if holder.reference.startswith("closure ") and in_cycle:
        return where_closed(trace, place, sources)[:at_most]
    cache = next((hop for hop in trace[place : place + 2] if hop.type == CACHE and hop.name != CACHE), None)
    if cache is not None:
        return _calls(cache, sources)[:at_most]
    for loosely in (False, True):
        meaning = Meaning(trace, sources, in_cycle, loosely)
        stores = list(_stores(place, meaning, sources))
        if chosen := _chosen(stores, place, meaning):
            return tuple(_one_a_line(chosen))[:at_most]
    return where_handed_on(trace, sources)[:at_most]


def on_trace(finding: Finding, reference: CutReference) -> tuple[int | None, tuple[Hop, ...]]:
    """Position of the hop with a reference, and a trace through it.

    A further reference that is not on the trace may be one of an object on it: `context.outputs` beside
    `context.inputs`.
    """
    trace = finding.trace
    if reference.trace is not None:
        place = reference.trace
        return (place, trace) if place + 1 < len(trace) else (None, trace)
    for place, hop in enumerate(reference.path[:-1]):
        if not set(hop.references).isdisjoint(reference.indexes):
            return place, reference.path
    for other in finding.cut.references if finding.cut is not None else ():
        if other.trace is None or not other.written or not reference.name.startswith("."):
            continue
        if other.written.replace(other.name, reference.name) == reference.written and other.trace + 1 < len(trace):
            here = replace(trace[other.trace], reference=reference.name)
            return other.trace, (*trace[: other.trace], here, *trace[other.trace + 1 :])
    return None, trace


def _stores(place: int, meaning: Meaning, sources: Sources) -> Iterator[Store]:
    """All stores into what grows, or rebinding the referent, in the files that name it."""
    gains, files = gaining(meaning.trace, place), files_naming(meaning, place, sources)
    for parsed in files:
        for store in stores_of(parsed):
            if store.how == How.ADDS:
                means = meaning.of(store.target, store.found.scope) & gains
                fits = [position for position in means if _is_added(store, position, place, meaning.trace)]
                if fits:
                    yield replace(store, gains=max(fits))
            elif place + 1 in meaning.bound_by(store.target, store.found.scope):
                yield store


def gaining(trace: Sequence[Hop], place: int) -> frozenset[int]:
    """Positions of the objects to which something may be added: the referent of the reference at `place`, and
    containers among its items.

    Also the referrer, if the reference is an item or an attribute of no user class: `queue.queue`.
    """
    found = set()
    holder = trace[place]
    if is_item(holder.reference) or holder.kind in (ObjectKind.OPTIMIZER, ObjectKind.NN_MODULE):
        found.add(place)
    if holder.kind == ObjectKind.INSTANCE and not file_of(holder):
        found.add(place)
    for position in range(place + 1, len(trace)):
        hop = trace[position]
        if not (hop.kind in _ADDED_TO or hop.type == _ARRAY):
            break
        found.add(position)
        if not is_item(hop.reference) or hop.kind != ObjectKind.CONTAINER:
            break
    return frozenset(found)


def _is_added(store: Store, position: int, place: int, trace: Sequence[Hop]) -> bool:
    """Whether the kind of addition fits the object: a method that it has, and no constant key other than that of the
    cut at `place`.
    """
    hop, by_name = trace[position], store.name in BY_NAME
    key = store.key.value if isinstance(store.key, ast.Constant) else None
    if hop.kind == ObjectKind.OPTIMIZER:
        return store.name == "add_param_group"
    if hop.kind == ObjectKind.NN_MODULE and not is_item(hop.reference):
        return by_name and key in (None, hop.reference.removeprefix("."))
    if by_name or store.name == "add_param_group":
        return hop.kind == ObjectKind.NN_MODULE and store.name == "add_module"
    return key is None or (position == place and hop.reference == f"[{key!r}]")


def files_naming(meaning: Meaning, place: int, sources: Sources) -> list[ParsedFile]:
    """Files that may name the referent, by its own name or as a parameter of a call."""
    trace = meaning.trace
    above = [hop for hop in trace[place::-1] if _word(hop)]
    if meaning.in_cycle:  # its way around is its name
        above = [*above, *(hop for hop in trace[place + 1 :] if _word(hop))]
    passed = trace if meaning.in_cycle else trace[: place + 1]
    files = [sources.of_line(file_of(hop)) for hop in passed if file_of(hop)]
    for hop in above if meaning.in_cycle else above[:1]:
        files += _naming(hop, sources)
    if trace[place].kind == ObjectKind.NN_MODULE:  # its name there may be generated at run time
        files += sources.files_of_class(class_of(trace[place]))
        files += sources.matching(rf"(?<!\bself)\.({'|'.join(BY_NAME)})\(|\bsetattr\(", FILES)
    return meaning.follow(list(dict.fromkeys(parsed for parsed in files if parsed is not None)))


def _naming(hop: Hop, sources: Sources) -> list[ParsedFile]:
    """Files that contain the name of a hop's reference: only its own for a local; for an attribute `self.` counts only
    in the classes of its object.
    """
    word = _word(hop)
    if hop.reference.startswith(("local ", "closure ")) and file_of(hop):
        return []
    if hop.kind == ObjectKind.NAMESPACE or not hop.reference.startswith("."):
        return sources.containing(word)
    elsewhere = sources.matching(rf"(?<!\bself)(\.|['\"]){re.escape(word)}(?!\w)", FILES)
    return [*sources.files_of_class(class_of(hop)), *elsewhere]


def _word(hop: Hop) -> str:
    """The name of a hop's reference as written in a program; "" for an item and for `queue` of a Queue."""
    of_library = hop.kind in (*_ADDED_TO, ObjectKind.INSTANCE) and not file_of(hop)
    names = _NAME.findall(hop.reference.rpartition(" ")[2])
    if not names or is_item(hop.reference) or of_library or names[-1].startswith("__"):
        return ""
    return str(names[-1])


def _chosen(stores: list[Store], place: int, meaning: Meaning) -> list[Store]:
    """The stores that can be what grows, the likeliest first."""
    trace = meaning.trace
    below = trace[place + 1 :]
    if any(hop.kind in _TENSORS for hop in below):
        stores = [s for s in stores if any(may_hold(value, s.found) for value in s.values) or s.name == "update"]
    stores = _fitting(stores, place, meaning)
    binds = [s for s in stores if s.how == How.BINDS]
    itself = [s for s in binds if isinstance(s.found.node, ast.AugAssign) or mentions(s.values[0], s.target)]
    adds = [s for s in stores if s.how == How.ADDS and not isinstance(s.found.node, ast.AugAssign)]
    adds += [s for s in stores if s.how == How.ADDS and isinstance(s.found.node, ast.AugAssign) and s.key is None]
    if below and below[0].kind in _ADDED_TO:
        chosen = [*adds, *itself] or [s for s in binds if _displays(s.values[0])]
    else:
        chosen = [*itself, *adds] or binds
    later = [s for s in chosen if not s.found.scope.name.endswith("__init__")]
    loops = [s for s in later if s.found.loops] if trace[0].kind == ObjectKind.FRAME else []
    first = {id(s) for s in loops}
    return sorted(later or chosen, key=lambda s: id(s) not in first)


def _fitting(stores: list[Store], place: int, meaning: Meaning) -> list[Store]:
    """Stores whose values have the kind that the trace shows, if there are any: a call of the function or class that it
    names, no `detach()` if it has a graph, no `clone()` of a view, no weak reference.
    """
    trace, gains = meaning.trace, gaining(meaning.trace, place)
    rest = (hop for position, hop in enumerate(trace) if position > place and position not in gains)
    held = next((hop for hop in rest if hop.kind != ObjectKind.CONTAINER), None)
    if held is None:
        return stores
    name = held.name.rpartition(".")[2] if held.kind in _NAMED else class_of(held)
    named = [s for s in stores if name and any(name in map(last_name, _names(value)) for value in s.values)]
    if meaning.in_cycle:  # its constructor is known there
        named = named or [s for s in stores if _leads_on(s, place, meaning)]
    if held.kind == ObjectKind.NATIVE:  # a text, a number: what makes a weak reference may make it as well
        return named or stores
    ends = {"ref", "WeakMethod", "proxy", "with_traceback", "str", "repr"}
    if held.kind in _TENSORS:
        graph = held.reference == ".grad_fn"
        ends |= {"detach", "detach_", "requires_grad_", "item"} if graph else {"clone", "copy"}
    whole = [s for s in stores if not any(isinstance(v, ast.Call) and last_name(v.func) in ends for v in s.values)]
    return named or whole or stores


def _leads_on(store: Store, place: int, meaning: Meaning) -> bool:
    """Whether the stored value is the next object of the trace."""
    after = meaning.everywhere(frozenset({(place if store.gains is None else store.gains) + 1}))
    return any(meaning.of(value, store.found.scope) & after for value in store.values)


_NAMED = (ObjectKind.FUNCTION, ObjectKind.GENERATOR)


def _names(value: ast.expr) -> Iterator[ast.expr]:
    return (node for node in ast.walk(value) if isinstance(node, (ast.Name, ast.Attribute)))


def _displays(value: ast.expr) -> bool:
    """Whether a value is a literal list, tuple or the like with something in it that may hold memory."""
    return isinstance(value, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.DictComp, ast.SetComp))


def _one_a_line(stores: Sequence[Store]) -> list[Store]:
    return list({store.where: store for store in reversed(stores)}.values())[::-1]


def _calls(cache: Hop, sources: Sources) -> tuple[Store, ...]:
    """The calls of a cached function: each with new arguments adds a result."""
    name = cache.name.rpartition(".")[2]
    found = [
        Store(one, How.ADDS, one.node.func, tuple(one.node.args), name)
        for parsed in (sources.containing(name) if name else ())
        for one in parsed.found
        if isinstance(one.node, ast.Call) and last_name(one.node.func) == name
    ]
    return tuple(_one_a_line(found))


_JOINS = frozenset(
    (
        "cat",
        "concat",
        "concatenate",
        "stack",
        "hstack",
        "vstack",
        "dstack",
        "column_stack",
        "row_stack",
        "pad",
        "append",
    )
)
"""Names of the functions of torch, torch.nn.functional and numpy that make a larger array from others."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.AsyncFor, ast.While, ast.Module)


def variable_of(references: Sequence[str]) -> str:
    """The name in the source for a path's last references: `seen` for `.seen` or `local seen`."""
    for reference in reversed(references):
        named = re.search(r"([A-Za-z_]\w*)(?:'\]|\"\])?$", reference)
        if named:
            return named[1]
    return ""


def is_made_from_itself(sources: Mapping[str, Sequence[str]], variable: str) -> bool:
    """Whether any of the files joins a variable's previous value with more without setting it anew before.

    `x = torch.cat([token, x])` in a loop or function that also has `x = embed(ids)` joins nothing of the previous step.
    """
    return bool(variable) and any(
        _joins_itself(tree, variable) for tree in map(_parsed, sources.values()) if tree is not None
    )


def _parsed(lines: Sequence[str]) -> ast.Module | None:
    try:
        return ast.parse("\n".join(line.rstrip("\n") for line in lines))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _joins_itself(tree: ast.Module, variable: str) -> bool:
    for scope in (node for node in ast.walk(tree) if isinstance(node, _SCOPES)):
        values = [value for value in _values_in(scope, variable) if value is not None]
        joined = [value for value in values if _mentions(value, variable)]
        if any(_is_join(value, variable) for value in joined) and len(joined) == len(values):
            return True
    return False


def _values_in(scope: ast.AST, variable: str) -> Iterator[ast.expr | None]:
    """What is assigned to the variable in a scope, without nested loops and functions."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_is_named(target, variable) for target in targets):
                yield node.value
        if not isinstance(node, _SCOPES):
            yield from _values_in(node, variable)


def _is_named(node: ast.AST, variable: str) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == variable
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(_is_named(each, variable) for each in node.elts)
    return (isinstance(node, ast.Name) and node.id == variable) or (
        isinstance(node, ast.Attribute) and node.attr == variable
    )


def _mentions(value: ast.expr, variable: str) -> bool:
    return any(_is_named(node, variable) for node in ast.walk(value))


def _is_join(value: ast.expr, variable: str) -> bool:
    """Whether a call in it joins its arguments, including the variable."""
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    return any(
        isinstance(call.func, (ast.Name, ast.Attribute))
        and (call.func.id if isinstance(call.func, ast.Name) else call.func.attr) in _JOINS
        and _mentions(call, variable)
        for call in calls
    )


_NAMELESS = (ObjectKind.CONTAINER, ObjectKind.TENSOR, ObjectKind.PARAMETER)
"""Kinds of objects without a distinctive name: `dict, 2 items`."""
_LONGEST = 60
"""Maximum characters of an expression used as a name. Heuristic."""


def as_in_source(finding: Finding, reference: CutReference, stores: Sequence[Store]) -> CutReference:
    """A reference of a nameless object as the storing line writes it: `out.metadata['output']`.

    Reported with that line, if it had none. Unchanged if the sources show none.
    """
    place, trace = on_trace(finding, reference)
    if place is None or trace[place].kind not in _NAMELESS or not stores:
        return reference
    if " of " not in reference.written:  # written from its root, as in code
        return reference
    text = _text(stores[0], place, trace[place])
    if not text or len(text) > _LONGEST:
        return reference
    return replace(reference, written=text, where=reference.where or stores[0].where)


def _text(store: Store, place: int, holder: Hop) -> str:
    """The expression; "" if the line concerns another object."""
    target = ast.unparse(store.target)
    if store.how == How.ADDS and store.gains == place and is_item(holder.reference):
        return target + holder.reference
    named = store.how == How.BINDS or store.gains == place + 1
    is_attribute = isinstance(store.target, ast.Attribute) and holder.reference == f".{store.target.attr}"
    return target if named and is_attribute else ""
