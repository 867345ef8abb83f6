"""Edits of the value that a line stores: a number, a detached tensor, a copy of a view, an error without its frames."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence

from leakscope.findings.facts import FreedBy, RuleName
from leakscope.findings.model import Finding
from leakscope.findings.source.edits import StoreCase, effects_of, is_a_store, is_count, is_fixed
from leakscope.findings.source.index import FoundNode, ParsedFile, Scope, Sources, last_name
from leakscope.findings.source.stores import PACK, How, is_hooks, may_hold, mentions
from leakscope.fix.cycle_edits import cycle_candidates
from leakscope.fix.editor import SourceEditor
from leakscope.fix.graph_edits import graph_candidates
from leakscope.fix.model import Candidate
from leakscope.fix.plan import Plan, attempt, with_method
from leakscope.graph.model import TENSOR_KINDS, ObjectKind

_GROWTH = (RuleName.VIEW_HOLD, RuleName.STEP_GROWTH, RuleName.OBJECT_GROWTH, RuleName.P2P_BUFFER)
"""Rules of leaks that another value in the same place seldom fixes."""
Write = Callable[[SourceEditor, ast.expr], str | None]
"""Gives the new code of an expression; None if it does not apply."""


def value_candidates(finding: Finding, stores: Sequence[StoreCase], sources: Sources) -> Iterator[Candidate]:
    """Yield candidates that store another value, or make it in another way.

    Args:
        finding: The leak.
        stores: The stores of each reference of its cut.
        sources: The files of the run.

    Yields:
        Candidates, the most plausible first.

    """
    unread = list(_not_stored(stores))
    if finding.rule in _GROWTH:
        yield from unread
    if has_errors(finding):
        yield from _of_errors(stores)
    if finding.freed_by != FreedBy.PROGRAM:
        yield from cycle_candidates(finding, stores, sources)
    yield from _of_values(finding, stores, sources)
    yield from graph_candidates(finding, stores, sources)
    yield from unread
    yield from _counted(stores, sources)
    yield from _deleted(finding, stores)


# ---------------------------------------------------------------------------------------------------------- tensors


def keeps_graph(finding: Finding) -> bool:
    """Whether an autograd graph is retained."""
    if finding.rule == RuleName.RETAINED_GRAPH or finding.keeps_graphs:
        return True
    return any(hop.kind == ObjectKind.GRAD_NODE for hop in finding.trace)


def _of_values(finding: Finding, stores: Sequence[StoreCase], sources: Sources) -> Iterator[Candidate]:
    kinds = (*TENSOR_KINDS, ObjectKind.ARRAY)
    cases = [case for case in stores if case.held.kind in kinds or case.held.type in ("numpy.ndarray", "memoryview")]
    cases = [case for case in cases if not _is_of_function(case) and not is_fixed(case)]
    if not cases:
        return
    scalar = all(case.held.object.endswith("[]") for case in cases)
    for title, write in _ways(finding, cases, scalar, sources):
        yield from _each(title, write, cases)
        yield from _at_callers(title, write, cases, sources)
    if keeps_graph(finding):
        yield from _after_unpacking(cases)


def _is_of_function(case: StoreCase) -> bool:
    """Whether a line stores a function that leads to the tensor: a closure, a hook."""
    function = case.store.name in ("def", PACK, "saved_tensors_hooks") or is_hooks(case.holder.reference)
    return function or case.holder.reference.startswith("closure ")


def _ways(finding: Finding, cases: Sequence[StoreCase], scalar: bool, sources: Sources) -> list[tuple[str, Write]]:
    """What may be stored instead, the most plausible first."""
    ways: list[tuple[str, Write]] = []
    graph = keeps_graph(finding)
    view = finding.rule == RuleName.VIEW_HOLD or any(hop.reference == "._base" for hop in finding.trace)
    if view and not (graph and scalar):
        if graph:
            ways.append(("`.detach().clone()`", _method("detach().clone()")))
        if any(case.held.type == "memoryview" for case in cases):
            return [("`bytes()`", lambda e, x: f"bytes({e.source_of(x)})")]
        if any(case.held.type == "numpy.ndarray" for case in cases):
            return [("`.copy()`", _method("copy()"))]
        ways.append(("`.clone()`", _method("clone()")))
        ways.append(("`.clone()` before it is expanded", _before_expanding))
        ways += [] if graph else [("`.detach().clone()`", _method("detach().clone()"))]
        return ways
    numbers = [("`.item()`", _method("item()")), ("`float()`", _float)] if scalar else []
    if graph or finding.freed_by != FreedBy.PROGRAM:
        detached: list[tuple[str, Write]] = [("`.detach()`", _method("detach()"))]
        if any(case.holds_others or takes_numbers(case, sources) for case in cases):
            numbers = [*reversed(numbers), ("`.item()` of tensors", _guarded("item()"))] if scalar else []
            detached.append(("`.detach()` of tensors", _guarded("detach()")))
        elif scalar and any(case.uses.as_object() for case in cases):
            numbers, detached = [], [*detached, *numbers]
        return [*numbers, *detached]
    return numbers


def _method(call: str) -> Write:
    """A method call, or two in a row, in place of a `.detach()` that is there and does the first part."""
    first, _, rest = call.partition(".")

    def write(editor: SourceEditor, expr: ast.expr) -> str | None:
        inner = _called_on(expr)
        if inner is not None and first in ("item()", "detach()", "clone()", "copy()"):
            own = last_name(expr.func)  # type: ignore[attr-defined]
            if own == "item" or f"{own}()" == call:
                return None
            if own == "detach" and first == "item()":
                return with_method(editor, inner, call)
            if own == "detach" and first == "detach()":
                return with_method(editor, expr, rest)
        return with_method(editor, expr, call)

    return write


def _called_on(expr: ast.expr) -> ast.expr | None:
    """`x` of `x.detach()`."""
    is_method = isinstance(expr, ast.Call) and isinstance(expr.func, ast.Attribute) and not expr.args
    return expr.func.value if is_method else None  # type: ignore[attr-defined]


def _float(editor: SourceEditor, expr: ast.expr) -> str | None:
    if isinstance(expr, ast.Call) and last_name(expr.func) in ("float", "item"):
        return None
    return f"float({editor.source_of(expr)})"


def _guarded(call: str) -> Write:
    def write(editor: SourceEditor, expr: ast.expr) -> str | None:
        if not isinstance(expr, (ast.Name, ast.Attribute, ast.Subscript)):
            return None
        code = editor.source_of(expr)
        return f"({code}.{call} if isinstance({code}, torch.Tensor) else {code})"

    return write


def _before_expanding(editor: SourceEditor, expr: ast.expr) -> str | None:
    """`x[:1].clone().expand(n)` of `x[:1].expand(n)`."""
    if not isinstance(expr, ast.Call) or not isinstance(expr.func, ast.Attribute):
        return None
    if expr.func.attr not in ("expand", "expand_as", "broadcast_to") or ast.unparse(expr.func.value) == "torch":
        return None
    inner = editor.source_of(expr.func.value)
    return f"{with_method(editor, expr.func.value, 'clone()')}{editor.source_of(expr).removeprefix(inner)}"


def targets_of(case: StoreCase) -> list[ast.expr]:
    """The expressions of a store that give what is retained; several if the trace does not decide between them."""
    value, store = case.value, case.store
    if value is not None:
        return list(_parts(value, store.found)) or [value]
    if store.how == How.BINDS and isinstance(store.found.node, ast.Assign):
        if not any(store.target is one for one in store.found.node.targets):
            return []  # unpacked
        if mentions(store.values[0], store.target):
            return []
    given = store.values[:1] if store.key is not None else store.values
    return [part for value in given for part in _parts(value, store.found)]


def _parts(value: ast.expr, found: FoundNode) -> Iterator[ast.expr]:
    """The parts of a compound value that may hold memory."""
    if isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        inside: Iterable[ast.expr] = value.elts
    elif isinstance(value, ast.Dict):
        inside = value.values
    elif isinstance(value, ast.IfExp):
        inside = (value.body, value.orelse)
    elif isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        inside = (value.elt,)
    elif isinstance(value, ast.DictComp):
        inside = (value.value,)
    elif isinstance(value, ast.Call) and last_name(value.func) in ("dict", "SimpleNamespace") and value.keywords:
        inside = [keyword.value for keyword in value.keywords]
    else:
        if may_hold(value, found) and not is_count(value, found) and not isinstance(value, ast.Starred):
            yield value
        return
    for part in inside:
        yield from _parts(part, found)


def _is_derived(case: StoreCase, cases: Sequence[StoreCase]) -> bool:
    """Whether a value is computed from what another store keeps: `self.avg = self.sum / self.count`."""
    return any(
        mentions(value, other.store.target)
        for other in cases
        for value in case.store.values
        if ast.unparse(other.store.target) != ast.unparse(case.store.target)
    )


def _each(title: str, write: Write, cases: Sequence[StoreCase]) -> Iterator[Candidate]:
    """The candidate with all stores rewritten; if some are derived from others, first that of the others alone."""
    own = [case for case in cases if not _is_derived(case, cases)]
    for chosen in [own, cases] if own and len(own) < len(cases) else [cases]:
        found = attempt(title, lambda plan, chosen=chosen: rewrite(plan, chosen, write))  # type: ignore[misc]
        if found is not None:
            yield found


def rewrite(plan: Plan, cases: Sequence[StoreCase], write: Write) -> bool:
    """Rewrite the values of some stores; False if nothing was rewritten."""
    done: set[ast.expr] = set()
    for case in cases:
        for value in targets_of(case):
            if value not in done:
                done |= _replace(plan, case.parsed, value, write)
    return bool(done)


def _replace(plan: Plan, parsed: ParsedFile, value: ast.expr, write: Write) -> set[ast.expr]:
    editor = plan.of(parsed)
    code = write(editor, value)
    if code is None:
        return set()
    above = next(parsed.above(value), None)
    alone = (ast.Call, ast.List, ast.Assign, ast.Dict, ast.Tuple, ast.AugAssign, ast.Return, ast.keyword, ast.AnnAssign)
    if code.startswith("(") and code.endswith("else " + editor.source_of(value) + ")") and isinstance(above, alone):
        code = code[1:-1]
    if "torch." in code and "torch" not in parsed.module.imported:
        editor.add_import("import torch")
    editor.replace(value, code)
    return {value}


# -------------------------------------------------------------------------------------------------- values elsewhere


def _at_callers(title: str, write: Write, cases: Sequence[StoreCase], sources: Sources) -> Iterator[Candidate]:
    """Rewrite the argument of each call that passes the value to the function that stores it."""
    given = {id(arg): (parsed, arg) for case in cases for parsed, arg in _arguments(case, sources)}

    def edit(plan: Plan) -> bool:
        return bool([1 for parsed, arg in given.values() if _replace(plan, parsed, arg, write)])

    if "of tensors" not in title and (found := attempt(f"{title} for the call", edit)):
        yield found


def _arguments(case: StoreCase, sources: Sources) -> Iterator[tuple[ParsedFile, ast.expr]]:
    """Arguments of calls that are the stored value, a parameter of the function around the store."""
    scope = case.store.found.scope
    for value in targets_of(case):
        for name in {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}:
            if name in (*scope.parameters, *scope.keywords) and name not in scope.bound:
                passed = _passed_for(name, scope, sources)
                yield from ((parsed, arg) for parsed, arg, found in passed if _may_be_tensor(arg, found))


def _passed_for(name: str, scope: Scope, sources: Sources) -> Iterator[tuple[ParsedFile, ast.expr, FoundNode]]:
    """What calls pass for a parameter."""
    own = scope.name.rpartition(".")[2]
    if own == "__init__" and scope.outer is not None:
        own = scope.outer.name.rpartition(".")[2]
    is_method = scope.outer is not None and scope.outer.is_class
    place = scope.parameters.index(name) - is_method if name in scope.parameters else -1
    if place < 0 and name in scope.parameters:
        return
    for parsed in sources.containing(own):
        for one in parsed.found:
            if not isinstance(one.node, ast.Call) or last_name(one.node.func) != own:
                continue
            args = [keyword.value for keyword in one.node.keywords if keyword.arg == name]
            args = args or (one.node.args[place : place + 1] if place >= 0 else [])
            yield from ((parsed, arg, one) for arg in args)


def takes_numbers(case: StoreCase, sources: Sources) -> bool:
    """Whether some calls pass a plain number for the parameter that is stored."""
    scope = case.store.found.scope
    return any(
        not _may_be_tensor(arg, found)
        for value in targets_of(case)
        for name in {node.id for node in ast.walk(value) if isinstance(node, ast.Name)} & {*scope.parameters[1:]}
        for _, arg, found in _passed_for(name, scope, sources)
    )


def _may_be_tensor(arg: ast.expr, found: FoundNode) -> bool:
    if isinstance(arg, ast.BinOp):  # `time.time() - start`
        return any(_may_be_tensor(part, found) for part in (arg.left, arg.right)) and not any(
            isinstance(node, ast.Attribute) and node.attr in ("time", "perf_counter") for node in ast.walk(arg)
        )
    return may_hold(arg, found) and not isinstance(arg, ast.Starred)


def _after_unpacking(cases: Sequence[StoreCase]) -> Iterator[Candidate]:
    """`state = state.detach()` after `out, state = net(x, state)`, and before the loop's next turn."""

    def edit(several: bool) -> Callable[[Plan], bool]:
        def write(plan: Plan) -> bool:
            done = False
            for case in cases:
                store, node = case.store, case.store.found.node
                if store.how != How.BINDS or not isinstance(node, ast.Assign):
                    continue
                if any(store.target is one for one in node.targets):
                    continue
                editor = plan.of(case.parsed)
                name = editor.source_of(store.target)
                value = f"tuple(part.detach() for part in {name})" if several else f"{name}.detach()"
                editor.insert_after(store.found.statement, f"{name} = {value}")
                done = True
            return done

        return write

    tuples = any(hop.kind == ObjectKind.CONTAINER for case in cases for hop in case.trace[case.place + 1 : case.at])
    for several in (tuples, not tuples):
        found = attempt("`.detach()` of what is carried on", edit(several))
        if found is not None:
            yield found


