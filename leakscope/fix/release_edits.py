"""Candidate edits for hooks, closures, contexts, exit handlers and pipelines that are not released."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from leakscope.findings.facts import FreedBy, RuleName
from leakscope.findings.model import Finding
from leakscope.findings.source.index import FoundNode, ParsedFile, Scope, Sources, class_of, last_name
from leakscope.findings.source.stores import Store, runs_hook
from leakscope.fix.drafts import (
    FUNCTIONS,
    LEAVES,
    Case,
    Draft,
    at_end_of,
    block_of,
    bound_in,
    code_of,
    imported,
    names_in,
    new_name,
    rest_of_block,
)
from leakscope.graph.model import ObjectKind

_REGISTERS = re.compile(r"_?register_\w*hook")


# -------------------------------------------------------------------------------------------------------------- hooks


def hook_drafts(case: Case) -> Iterator[Draft]:
    """A hook that is removed after its use, registered once, or does not keep its object alive."""
    in_cycle = case.finding.freed_by != FreedBy.PROGRAM
    for store in case.stores:
        parsed = case.parsed(store)
        if parsed is None or not _REGISTERS.fullmatch(store.name) or not isinstance(store.found.node, ast.Call):
            continue
        if isinstance(store.found.statement, ast.Expr) and store.found.statement.value is store.found.node:
            yield from _removed_after_use(parsed, store)
            if not in_cycle:
                yield from _of_fresh_tensor(parsed, store)
            yield from _registered_once(parsed, store)
        else:
            yield from _kept_handle_removed(case, parsed, store)
        yield from _weak_hook(parsed, store)
    yield from entry_drafts(case)


def _removed_after_use(parsed: ParsedFile, store: Store) -> Iterator[Draft]:
    """The handle kept, and removed after the statements that run the hook."""
    statement, scope = store.found.statement, store.found.scope
    call = code_of(parsed, store.found.node)
    outer: ast.stmt = statement
    above = [up for up in parsed.above(statement) if isinstance(up, ast.stmt)]
    while above and isinstance(above[0], (ast.For, ast.If)) and _only_registers(above[0], store.name):
        outer = above.pop(0)
    many = outer is not statement
    if isinstance(outer, (ast.For, ast.While)) and outer in store.found.loops[:1] and not rest_of_block(parsed, outer):
        many, outer = False, statement
    rest = rest_of_block(parsed, outer)
    if not rest:
        return
    name = new_name(scope, "handles" if many else "handle", "hook_handles" if many else "hook_handle")
    release = f"for handle in {name}:\n    handle.remove()" if many else f"{name}.remove()"
    begun = Draft("remove", f"the hook of {parsed.name}:{store.line} removed after its use")
    if many:
        begun = begun.instead(parsed, statement, f"{name}.append({call})").before(parsed, outer, f"{name} = []")
    else:
        begun = begun.instead(parsed, statement, f"{name} = {call}")
    run = [k for k, one in enumerate(rest) if any(runs_hook(one, store.name, of) for of in _hooked(store, outer))]
    span = rest[: run[-1] + 1] if run else rest
    leaves = any(isinstance(node, LEAVES) for one in span for node in ast.walk(one))
    if run and not leaves:
        yield begun.after(parsed, span[-1], release)
    if isinstance(span[-1], ast.Return) and not any(isinstance(n, LEAVES) for one in span[:-1] for n in ast.walk(one)):
        yield _before_return(begun, parsed, scope, span[-1], release)
    clean = Draft("finally", f"the hook of {parsed.name}:{store.line} removed in `finally`", begun.edits)
    yield _in_try(clean, parsed, span, release)


def _before_return(draft: Draft, parsed: ParsedFile, scope: Scope, statement: ast.Return, code: str) -> Draft:
    if statement.value is None or isinstance(statement.value, (ast.Name, ast.Constant)):
        return draft.before(parsed, statement, code)
    result = new_name(scope, "result", "value", "returned")
    value = code_of(parsed, statement.value)
    return draft.instead(parsed, statement, f"{result} = {value}", code, f"return {result}")


def _in_try(draft: Draft, parsed: ParsedFile, span: Sequence[ast.stmt], release: str) -> Draft:
    """Statements in `try`, with code in its `finally`."""
    lines = "\n".join(code_of(parsed, one) for one in span)
    indented = "\n".join(f"    {line}" if line else "" for line in lines.split("\n"))
    after = "\n".join(f"    {line}" for line in release.split("\n"))
    for one in span[1:]:
        draft = draft.remove(parsed, one)
    return draft.instead(parsed, span[0], f"try:\n{indented}\nfinally:\n{after}")


def _only_registers(block: ast.stmt, name: str) -> bool:
    """Whether a loop or `if` contains nothing but the registration of hooks."""
    body = getattr(block, "body", [])
    inner = body[0] if len(body) == 1 else None
    if isinstance(inner, (ast.For, ast.If)):
        return _only_registers(inner, name)
    return isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call) and last_name(inner.value.func) == name


def _hooked(store: Store, outer: ast.stmt) -> list[ast.expr]:
    """What the hook is put on: the expression, or what a loop takes it from."""
    if isinstance(outer, ast.For):
        return [node for node in ast.walk(outer.iter) if isinstance(node, (ast.Name, ast.Attribute))]
    return [store.target]


def _of_fresh_tensor(parsed: ParsedFile, store: Store) -> Iterator[Draft]:
    """The hook of a tensor that is used again put on a view that is made anew each time."""
    target = store.target
    if store.name != "register_hook" or not isinstance(target, ast.Name):
        return
    if target.id in store.found.scope.parameters or target.id in store.found.scope.bound:
        code = f"{target.id} = {target.id}.view_as({target.id})"
        draft = Draft("fresh", f"`{code}` before the hook at {parsed.name}:{store.line}")
        yield draft.before(parsed, store.found.statement, code)


def _registered_once(parsed: ParsedFile, store: Store) -> Iterator[Draft]:
    """The registration moved in front of the loop or into `__init__`, or done in place of the previous one."""
    statement = store.found.statement
    code, needed = code_of(parsed, statement), names_in(statement)
    for loop in reversed(store.found.loops):
        if not needed & bound_in(loop) and block_of(parsed, loop):
            draft = Draft("before loop", f"registered before the loop at {parsed.name}:{loop.lineno}")
            yield draft.remove(parsed, statement).before(parsed, loop, code)
    yield from _registered_in_class(parsed, store)
    if isinstance(store.target, (ast.Name, ast.Attribute)):
        name = code_of(parsed, store.target)
        once = Draft("once", f"registered once at {parsed.name}:{store.line}")
        test = f'if not getattr({name}, "_has_hook", False):'
        marked = [f"{name}._has_hook = True", code]
        block = "\n".join([test, *(f"    {line}" for part in marked for line in part.split("\n"))])
        yield once.instead(parsed, statement, block)


def _registered_in_class(parsed: ParsedFile, store: Store) -> Iterator[Draft]:
    """The registration of a method moved into `__init__`, or the previous hook removed before the next one."""
    statement, scope = store.found.statement, store.found.scope
    code, needed = code_of(parsed, statement), names_in(statement)
    own = scope.parameters[:1]
    around = scope.outer
    if around is None or not around.is_class or not own:
        return
    begin = _begin_of(around, parsed)
    local = set(scope.bound) | {*scope.parameters[1:], *scope.keywords[1:]}
    if begin is not None and begin is not scope.node and not needed & local and begin.args.args[0].arg == own[0]:
        draft = Draft("in init", f"registered in `__init__` at {parsed.name}:{begin.lineno}")
        yield draft.remove(parsed, statement).append(parsed, begin, code)
    if begin is not None and begin is not scope.node:
        handle = f"{own[0]}._hook_handle"
        first = Draft("replace", f"the previous hook removed first at {parsed.name}:{store.line}")
        before = f"if {handle} is not None:\n    {handle}.remove()"
        call = code_of(parsed, store.found.node)
        yield first.instead(parsed, statement, before, f"{handle} = {call}").append(parsed, begin, f"{handle} = None")


def _begin_of(around: Scope, parsed: ParsedFile) -> ast.FunctionDef | None:
    """The `__init__` of a class."""
    scopes = (scope.node for scope in parsed.scopes if scope.outer is around)
    return next((node for node in scopes if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)


def _kept_handle_removed(case: Case, parsed: ParsedFile, store: Store) -> Iterator[Draft]:
    """A kept handle removed at the end of the function that has it, or that makes the object that has it."""
    statement, scope = store.found.statement, store.found.scope
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    is_list = isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.List, ast.Tuple, ast.ListComp))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        kept = statement.value.func  # handles.append(x.register_hook(...))
        if isinstance(kept, ast.Attribute) and kept.attr in ("append", "add"):
            target, is_list = kept.value, True
    if target is None:
        return

    def release(name: str) -> tuple[str, ...]:
        if not is_list:
            return (f"{name}.remove()",)
        clear = (f"{name}.clear()",) if not isinstance(getattr(statement, "value", None), ast.Tuple) else ()
        return (f"for handle in {name}:\n    handle.remove()", *clear)

    title = f"the hook of {parsed.name}:{store.line} removed"
    if isinstance(target, ast.Name) and isinstance(scope.node, FUNCTIONS):
        ended = at_end_of(Draft("remove", f"{title} at the end of {scope.name}()"), parsed, scope, *release(target.id))
        if ended is not None:
            yield ended
    elif isinstance(target, ast.Name):  # in a loop of the module
        for loop in store.found.loops[:1]:
            yield Draft("remove", f"{title} at the end of the loop").append(parsed, loop, *release(target.id))
    elif isinstance(target, ast.Attribute) and scope.outer is not None and scope.outer.is_class:
        for file, made, name in _instances(case, scope.outer.name.rpartition(".")[2]):
            draft = Draft(f"remove {name}", f"{title} after the last use of `{name}`")
            code = release(f"{name}.{target.attr}")
            if isinstance(made.scope.node, FUNCTIONS):
                ended = at_end_of(draft, file, made.scope, *code)
                if ended is not None:
                    yield ended
            elif made.loops:
                yield draft.append(file, made.loops[-1], *code)


def _instances(case: Case, class_name: str) -> Iterator[tuple[ParsedFile, FoundNode, str]]:
    """(file, place, name) of the variables that are bound to new objects of a class or its subclasses."""
    names = {class_name, *(class_of(hop) for hop in case.trace if class_name in case.sources.bases(class_of(hop)))}
    for name in sorted(names - {""}):
        for parsed in case.sources.containing(name):
            for one in parsed.found:
                node = one.node
                if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                    continue
                if last_name(node.value.func) == name and isinstance(node.targets[0], ast.Name):
                    yield parsed, one, node.targets[0].id


def _weak_hook(parsed: ParsedFile, store: Store) -> Iterator[Draft]:
    """A hook that is a bound method held by a weak reference."""
    for given in store.values:
        if (
            isinstance(given, ast.Attribute)
            and isinstance(given.value, ast.Name)
            and store.found.scope.outer is not None
        ):
            if given.value.id not in store.found.scope.parameters[:1]:
                continue
            method, needs = imported(parsed, "weakref", "WeakMethod")
            name = new_name(store.found.scope, given.attr, f"weak_{given.attr}")
            draft = Draft("weak", f"`WeakMethod` of {given.attr}() at {parsed.name}:{store.line}")
            draft = draft.before(parsed, store.found.statement, f"{name} = {method}({code_of(parsed, given)})")
            yield draft.replace(parsed, given, f"lambda *args: {name}()(*args)").imports(parsed, needs)


# ------------------------------------------------------------------------------------------------------------ entries


def entry_drafts(case: Case) -> Iterator[Draft]:
    """The entry of a dict by which a cycle leads on removed after its last use."""
    if case.finding.freed_by == FreedBy.PROGRAM:
        return
    for hop in case.trace:
        match = re.fullmatch(r"\['(\w+)'\]", hop.reference)
        if match is None or hop.kind != ObjectKind.CONTAINER:
            continue
        for parsed in case.sources.matching(rf"\[['\"]{match[1]}['\"]\]"):
            last: dict[int, tuple[ast.Subscript, Scope]] = {}
            for names in parsed.reads.values():
                for node, scope in names:
                    above = next(parsed.above(node), None)
                    if not isinstance(above, ast.Subscript) or above.value is not node:
                        continue
                    key = above.slice.value if isinstance(above.slice, ast.Constant) else None
                    known = last.get(id(scope))
                    is_later = known is None or known[0].lineno < above.lineno
                    if key == match[1] and is_later and _is_read(parsed, above):
                        last[id(scope)] = above, scope
            for subscript, _ in last.values():
                statement = next((up for up in parsed.above(subscript) if isinstance(up, ast.stmt)), None)
                if statement is None or isinstance(statement, (ast.Return, ast.For, ast.While, ast.If)):
                    continue
                code = f"del {code_of(parsed, subscript)}"
                draft = Draft("entry", f"`{code}` after its use at {parsed.name}:{statement.lineno}")
                yield draft.after(parsed, statement, code)


def _is_read(parsed: ParsedFile, node: ast.Subscript) -> bool:
    """Whether an item is read, and not only one of its own items set."""
    above = next(parsed.above(node), None)
    sets = isinstance(above, ast.Subscript) and above.value is node and not isinstance(above.ctx, ast.Load)
    return isinstance(node.ctx, ast.Load) and not sets


# ----------------------------------------------------------------------------------------------------------- contexts


def context_drafts(finding: Finding, sources: Sources) -> Iterator[Draft]:
    """`with` for contexts that are entered by hand."""
    reported = {reference.where for reference in finding.cut.references} if finding.cut is not None else set()
    found = [
        (parsed, one)
        for parsed in sources.containing("__enter__")
        for one in parsed.found
        if isinstance(one.node, ast.Call) and isinstance(one.node.func, ast.Attribute)
        if one.node.func.attr == "__enter__"
    ]
    at_line = [(parsed, one) for parsed, one in found if f"{parsed.name}:{one.statement.lineno}" in reported]
    for parsed, one in at_line or found:
        assert isinstance(one.node, ast.Call) and isinstance(one.node.func, ast.Attribute)
        yield from _as_with(parsed, one, one.node.func.value)
    if finding.rule == RuleName.NATIVE_HOLD:
        yield from _of_profiler(sources)


def _as_with(parsed: ParsedFile, one: FoundNode, manager: ast.expr) -> Iterator[Draft]:
    statement = one.statement
    name = ""
    if isinstance(statement, ast.Assign) and statement.value is one.node and len(statement.targets) == 1:
        name = code_of(parsed, statement.targets[0])
    elif not (isinstance(statement, ast.Expr) and statement.value is one.node):
        return
    rest = rest_of_block(parsed, statement)
    exits = [k for k, other in enumerate(rest) if _exits(other, manager)]
    body = rest[: exits[0]] if exits else rest
    if not body:
        return
    draft = Draft("with", f"`with` for the context at {parsed.name}:{statement.lineno}").remove(parsed, statement)
    if exits:
        draft = draft.remove(parsed, rest[exits[0]])
    text = code_of(parsed, manager)
    made = _made_before(parsed, statement, manager)
    if made is not None:
        draft, text = draft.remove(parsed, made), code_of(parsed, made.value)
    yield draft.wrap(parsed, body[0], body[-1], f"with {text}{f' as {name}' if name else ''}:")


def _of_profiler(sources: Sources) -> Iterator[Draft]:
    """A profiler that keeps no tensors: without their shapes, or whose results are dropped after their last use."""
    for parsed in sources.matching(r"\bprofile\("):
        for one in parsed.found:
            if not isinstance(one.node, ast.Call) or last_name(one.node.func) != "profile":
                continue
            for keyword in one.node.keywords:
                if keyword.arg == "record_shapes" and ast.unparse(keyword.value) == "True":
                    draft = Draft("shapes", f"`record_shapes=False` at {parsed.name}:{keyword.value.lineno}")
                    yield draft.replace(parsed, keyword.value, "False")
            if isinstance(one.statement, ast.With):
                yield from _dropped_results(parsed, one, one.statement)


def _dropped_results(parsed: ParsedFile, one: FoundNode, statement: ast.With) -> Iterator[Draft]:
    name = next((i.optional_vars for i in statement.items if i.context_expr is one.node), None)
    if not isinstance(name, ast.Name):
        return
    rest = rest_of_block(parsed, statement)
    uses = [other for other in rest if name.id in names_in(other)]
    code = f"{name.id}.profiler = None"
    draft = Draft("results", f"`{code}` after its use")
    if uses and isinstance(uses[-1], ast.Return):
        yield _before_return(draft, parsed, one.scope, uses[-1], code)
    else:
        yield draft.after(parsed, uses[-1] if uses else statement, code)


def _exits(statement: ast.stmt, manager: ast.expr) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "__exit__":
        return False
    return ast.unparse(call.func.value) == ast.unparse(manager)


def _made_before(parsed: ParsedFile, statement: ast.stmt, manager: ast.expr) -> ast.Assign | None:
    """The statement right before that makes the context manager, if it is used for nothing else."""
    block = block_of(parsed, statement)
    before = block[block.index(statement) - 1] if block and block[0] is not statement else None
    if not isinstance(manager, ast.Name) or not isinstance(before, ast.Assign) or len(before.targets) != 1:
        return None
    if ast.unparse(before.targets[0]) != manager.id:
        return None
    uses = [n for other in block for n in ast.walk(other) if isinstance(n, ast.Name) and n.id == manager.id]
    called = [n for other in block for n in ast.walk(other) if isinstance(n, ast.Attribute) and n.value in uses]
    names = {node.attr for node in called}
    return before if names <= {"__enter__", "__exit__"} and len(called) == len(uses) - 1 else None


_CLOSERS = {
    "ThreadPoolExecutor": "shutdown()",
    "ProcessPoolExecutor": "shutdown()",
    "SummaryWriter": "close()",
    "ThreadPool": "terminate()",
    "Pool": "terminate()",
    "Timer": "cancel()",
}
"""Types that are made to be closed, mapped to what closes them."""
_MANAGERS = frozenset(_CLOSERS) - {"Timer"}


_FIGURES = ("figure", "subplots", "subplot_mosaic")
"""Functions of matplotlib.pyplot that make a figure, which pyplot keeps until it is closed."""


def closing_drafts(finding: Finding, sources: Sources) -> Iterator[Draft]:
    """An executor, a pool or a writer that is closed when the block that made it ends."""
    types = {word for hop in finding.trace for word in re.findall(r"\w+", f"{hop.type} {hop.name}")} & set(_CLOSERS)
    for kind in sorted(types):
        for parsed in sources.containing(kind):
            for one in parsed.found:
                node = one.node
                if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or not one.scope.outer:
                    continue
                if last_name(node.value.func) != kind or not isinstance(node.targets[0], ast.Name):
                    continue
                yield from _closed(parsed, one, node.targets[0].id, kind)
    if any("matplotlib" in f"{hop.type} {hop.name} {hop.where}" for hop in finding.trace):
        yield from _figures_closed(sources)


def _figures_closed(sources: Sources) -> Iterator[Draft]:
    """`plt.close(fig)` after the last use of each figure."""
    for parsed in sources.containing("pyplot"):
        for one in parsed.found:
            call = one.node.value if isinstance(one.node, ast.Assign) else None
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            target = one.node.targets[0] if isinstance(one.node, ast.Assign) else None
            first = target.elts[0] if isinstance(target, (ast.Tuple, ast.List)) else target
            if call.func.attr not in _FIGURES or not isinstance(first, ast.Name):
                continue
            block = block_of(parsed, one.statement)
            names = bound_in(one.statement)
            used = [other for other in block if names & names_in(other)]
            code = f"{code_of(parsed, call.func.value)}.close({first.id})"
            draft = Draft("figure", f"`{code}` at {parsed.name}:{one.statement.lineno}")
            if used and isinstance(used[-1], ast.Return):
                yield _before_return(draft, parsed, one.scope, used[-1], code)
            elif used:
                yield draft.after(parsed, used[-1], code)


def _closed(parsed: ParsedFile, one: FoundNode, name: str, kind: str) -> Iterator[Draft]:
    rest = rest_of_block(parsed, one.statement)
    assert isinstance(one.node, ast.Assign)
    if kind in _MANAGERS and rest:
        draft = Draft("with", f"`with {kind}()` at {parsed.name}:{one.statement.lineno}").remove(parsed, one.statement)
        yield draft.wrap(parsed, rest[0], rest[-1], f"with {code_of(parsed, one.node.value)} as {name}:")
    code = f"{name}.{_CLOSERS[kind]}"
    ended = at_end_of(Draft("close", f"`{code}` at the end of {one.scope.name}()"), parsed, one.scope, code, reads=name)
    if ended is not None:
        yield ended


# ------------------------------------------------------------------------------------------------------ exit handlers


def exit_drafts(case: Case) -> Iterator[Draft]:
    """An exit handler that is unregistered when it has run, or does not keep its object alive."""
    for store in case.stores:
        parsed = case.parsed(store)
        given = store.values[0] if store.values else None
        if parsed is None or given is None or not isinstance(store.target, ast.Attribute):
            continue
        statement, scope = store.found.statement, store.found.scope
        atexit = code_of(parsed, store.target.value)
        around = scope.outer
        if isinstance(given, ast.Attribute) and around is not None and around.is_class:
            handler = next((s for s in parsed.scopes if s.outer is around and s.name.endswith(f".{given.attr}")), None)
            if handler is not None and isinstance(handler.node, FUNCTIONS) and handler.parameters:
                code = f"{atexit}.unregister({handler.parameters[0]}.{given.attr})"
                ended = at_end_of(Draft("unregister", f"`{code}` in {given.attr}()"), parsed, handler, code)
                if ended is not None:
                    yield ended
            yield from _weak_handler(parsed, store, given)
            for file, made, name in _instances(case, around.name.rpartition(".")[2]):
                code = f"{atexit}.unregister({name}.{given.attr})"
                closes = () if f"{name}.{given.attr}()" in ast.unparse(made.scope.node) else (f"{name}.{given.attr}()",)
                draft = Draft("unregister after", f"`{code}` after the last use of `{name}`")
                draft = draft.imports(file, f"import {atexit}" if atexit not in file.module.imported else "")
                if isinstance(made.scope.node, FUNCTIONS):
                    ended = at_end_of(draft, file, made.scope, *closes, code)
                    if ended is not None:
                        yield ended
        yield Draft("not registered", f"without the exit handler at {store.where}").remove(parsed, statement)


def _weak_handler(parsed: ParsedFile, store: Store, given: ast.Attribute) -> Iterator[Draft]:
    method, needs = imported(parsed, "weakref", "WeakMethod")
    name = new_name(store.found.scope, given.attr, f"weak_{given.attr}")
    draft = Draft("weak", f"`WeakMethod` of {given.attr}() at {store.where}")
    draft = draft.before(parsed, store.found.statement, f"{name} = {method}({code_of(parsed, given)})")
    yield draft.replace(parsed, given, f"lambda: (run := {name}()) and run()").imports(parsed, needs)


# ---------------------------------------------------------------------------------------------------------- pipelines


def pipeline_drafts(finding: Finding, cases: Sequence[Case], sources: Sources) -> Iterator[Draft]:
    """`leakscope.backward` in place of a pipeline's own backward, or of torch's."""
    function = finding.see.name if finding.see is not None else ""
    if function == "install":
        yield from _installed(sources)
    for case in cases:
        for store in case.stores:
            parsed = case.parsed(store)
            if parsed is not None and store.name == "def" and isinstance(store.found.node, FUNCTIONS):
                yield from _deleted_always(parsed, store.found)
                yield from _stage_backward(parsed, store.found)


def _deleted_always(parsed: ParsedFile, walker: FoundNode) -> Iterator[Draft]:
    """A recursive function that is forgotten in any case: `del walk` for `if tidy: del walk`."""
    code = f"del {getattr(walker.node, 'name', '')}"
    for node in ast.walk(walker.scope.node):
        body = node.body if isinstance(node, ast.If) and not node.orelse else []
        if isinstance(node, ast.If) and len(body) == 1 and ast.unparse(body[0]) == code:
            yield Draft("del", f"`{code}` always at {parsed.name}:{node.lineno}").instead(parsed, node, code)


def _stage_backward(parsed: ParsedFile, walker: FoundNode) -> Iterator[Draft]:
    """`stage_backward` for a nested function that collects outputs and gradients, and the backward that uses them."""
    function, definition = walker.scope.node, walker.node
    if not isinstance(function, FUNCTIONS) or not isinstance(definition, FUNCTIONS):
        return
    collected = {
        node.func.value.id
        for node in ast.walk(definition)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("append", "extend")
        if isinstance(node.func.value, ast.Name)
    }
    given: list[ast.expr] = []
    backward: ast.stmt | None = None
    kept: list[ast.stmt] = []
    for statement in function.body:
        called = statement.value if isinstance(statement, ast.Expr) else None
        names = names_in(statement)
        if isinstance(called, ast.Call) and last_name(called.func) == definition.name:
            given = list(called.args)
        elif backward is None and collected & names and _runs_backward(statement):
            backward = statement
            kept.append(statement)
        elif (
            statement is definition
            or (collected and bound_in(statement) and bound_in(statement) <= collected)
            or (isinstance(statement, ast.If) and definition.name in names)
        ):
            continue
        elif names & (collected | {definition.name}):
            return
        else:
            kept.append(statement)
    if backward is None or not given or function.decorator_list:
        return
    outputs = code_of(parsed, given[0])
    grads = code_of(parsed, given[1]) if len(given) > 1 else "None"
    if len(given) == 1:
        free = [name for name in walker.scope.parameters if name in names_in(backward) and name != outputs]
        grads = free[0] if free else grads
    code = [f"stage_backward({outputs}, {grads}, ())" if one is backward else code_of(parsed, one) for one in kept]
    indent = " " * function.col_offset
    head = [line.removeprefix(indent) for line in parsed.lines[function.lineno - 1 : function.body[0].lineno - 1]]
    while head and not head[-1].strip():
        head.pop()
    body = [f"    {line}" if line else "" for part in code for line in part.split("\n")]
    draft = Draft("stage_backward", f"`leakscope.backward.stage_backward` in {walker.scope.name}()")
    draft = draft.instead(parsed, function, "\n".join((*head, *body)))
    yield draft.imports(parsed, "from leakscope.backward import stage_backward")


def _runs_backward(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call) and last_name(node.func) == "backward" for node in ast.walk(statement))


_SCHEDULES = re.compile(r"Schedule\w+|PipelineStage")


def _installed(sources: Sources) -> Iterator[Draft]:
    """`install()` before the first stage or schedule of torch's pipelining is made."""
    for parsed in sources.matching(r"\b(PipelineStage|Schedule\w+)\b"):
        for one in parsed.found:
            if isinstance(one.node, ast.Call) and _SCHEDULES.fullmatch(last_name(one.node.func)):
                for options in ("release_outputs=True", ""):
                    draft = Draft(f"install {options}", f"`leakscope.backward.install({options})`")
                    draft = draft.before(parsed, one.statement, f"install({options})")
                    yield draft.imports(parsed, "from leakscope.backward import install")
                return
