"""Edits that open a cycle: closures, bound methods, back-references, contexts of Functions, hooks for saved tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from leakscope.findings.model import CutReference, Finding
from leakscope.findings.naming import place_of
from leakscope.findings.source.edits import StoreCase
from leakscope.findings.source.index import FoundNode, ParsedFile, Scope, Sources, last_name, pairs
from leakscope.findings.source.stores import PACK, How, Store, function_of, is_hooks, stores_for
from leakscope.fix.model import Candidate
from leakscope.fix.plan import Plan, attempt
from leakscope.graph.model import TENSOR_KINDS, ObjectKind

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_WEAKLY = (ObjectKind.INSTANCE, ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER)
"""Kinds of objects of which a weak reference is of use."""


def cycle_candidates(finding: Finding, stores: Sequence[StoreCase], sources: Sources) -> Iterator[Candidate]:
    """Yield candidates that open a cycle of references.

    Args:
        finding: The leak.
        stores: The stores of each reference of its cut.
        sources: The files of the run.

    Yields:
        Candidates, the most plausible first.

    """
    yield from _of_contexts(stores)
    yield from _of_packs(stores)
    yield from _of_functions(finding, sources)
    yield from _of_frames(finding, sources)
    yield from _of_registered_methods(finding, sources)
    others = list(_others_of_cycle(finding, sources))
    yield from _of_methods([*stores, *others], sources)
    yield from _of_back_references([*stores, *others], sources)


# --------------------------------------------------------------------------------------- contexts of autograd.Function


def _of_contexts(stores: Sequence[StoreCase]) -> Iterator[Candidate]:
    """`ctx.save_for_backward(out)` for `ctx.out = out`, with its other half in backward."""
    cases = [case for case in stores if case.holder.kind == ObjectKind.GRAD_NODE and _is_of_context(case.store)]
    for scope in dict.fromkeys(case.store.found.scope for case in cases):
        own = [case for case in cases if case.store.found.scope is scope]
        found = attempt("`ctx.save_for_backward()`", lambda plan, own=own: _saved(plan, own))  # type: ignore[misc]
        if found is not None:
            yield found


def _is_of_context(store: Store) -> bool:
    target, node = store.target, store.found.node
    if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name):
        return False
    is_alone = isinstance(node, ast.Assign) and len(node.targets) == 1 and node.targets[0] is target
    return is_alone and store.found.scope.parameters[:1] == (target.value.id,)


def _saved(plan: Plan, cases: Sequence[StoreCase]) -> bool:
    first, scope = cases[0], cases[0].store.found.scope
    around = scope.outer
    if around is None or not isinstance(scope.node, ast.FunctionDef):
        return False
    parsed, editor, ctx = first.parsed, plan.of(first.parsed), scope.parameters[0]
    names: dict[str, str] = {}
    """Attribute, mapped to the variable that is saved."""
    assigns = sorted({case.store.found.node for case in cases}, key=lambda node: node.lineno)  # type: ignore[attr-defined]
    present = _call_in(scope.node, "save_for_backward")
    args = [editor.source_of(arg) for arg in present.args] if present is not None else []
    own_statement = next((s for s in ast.walk(scope.node) if isinstance(s, ast.Expr) and s.value is present), None)
    if present is not None and own_statement is None:
        return False
    for node in assigns:
        assert isinstance(node, ast.Assign)
        assert isinstance(node.targets[0], ast.Attribute)
        attribute = node.targets[0].attr
        taken = (*scope.parameters, *scope.bound)
        is_name = isinstance(node.value, ast.Name)
        variable = node.value.id if isinstance(node.value, ast.Name) else attribute
        if not is_name and variable in taken:
            variable = f"{attribute}_"
        names[attribute] = variable
        code = [] if is_name else [f"{variable} = {editor.source_of(node.value)}"]
        if node is assigns[-1]:
            saved = dict.fromkeys((*args, *names.values()))
            code.append(f"{ctx}.save_for_backward({', '.join(saved)})")
        editor.replace_statement(node, *code)
    if own_statement is not None and not set(names.values()) <= set(args):
        editor.remove(own_statement)
    for other in (s for s in parsed.scopes if s.outer is around):
        if not _reads_saved(plan, parsed, other, scope, names, len(args)):
            return False
    return True


def _call_in(tree: ast.AST, name: str) -> ast.Call | None:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and last_name(node.func) == name)
    return next(calls, None)


def _reads_saved(
    plan: Plan, parsed: ParsedFile, other: Scope, forward: Scope, names: dict[str, str], before: int
) -> bool:
    """Rewrite the reads of attributes of ctx in one method; False if it also sets or deletes them."""
    if not isinstance(other.node, ast.FunctionDef):
        return True
    assert isinstance(forward.node, ast.FunctionDef)
    set_here = {id(node) for node in ast.walk(forward.node) if isinstance(node, ast.Assign) for node in node.targets}
    editor = plan.of(parsed)
    reads = [n for n in ast.walk(other.node) if isinstance(n, ast.Attribute) and n.attr in names]
    reads = [n for n in reads if isinstance(n.value, ast.Name) and id(n) not in set_here]
    if not reads:
        return True
    if any(not isinstance(node.ctx, ast.Load) for node in reads):
        return False
    if other is forward:
        for node in reads:
            editor.replace(node, names[node.attr])
        return True
    ctx = reads[0].value.id  # type: ignore[attr-defined]
    taken = {n for n in (*other.bound, *other.parameters)}
    local = {a: f"{v}_" if v in taken else v for a, v in names.items()}
    for node in reads:
        editor.replace(node, local[node.attr])
    unpacks = [
        node
        for node in ast.walk(other.node)
        if isinstance(node, ast.Assign) and last_name(node.value) == "saved_tensors" and len(node.targets) == 1
    ]
    targets = unpacks[0].targets[0] if unpacks else None
    variables = [local[a] for a in {v: a for a, v in names.items()}.values()]
    if isinstance(targets, ast.Tuple) and len(targets.elts) == before:
        present = [editor.source_of(one) for one in targets.elts]
        editor.replace_statement(unpacks[0], f"{', '.join((*present, *variables))} = {ctx}.saved_tensors")
        return True
    if unpacks and before:
        return False
    body = other.node.body
    has_doc = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1
    if before:
        code = [f"{variable} = {ctx}.saved_tensors[{before + k}]" for k, variable in enumerate(variables)]
    else:
        left = f"({variables[0]},)" if len(variables) == 1 else ", ".join(variables)
        code = [f"{left} = {ctx}.saved_tensors"]
    editor.insert_before(body[int(has_doc)], *code)
    return True


def _of_packs(stores: Sequence[StoreCase]) -> Iterator[Candidate]:
    """`.detach()` of what a pack hook returns."""

    def edit(plan: Plan) -> bool:
        done = False
        for case in stores:
            for parsed, name, value in _packed(case):
                for node in _whole(value):
                    if isinstance(node, ast.Name) and node.id == name:
                        plan.of(parsed).replace(node, f"{name}.detach()")
                        done = True
        return done

    if (found := attempt("`.detach()` in the pack hook", edit)) is not None:
        yield found


def _packed(case: StoreCase) -> Iterator[tuple[ParsedFile, str, ast.expr]]:
    """Each value that a pack hook returns, with the name of its parameter."""
    store = case.store
    if store.name == PACK:
        if store.found.scope.parameters:
            yield case.parsed, store.found.scope.parameters[-1], store.values[0]
    elif store.name == "saved_tensors_hooks" and store.values:
        hook = store.values[0]
        if isinstance(hook, ast.Lambda) and hook.args.args:
            yield case.parsed, hook.args.args[0].arg, hook.body
        elif isinstance(hook, ast.Attribute):
            for scope in case.parsed.scopes:
                if getattr(scope.node, "name", "") != hook.attr or not scope.parameters:
                    continue
                for node in ast.walk(scope.node):
                    if isinstance(node, ast.Return) and node.value is not None:
                        yield case.parsed, scope.parameters[-1], node.value


def _whole(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, (ast.Tuple, ast.List)):
        for part in value.elts:
            yield from _whole(part)
    elif isinstance(value, ast.IfExp):
        yield from (*_whole(value.body), *_whole(value.orelse))
    else:
        yield value


# ---------------------------------------------------------------------------------------------------------- closures


def _of_functions(finding: Finding, sources: Sources) -> Iterator[Candidate]:
    """Edits of each function on the trace that closes over something."""
    done: set[tuple[int, str]] = set()
    for place, hop in enumerate(finding.trace[:-1]):
        if hop.kind != ObjectKind.FUNCTION or not hop.reference.startswith("closure "):
            continue
        located = function_of(hop, sources)
        name = hop.reference.removeprefix("closure ")
        if located is None or (id(located[1].node), name) in done or located[1].scope.outer is None:
            continue
        parsed, function = located
        done.add((id(function.node), name))
        below = finding.trace[place + 1].kind
        if below in TENSOR_KINDS:
            yield from _captured(parsed, function, name, f"{name}_detached", f"{name}.detach()", "`.detach()` outside")
        if below == ObjectKind.NN_MODULE:
            yield from _own_argument(parsed, function, name)
        yield from _moved_out(parsed, function, name)
        yield from _forgotten(parsed, function, name)
        if below in _WEAKLY:
            new = "this" if name == "self" else f"{name}_ref"
            yield from _captured(parsed, function, name, new, f"weakref.proxy({name})", "`weakref.proxy()` outside")


def _reads_in(tree: ast.AST, name: str) -> list[ast.Name]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]


def _captured(
    parsed: ParsedFile, function: FoundNode, name: str, new: str, code: str, title: str
) -> Iterator[Candidate]:
    """`new = code` before a function, which reads the new name."""
    taken = {n.id for n in ast.walk(function.scope.node) if isinstance(n, ast.Name)} | set(function.scope.parameters)

    def edit(plan: Plan) -> bool:
        reads = _reads_in(function.node, name)
        if not reads or new in taken:
            return False
        editor = plan.of(parsed)
        editor.insert_before(function.statement, f"{new} = {code}")
        for read in reads:
            editor.replace(read, new)
        if code.startswith("weakref."):
            editor.add_import("import weakref")
        return True

    if (found := attempt(title, edit)) is not None:
        yield found


def _own_argument(parsed: ParsedFile, function: FoundNode, name: str) -> Iterator[Candidate]:
    """The module that a hook receives, in place of the one that it closes over."""
    node = function.node
    assert isinstance(node, _FUNCTIONS)
    given = [*node.args.posonlyargs, *node.args.args]
    own = getattr(node, "name", "")
    registered = any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and re.fullmatch(r"register_\w*hook", call.func.attr)
        and ast.unparse(call.func.value) == name
        and any(arg is node or (isinstance(arg, ast.Name) and arg.id == own) for arg in call.args)
        for call in ast.walk(function.scope.node)
    )
    if not registered or not given or given[0].arg in ("_", "__"):
        return

    def edit(plan: Plan) -> bool:
        for read in _reads_in(node, name):
            plan.of(parsed).replace(read, given[0].arg)
        return True

    if (found := attempt(f"the hook's own `{given[0].arg}`", edit)) is not None:
        yield found


def _moved_out(parsed: ParsedFile, function: FoundNode, name: str) -> Iterator[Candidate]:
    """A recursive function at the top of its module, if it closes over nothing else."""
    node, scope = function.node, function.scope
    own = getattr(node, "name", "")
    if name != own or isinstance(node, ast.Lambda) or own in parsed.module.bound:
        return
    its = next((s for s in parsed.scopes if s.node is node), None)
    nested = {s.name for s in parsed.scopes if s is its or s.name.startswith(f"{its.name if its else ''}.<locals>.")}
    for read in (n for n in ast.walk(node) if isinstance(n, ast.Name)):
        owner = its.owner(read.id) if its is not None else None
        if owner is not None and owner.outer is not None and owner.name not in nested and read.id != own:
            return
    top = next((s for s in parsed.module.node.body if _is_inside(node, s)), None)  # type: ignore[attr-defined]
    if top is None or scope.is_class:
        return

    def edit(plan: Plan) -> bool:
        assert isinstance(node, ast.stmt)
        editor = plan.of(parsed)
        lines = "\n".join(("", "", ""))
        editor.insert_before(top, editor.source_of(node) + lines)
        editor.remove(node)
        return True

    if (found := attempt(f"`{own}` outside of the function", edit)) is not None:
        yield found


def _is_inside(node: ast.AST, tree: ast.AST) -> bool:
    return any(one is node for one in ast.walk(tree))


def _forgotten(parsed: ParsedFile, function: FoundNode, name: str) -> Iterator[Candidate]:
    """`del name` in the enclosing function after the last use, which empties the cell of the closure."""
    around = function.scope.node
    if not isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)) or name in function.scope.parameters[:1] == (
        "self",
    ):
        return
    # a use is one of the name, or of a function that closes over it
    bound = (target for target, value in pairs(function.statement) if value is function.node)
    watched = {name, getattr(function.node, "name", ""), *map(last_name, bound)} - {""}
    body = around.body
    uses = [k for k, s in enumerate(body) if any(_reads_in(s, one) for one in watched) or _is_inside(function.node, s)]
    if not uses:
        return
    last = body[uses[-1]]
    own = getattr(function.node, "name", "")
    deleted = (one for n in ast.walk(around) if isinstance(n, ast.Delete) for one in n.targets)
    if any(isinstance(one, ast.Name) and one.id == name for one in deleted):
        return  # under some condition, which `container_edits` removes
    if any(isinstance(n, ast.Return) and isinstance(n.value, ast.Name) and n.value.id == own for n in ast.walk(around)):
        return  # the function is called later
    inner = [n for s in body[: uses[-1] + 1] for n in _own_nodes(s) if isinstance(n, ast.Return)]
    early = [n for n in inner if n is not last]
    for way in ("after", "finally"):

        def edit(plan: Plan, way: str = way) -> bool:
            editor = plan.of(parsed)
            if way == "finally":
                if not early and not isinstance(last, ast.Return):
                    return False
                first = next((k for k, s in enumerate(body) if _is_inside(function.node, s)), None)
                if first is None or first + 1 >= len(body):
                    return False
                editor.wrap(body[first + 1], body[-1], f"try:\n    pass\nfinally:\n    del {name}")
            elif early:
                return False
            elif isinstance(last, ast.Return):
                if last.value is None:
                    return False
                taken = (*function.scope.bound, *function.scope.parameters)
                new = next((one for one in ("result", "found", "returned") if one not in taken), "result_")
                editor.replace_statement(
                    last, f"{new} = {editor.source_of(last.value)}", f"del {name}", f"return {new}"
                )
            else:
                editor.insert_after(last, f"del {name}")
            return True

        if (found := attempt(f"`del {name}`", edit)) is not None:
            yield found
    after = body[uses[-1] + 1 :]
    end = body[-1]
    if after and isinstance(end, ast.Return) and not early:  # as late as possible

        def at_end(plan: Plan) -> bool:
            plan.of(parsed).insert_before(end, f"del {name}")
            return True

        if (found := attempt(f"`del {name}` at the end", at_end)) is not None:
            yield found


def _own_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement without those of nested functions."""
    yield statement
    if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        for child in ast.iter_child_nodes(statement):
            yield from _own_nodes(child)