# ------------------------------------------------------------------------------------------------------ without value


def _not_stored(stores: Sequence[StoreCase]) -> Iterator[Candidate]:
    """Remove stores that nothing reads in the files of the run; calls in their values stay."""
    chosen = {
        case.store.found.statement: case
        for case in stores
        if is_a_store(case.store) and not _is_of_function(case)
        if not any(isinstance(node, ast.Lambda) for value in case.store.values for node in ast.walk(value))
    }

    def edit(plan: Plan) -> bool:
        for statement, case in chosen.items():
            _without_store(plan, case, statement)
        return True

    if len(chosen) == len(stores) > 0 and all(case.uses.never_read() for case in chosen.values()):
        found = attempt("without the store", edit)
        if found is not None:
            yield found


def _without_store(plan: Plan, case: StoreCase, statement: ast.stmt, *more: str) -> None:
    editor = plan.of(case.parsed)
    calls = [editor.source_of(call) for value in case.store.values for call in effects_of(value)]
    if calls or more:
        editor.replace_statement(statement, *calls, *more)
    else:
        editor.remove(statement)


def _counted(stores: Sequence[StoreCase], sources: Sources) -> Iterator[Candidate]:
    """A number in place of a list of which only the length is read."""

    def edit(plan: Plan) -> bool:
        case = stores[0]
        target, scope = case.store.target, case.store.found.scope
        name = last_name(target)
        owner = scope.owner(name) if isinstance(target, ast.Name) else None
        if isinstance(target, ast.Name) and owner is not scope:
            return False
        begun, reads = _list_of(name, owner, case.parsed, sources)
        if not begun or any(last_name(one.store.target) != name for one in stores):
            return False
        for parsed, value in begun:
            plan.of(parsed).replace(value, "0")
        for parsed, read in reads:
            above = list(parsed.above(read))[:3]
            call = above[0] if above else None
            if isinstance(call, ast.Call) and last_name(call.func) == "len" and call.args == [read]:
                plan.of(parsed).replace(call, plan.of(parsed).source_of(read))
            elif not isinstance(call, ast.Attribute) or call.attr != "append" or not isinstance(above[-1], ast.Expr):
                return False
        for one in stores:
            if one.store.name != "append" or not is_a_store(one.store):
                return False
            text = plan.of(one.parsed).source_of(one.store.target)
            _without_store(plan, one, one.store.found.statement, f"{text} += 1")
        appends = [read for _, read in reads if any(read is one.store.target for one in stores)]
        return len(appends) == len(stores) < len(reads)

    if stores and (found := attempt("the number of items alone", edit)) is not None:
        yield found


