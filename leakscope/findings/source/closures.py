"""Functions that a cycle or a pile of hooks keeps: where they are written and stored."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from leakscope.findings.model import Hop
from leakscope.findings.naming import place_of
from leakscope.findings.source.index import Found, ParsedFile, Scope, Sources, file_of, last_name, qualified
from leakscope.findings.source.scopes import Meaning
from leakscope.findings.source.stores import How, Store
from leakscope.graph.model import ObjectKind

PACK = "pack hook"
"""In the place of a method: a line on which a pack hook returns."""
_REGISTERS = re.compile(r"_?register_\w*hook|add_done_callback|finalize|subscribe|connect|ref")


def where_closed(trace: Sequence[Hop], place: int, sources: Sources) -> tuple[Store, ...]:
    """The lines that store the function whose closure is cut, and the line on which it is written.

    A function that calls itself is stored by its own `def`.
    """
    hop = trace[place]
    for parsed in _files(hop, sources):
        for function in _functions(hop, parsed, hop.reference.removeprefix("closure ")):
            stored = _stored(function, parsed, sources)
            return tuple({store.line: store for store in (*stored, _written(function))}.values())
    return ()


def where_hooked(trace: Sequence[Hop], place: int, meaning: Meaning, sources: Sources) -> tuple[Store, ...]:
    """The lines that register the hooks of one object: those that name the function on the trace, else those that
    register the sort of hook that its dict has on what means it.
    """
    registers = _register(trace[place].reference)
    for hook in trace[place + 1 :]:
        if hook.kind == ObjectKind.METHOD and (named := where_registered(hook.where, sources, registers)):
            return named
        # the first may be what a decorator has made of the user's own, which it holds as `__wrapped__`
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
    """The lines that register the function or method which is written at a line of the source, in the same file."""
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
    """Whether a name that is handed on may be that of a function of a scope: `self.hook` in a class akin to its own."""
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
"""Types and names of a trace to the calls that hand a function and its arguments to them."""


def where_handed_on(trace: Sequence[Hop], sources: Sources) -> tuple[Store, ...]:
    """The calls that hand what is held to `weakref.finalize`, an event loop, `atexit` or a timer; of those the ones
    that name the function on the trace, where it has one.
    """
    said = " ".join(f"{hop.type} {hop.name} {hop.object}" for hop in trace)
    names = next((calls for marks, calls in _HANDED_TO if marks.search(said)), ())
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
    """The calls that give `atexit` the function at the start of a trace; native code shows no other sign of it."""
    own = trace[0].name.rpartition(".")[2] if trace else ""
    return tuple(
        Store(one, How.ADDS, one.node.func, tuple(_given(one.node)), "register")
        for parsed in sources.containing("atexit")
        for one in parsed.found
        if isinstance(one.node, ast.Call) and last_name(one.node.func) == "register"
        if own and any(last_name(given) == own for given in _given(one.node))
    )


def where_packed(sources: Sources) -> tuple[Store, ...]:
    """The lines on which the pack hook returns, and the line that sets hooks for saved tensors; () where several do,
    for the trace does not tell which it was.
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
    """What the pack hook returns, where it is a function of the same file."""
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
                    yield Store(Found(node, scope, node, ()), How.BINDS, node.value, (node.value,), PACK)


def _is_at(one: Found, line: int) -> bool:
    """Whether a function is written on this line, its decorators on others above it."""
    return isinstance(one.node, (ast.FunctionDef, ast.AsyncFunctionDef)) and one.node.lineno == line


def _register(reference: str) -> re.Pattern[str]:
    """The methods that put a hook into the dict of this name (torch/nn/modules/module.py, torch/_tensor.py,
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
    """The files in which a function may be written."""
    own = hop.name.rpartition(".")[2]
    if name := file_of(hop):
        parsed = sources.of_line(name)
        return [parsed] if parsed is not None else []
    return sources.containing("lambda" if own == "<lambda>" else own)


def _functions(hop: Hop, parsed: ParsedFile, variable: str = "") -> list[Found]:
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


def _name(one: Found) -> str:
    own = "<lambda>" if isinstance(one.node, ast.Lambda) else str(getattr(one.node, "name", ""))
    return qualified(one.scope, own)


def _written(function: Found) -> Store:
    node = function.node
    value = node if isinstance(node, ast.Lambda) else ast.Name(getattr(node, "name", ""), ast.Load())
    return Store(function, How.BINDS, value, (value,), "def")


def _stored(function: Found, parsed: ParsedFile, sources: Sources) -> list[Store]:
    """The places that hand it to something that keeps it, or assign it to something other than a local: in the function
    around it, and where that is called if it returns it.
    """
    found = [store for store in _kept_by(function, [one for one in parsed.found if one.scope is function.scope])]
    maker = function.scope.node
    if isinstance(maker, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
        isinstance(node, ast.Return) and node.value is not None and _is(node.value, function)
        for node in ast.walk(maker)
    ):
        made = Found(ast.Name(maker.name, ast.Load()), function.scope, function.statement, ())
        for other in sources.containing(maker.name):
            found += _kept_by(made, other.found)
    return found


def _kept_by(function: Found, places: Iterable[Found]) -> list[Store]:
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


def _is(value: ast.expr, function: Found) -> bool:
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
    """Whether a reference leads to the dict of an object's hooks: `._forward_hooks`, `hooks` of a grad node."""
    return reference in ("hooks", "pre-hooks", "post-hook", "pre-hook") or bool(
        re.fullmatch(r"\._\w*hooks(_with_kwargs)?", reference)
    )


def runs_hook(statement: ast.stmt, register: str, of: ast.expr) -> bool:
    """Whether a statement may run the hook that the method `register` puts on an object: one of a forward where that
    object, or what it is a part of, is called, and where a backward runs it again (torch/utils/checkpoint.py); one of
    a step where something steps; any other where backward is called.
    """
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = {last_name(function) for function in calls}
    if "_step_" in register:
        return "step" in names
    if "forward" in register:
        return "backward" in names or any(ast.unparse(function) in _parts_of(of) for function in calls)
    return "backward" in names


def _parts_of(node: ast.expr) -> list[str]:
    """`self.net[0]`, `self.net` of the former."""
    parts = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        parts.append(ast.unparse(node))
        node = node.value
    return [*parts, ast.unparse(node)]