def _of_frames(finding: Finding, sources: Sources) -> Iterator[Candidate]:
    """`del name` in a `finally` for a local through which a frame holds itself, such as a caught error."""
    for hop in finding.trace[:-1]:
        if hop.kind != ObjectKind.FRAME or not hop.reference.startswith("local "):
            continue
        name = hop.reference.removeprefix("local ")
        place = place_of(hop.where)
        parsed = sources.of_line(place.file) if place is not None else None
        scope = next((s for s in parsed.scopes if s.name == hop.name), None) if parsed is not None else None
        if parsed is None or scope is None or not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        body = scope.node.body
        binds = [k for k, s in enumerate(body) if any(last_name(target) == name for target, _ in pairs(s))]
        if not binds or binds[0] + 1 >= len(body):
            continue
        first, last = body[binds[0] + 1], body[-1]

        def edit(
            plan: Plan, parsed: ParsedFile = parsed, ends: tuple[ast.stmt, ast.stmt] = (first, last), name: str = name
        ) -> bool:
            plan.of(parsed).wrap(*ends, f"try:\n    pass\nfinally:\n    del {name}")
            return True

        if (found := attempt(f"`del {name}` in a `finally`", edit)) is not None:
            yield found


# ------------------------------------------------------------------------------------------------------ bound methods