def _list_of(
    name: str, owner: Scope | None, parsed: ParsedFile, sources: Sources
) -> tuple[list[tuple[ParsedFile, ast.expr]], list[tuple[ParsedFile, ast.expr]]]:
    """The empty lists that are bound to a variable or attribute, and its reads; none if anything else is bound."""
    files = [parsed] if owner is not None else sources.containing(name)
    reads = [
        (its, read)
        for its in files
        for read, scope in its.reads.get(name, ())
        if owner is None or (isinstance(read, ast.Name) and scope.owner(name) is owner)
    ]
    if owner is not None:
        values = [(parsed, binding.value) for binding in owner.bound.get(name, ())]
    else:
        values = [
            (its, value)
            for its in files
            for (_, attribute), stored in its.stored_in_self.items()
            if attribute == name
            for _, value in stored
        ]
    empty = all(isinstance(value, ast.List) and not value.elts for _, value in values)
    return (values if empty else []), reads


def _deleted(finding: Finding, stores: Sequence[StoreCase]) -> Iterator[Candidate]:
    """`del name` at the end of each turn of the loop that binds it, for a local that holds the memory itself."""
    held = finding.trace[0] if finding.trace else None
    if held is None or held.kind != ObjectKind.FRAME:
        return

    def edit(plan: Plan) -> bool:
        for case in stores:
            store = case.store
            alone = store.how == How.BINDS and isinstance(store.found.node, ast.Assign) and store.found.loops
            if not alone or not isinstance(store.target, ast.Name) or mentions(store.values[0], store.target):
                return False
            plan.of(case.parsed).append_to_body(store.found.loops[-1], f"del {store.target.id}")
        return bool(stores)

    if (found := attempt("`del` at the end of the loop", edit)) is not None:
        yield found