def _of_methods(stores: Sequence[StoreCase], sources: Sources) -> Iterator[Candidate]:
    """`weakref.WeakMethod(self.method)` for an attribute, or the function without its object."""
    for case in {id(case.store.found.node): case for case in stores}.values():
        target, value = case.store.target, case.store.values[:1]
        if case.store.how != How.BINDS or not isinstance(target, ast.Attribute) or not value:
            continue
        if isinstance(value[0], ast.Call) and last_name(value[0].func) == "partial":
            yield from _of_partial(case, value[0])
        if not any(hop.kind == ObjectKind.METHOD for hop in case.trace[case.place + 1 : case.place + 2]):
            continue
        if isinstance(value[0], (ast.Call, ast.Lambda)):
            continue

        def weakly(plan: Plan, case: StoreCase = case, attribute: str = target.attr) -> bool:
            editor = plan.of(case.parsed)
            editor.replace(case.store.values[0], f"weakref.WeakMethod({editor.source_of(case.store.values[0])})")
            editor.add_import("import weakref")
            for parsed, read in reads_of(attribute, sources):
                plan.of(parsed).replace(read, f"{plan.of(parsed).source_of(read)}()")
            return True

        if (found := attempt("`weakref.WeakMethod()`", weakly)) is not None:
            yield found

        def unbound(plan: Plan, case: StoreCase = case, attribute: str = target.attr) -> bool:
            own = case.store.found.scope.parameters[:1]
            editor = plan.of(case.parsed)
            methods = [
                node
                for node in ast.walk(case.store.values[0])
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id,) == own
            ]
            for node in methods:
                editor.replace(node, f"type({own[0]}).{node.attr}")
            for parsed, read in reads_of(attribute, sources):
                call = next(parsed.above(read), None)
                if not isinstance(call, ast.Call) or call.func is not read:
                    return False
                its = plan.of(parsed)
                args = [its.source_of(arg) for arg in call.args if not isinstance(arg, ast.Starred)]
                if len(args) < len(call.args) or call.keywords:
                    return False
                whole = ", ".join((its.source_of(read.value), *args))
                its.replace(call, f"{its.source_of(read)}({whole})")
            return bool(methods)

        if (found := attempt("the method of the class", unbound)) is not None:
            yield found


def _of_partial(case: StoreCase, call: ast.Call) -> Iterator[Candidate]:
    """`partial(type(self).method, weakref.proxy(self))` for `partial(self.method)`."""
    method = call.args[0] if call.args else None
    if not isinstance(method, ast.Attribute) or not isinstance(method.value, ast.Name):
        return
    own, name = method.value.id, method.attr

    def edit(plan: Plan) -> bool:
        editor = plan.of(case.parsed)
        args = [editor.source_of(arg) for arg in call.args[1:] if not isinstance(arg, ast.Starred)]
        if len(args) + 1 < len(call.args) or any(keyword.arg is None for keyword in call.keywords):
            return False
        args += [f"{keyword.arg}={editor.source_of(keyword.value)}" for keyword in call.keywords]
        whole = ", ".join((f"type({own}).{name}", f"weakref.proxy({own})", *args))
        editor.replace(call, f"{editor.source_of(call.func)}({whole})")
        editor.add_import("import weakref")
        return True

    if (found := attempt("`weakref.proxy()` in the partial", edit)) is not None:
        yield found


def _of_registered_methods(finding: Finding, sources: Sources) -> Iterator[Candidate]:
    """A function with a weak reference to `self`, in place of its bound method that is registered as a hook."""
    references = finding.cut.references if finding.cut is not None else ()
    stores = [store for reference in references for store in stores_for(finding, reference, sources)]
    found: dict[ast.expr, tuple[ParsedFile, Store]] = {}
    """Each bound method, with the store that registers it."""
    for store in stores if any(hop.kind == ObjectKind.METHOD for hop in finding.trace) else ():
        parsed = sources.file(store.found.scope.file)
        for value in store.values if parsed is not None and store.how == How.ADDS else ():
            if isinstance(value, ast.Attribute) and ast.unparse(value.value) in store.found.scope.parameters[:1]:
                found[value] = parsed, store  # type: ignore[assignment]
    # several may be registered on one line, of which `stores_for` gives one
    for parsed, store in list(found.values()):
        for node in ast.walk(store.found.statement):
            if isinstance(node, ast.Call) and re.fullmatch(r"register_\w*hook", last_name(node.func)):
                for arg in node.args:
                    if isinstance(arg, ast.Attribute) and ast.unparse(arg.value) in store.found.scope.parameters[:1]:
                        found[arg] = parsed, store

    def edit(plan: Plan) -> bool:
        begun: set[Scope] = set()
        for value, (parsed, store) in found.items():
            assert isinstance(value, ast.Attribute)
            scope = store.found.scope
            if "this" in (*scope.bound, *scope.parameters):
                return False
            editor = plan.of(parsed)
            if scope not in begun:
                editor.insert_before(store.found.statement, f"this = weakref.proxy({scope.parameters[0]})")
                begun.add(scope)
            editor.replace(value, f"lambda *args: this.{value.attr}(*args)")
            editor.add_import("import weakref")
        return bool(found)

    if (candidate := attempt("`weakref.proxy()` for the hook", edit)) is not None:
        yield candidate