# ----------------------------------------------------------------------------------------------------------- errors


def has_errors(finding: Finding) -> bool:
    """Whether an exception retains the memory by its frames."""
    return any(hop.kind in (ObjectKind.EXCEPTION, ObjectKind.TRACEBACK) for hop in finding.trace)


def _of_errors(stores: Sequence[StoreCase]) -> Iterator[Candidate]:
    """The text of an error, or the error without its traceback."""
    text: list[tuple[str, Write]] = [("`str()` of the error", lambda e, x: f"str({e.source_of(x)})")]
    bare: list[tuple[str, Write]] = [
        ("`.with_traceback(None)`", lambda e, x: with_method(e, x, "with_traceback(None)")),
    ]
    as_text = bool(stores) and all(case.uses.as_text() for case in stores)
    others: list[tuple[str, Write]] = [
        ("`repr()` of the error", lambda e, x: f"repr({e.source_of(x)})"),
        ("`traceback.format_exc()`", _formatted),
    ]
    for title, write in [*text, *bare, *others] if as_text else [*bare, *text, *others]:

        def edit(plan: Plan, write: Write = write) -> bool:
            done = False
            for case in stores:
                for value in targets_of(case):
                    if not _is_error(value, case):
                        continue
                    editor = plan.of(case.parsed)
                    code = write(editor, value)
                    if code is not None:
                        editor.replace(value, code)
                        done = True
                    if code == "traceback.format_exc()":
                        editor.add_import("import traceback")
            return done

        if (found := attempt(title, edit)) is not None:
            yield found


def _formatted(editor: SourceEditor, value: ast.expr) -> str | None:
    return None if "(" in editor.source_of(value).removesuffix("()") else "traceback.format_exc()"


def _is_error(value: ast.expr, case: StoreCase) -> bool:
    """Whether an expression may be the error: its name, not a count or a batch beside it."""
    names = {node.name for node in ast.walk(case.parsed.module.node) if isinstance(node, ast.ExceptHandler)}
    if isinstance(value, ast.Name):
        return value.id in names or case.value is value
    return (isinstance(value, ast.Call) and last_name(value.func) in ("exc_info", "exception")) or case.value is value