def reads_of(attribute: str, sources: Sources) -> list[tuple[ParsedFile, ast.Attribute]]:
    """Each place that reads an attribute of this name."""
    return [
        (parsed, node)
        for parsed in sources.containing(attribute)
        for node, _ in parsed.reads.get(attribute, ())
        if isinstance(node, ast.Attribute)
    ]


# ---------------------------------------------------------------------------------------------------- back-references

_BACK = re.compile(
    r"_*(parent|owner|trainer|root|model|module|back|prev(ious)?|up|outer|container|engine|ref|self|me)_*"
)
"""Names of references to what holds their object."""


def _of_back_references(stores: Sequence[StoreCase], sources: Sources) -> Iterator[Candidate]:
    """`weakref.proxy(parent)`, or `weakref.ref(parent)` with a call at each read."""
    cases = [case for case in stores if _is_weakly_storable(case)]
    cases = list({id(case.store.found.node): case for case in cases}.values())
    cases.sort(key=lambda case: not _BACK.fullmatch(last_name(case.store.target)))
    for case in cases:
        value = case.store.values[0]

        def proxy(plan: Plan, case: StoreCase = case, value: ast.expr = value) -> bool:
            _weak(plan, case, value, "weakref.proxy")
            return True

        if (found := attempt("`weakref.proxy()`", proxy)) is not None:
            yield found

        def ref(plan: Plan, case: StoreCase = case, value: ast.expr = value) -> bool:
            target = case.store.target
            if case.store.how != How.BINDS or not isinstance(target, ast.Attribute):
                return False
            _weak(plan, case, value, "weakref.ref")
            for parsed, read in reads_of(target.attr, sources):
                plan.of(parsed).replace(read, f"{plan.of(parsed).source_of(read)}()")
            return True

        if (found := attempt("`weakref.ref()`", ref)) is not None:
            yield found


def _weak(plan: Plan, case: StoreCase, value: ast.expr, call: str) -> None:
    editor = plan.of(case.parsed)
    code = editor.source_of(value)
    new = f"{call}({code})"
    if case.holds_others or _defaults_to_none(value, case.store.found.scope):
        new = f"{new} if {code} is not None else None"
        new = new if isinstance(case.store.found.node, ast.Assign) else f"({new})"
    editor.replace(value, new)
    editor.add_import("import weakref")


def _defaults_to_none(value: ast.expr, scope: Scope) -> bool:
    node = scope.node
    if not isinstance(value, ast.Name) or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    given = [*node.args.posonlyargs, *node.args.args]
    with_default = given[len(given) - len(node.args.defaults) :] if node.args.defaults else []
    defaults = [
        *zip(with_default, node.args.defaults, strict=True),
        *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
    ]
    return any(a.arg == value.id and isinstance(d, ast.Constant) and d.value is None for a, d in defaults)


def _is_weakly_storable(case: StoreCase) -> bool:
    """Whether a store keeps an object that something else keeps as well: not one that it makes."""
    value = case.store.values[0] if case.store.values else None
    below = case.trace[case.place + 1].kind if case.place + 1 < len(case.trace) else ""
    kept = below in _WEAKLY or (below == ObjectKind.CONTAINER and case.held.kind in _WEAKLY)
    of_function = (
        case.store.name == "def" or is_hooks(case.holder.reference) or case.holder.reference.startswith("clos")
    )
    return kept and isinstance(value, (ast.Name, ast.Attribute)) and not of_function


def _others_of_cycle(finding: Finding, sources: Sources) -> Iterator[StoreCase]:
    """The stores of the other attributes on a cycle."""
    trace = finding.trace
    first = trace[0].index if trace else None
    again = next((k for k in range(1, len(trace)) if first is not None and trace[k].index == first), 0)
    for other in range(again):
        hop = trace[other]
        if not hop.reference.startswith(".") or hop.reference.startswith(".__"):
            continue
        for store in stores_for(finding, CutReference(hop.reference, hop.where, trace=other), sources):
            parsed = sources.file(store.found.scope.file)
            if parsed is not None and store.how == How.BINDS:
                yield StoreCase(finding, trace, other, store, parsed, sources)
