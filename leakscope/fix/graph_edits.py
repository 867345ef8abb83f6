"""Edits of where a graph is recorded or kept: `torch.no_grad()`, flags of backward, cached functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from leakscope.findings.facts import FreedBy, RuleName
from leakscope.findings.model import Finding
from leakscope.findings.naming import place_of
from leakscope.findings.source.edits import StoreCase, is_fixed
from leakscope.findings.source.index import ParsedFile, Scope, Sources, last_name
from leakscope.findings.source.stores import CACHE
from leakscope.fix.model import Candidate
from leakscope.fix.plan import Plan, attempt
from leakscope.graph.model import ObjectKind

_NEEDS_GRAPH = ("backward", "grad", "step", "manual_backward", "scale")
_OFF = ("no_grad", "inference_mode")
_NO_GRAD = "with torch.no_grad():"


def graph_candidates(finding: Finding, stores: Sequence[StoreCase], sources: Sources) -> Iterator[Candidate]:
    """Yield candidates that record no graph, free it, or bound the cache that keeps it.

    Args:
        finding: The leak.
        stores: The stores of each reference of its cut.
        sources: The files of the run.

    Yields:
        Candidates, the most plausible first.

    """
    graph = finding.keeps_graphs or any(hop.kind == ObjectKind.GRAD_NODE for hop in finding.trace)
    if graph:
        yield from _without_flags(finding, sources)
        if finding.freed_by == FreedBy.PROGRAM:
            yield from _without_grad(finding, stores, sources)
        yield from _gradients_dropped(finding, sources)
    yield from _of_caches(finding, sources)


# ------------------------------------------------------------------------------------------------------------ no_grad


def _without_grad(finding: Finding, stores: Sequence[StoreCase], sources: Sources) -> Iterator[Candidate]:
    """`torch.no_grad()` on a function, or around a loop or statements, that never call backward."""
    for parsed, scope in _functions(finding, stores, sources):
        node = scope.node
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))

        def decorated(plan: Plan, parsed: ParsedFile = parsed, node: ast.stmt = node) -> bool:
            plan.of(parsed).decorate(node, "torch.no_grad()")
            _import_torch(plan, parsed)
            return True

        if (found := attempt(f"`@torch.no_grad()` on `{node.name}`", decorated)) is not None:
            yield found
    done: set[tuple[ast.stmt, ast.stmt]] = set()
    for case in stores:
        for first, last in _blocks(case) if not is_fixed(case) else ():
            if (first, last) in done or _is_off(case.parsed, first):
                continue
            done.add((first, last))

            def wrapped(
                plan: Plan, parsed: ParsedFile = case.parsed, first: ast.stmt = first, last: ast.stmt = last
            ) -> bool:
                plan.of(parsed).wrap(first, last, _NO_GRAD)
                _import_torch(plan, parsed)
                return True

            if (found := attempt("`torch.no_grad()`", wrapped)) is not None:
                yield found


def _import_torch(plan: Plan, parsed: ParsedFile) -> None:
    if "torch" not in parsed.module.imported:
        plan.of(parsed).add_import("import torch")


def _needs_graph(tree: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and last_name(n.func) in _NEEDS_GRAPH for n in ast.walk(tree))


def _is_off(parsed: ParsedFile, statement: ast.AST) -> bool:
    """Whether the code already runs without grad."""
    for up in (statement, *parsed.above(statement)):
        heads = [item.context_expr for item in up.items] if isinstance(up, ast.With) else []
        heads += getattr(up, "decorator_list", [])
        if any(last_name(n) in _OFF for head in heads for n in ast.walk(head) if isinstance(n, ast.expr)):
            return True
    return False


def _functions(finding: Finding, stores: Sequence[StoreCase], sources: Sources) -> Iterator[tuple[ParsedFile, Scope]]:
    """Functions that make the stored value, store it or allocate its memory, and never need its graph."""
    found: list[tuple[ParsedFile, Scope]] = []
    for case in (case for case in stores if not is_fixed(case)):
        for name in _made_by(case):
            named = [
                (parsed, scope)
                for parsed in sources.matching(rf"def\s+{name}\s*\(")
                for scope in parsed.scopes
                if getattr(scope.node, "name", "") == name
            ]
            found += [one for one in named if one[0] is case.parsed] or named[:1]
        found.append((case.parsed, case.store.found.scope))
    place = place_of(finding.trace[-1].where) if finding.trace else None
    allocates = sources.of_line(place.file) if place is not None else None
    if place is not None and allocates is not None:
        inside = [s for s in allocates.scopes if _spans(s.node, place.line)]
        found += [(allocates, inside[-1])] if inside else []
    done: set[Scope] = set()
    for parsed, scope in found:
        node = scope.node
        if scope in done or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        done.add(scope)
        if node.name.startswith("__") or node.name in ("forward", "training_step", "main") or _needs_graph(node):
            continue
        if not _is_off(parsed, node):
            yield parsed, scope


def _spans(node: ast.AST, line: int) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno <= line <= (node.end_lineno or 0)


def _made_by(case: StoreCase) -> list[str]:
    """Names of the functions whose calls give the stored value, followed one name back."""
    values, names = list(case.store.values[:1]), []
    if case.value is not None:
        values.insert(0, case.value)
    for value in list(values):
        owner = case.store.found.scope.owner(value.id) if isinstance(value, ast.Name) else None
        if owner is not None and isinstance(value, ast.Name):
            values += [binding.value for binding in owner.bound.get(value.id, ())]
    for value in values:
        names += [last_name(n.func) for n in ast.walk(value) if isinstance(n, ast.Call)]
    return [name for name in dict.fromkeys(names) if name.isidentifier()]


def _blocks(case: StoreCase) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """First and last statements of what may run without grad: what makes the value, what stores it, loops around."""
    statement, parsed = case.store.found.statement, case.parsed
    if isinstance(case.store.found.scope.node, ast.Lambda):
        return
    above = next(parsed.above(statement), None)
    block = next(
        (
            b
            for f in ("body", "orelse", "finalbody")
            if isinstance(b := getattr(above, f, None), list) and statement in b
        ),
        [statement],
    )
    value = case.value if case.value is not None else case.store.values[0] if case.store.values else None
    names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)} if value is not None else set()
    before = block[: block.index(statement)]
    makes = [s for s in before if isinstance(s, ast.Assign) and names & _bound(s)]
    if makes and not any(_needs_graph(s) for s in before[before.index(makes[-1]) :]):
        yield makes[-1], makes[-1]
        yield makes[-1], statement
    makes_it = any(isinstance(n, (ast.Call, ast.BinOp)) for value in case.store.values for n in ast.walk(value))
    if not _needs_graph(statement) and (makes_it or isinstance(statement, ast.AugAssign)):
        yield statement, statement
    for loop in reversed(case.store.found.loops):
        if not _needs_graph(loop):
            yield loop, loop


def _bound(statement: ast.Assign) -> set[str]:
    return {n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)}


# ----------------------------------------------------------------------------------------------------------- backward


def _flagged(sources: Sources) -> list[tuple[ParsedFile, ast.Call, str]]:
    """Calls of backward that keep or create a graph, each with the flag."""
    return [
        (parsed, one.node, keyword.arg)
        for parsed in sources.matching(r"\b(create_graph|retain_graph)\b")
        for one in parsed.found
        if isinstance(one.node, ast.Call) and last_name(one.node.func) in ("backward", "manual_backward")
        for keyword in one.node.keywords
        if keyword.arg in ("create_graph", "retain_graph")
        if not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
    ]


def _without_flags(finding: Finding, sources: Sources) -> Iterator[Candidate]:
    """`loss.backward()` for `loss.backward(create_graph=True)`."""
    if finding.rule == RuleName.RETAINED_GRAPH or not any(hop.reference == ".grad" for hop in finding.trace):
        return
    for flag in ("create_graph", "retain_graph"):
        calls = [(parsed, call) for parsed, call, name in _flagged(sources) if name == flag]

        def edit(plan: Plan, calls: list[tuple[ParsedFile, ast.Call]] = calls, flag: str = flag) -> bool:
            for parsed, call in calls:
                editor = plan.of(parsed)
                args = [editor.source_of(arg) for arg in call.args if not isinstance(arg, ast.Starred)]
                if len(args) < len(call.args) or any(k.arg is None for k in call.keywords):
                    return False
                args += [f"{k.arg}={editor.source_of(k.value)}" for k in call.keywords if k.arg != flag]
                editor.replace(call, f"{editor.source_of(call.func)}({', '.join(args)})")
            return bool(calls)

        if (found := attempt(f"without `{flag}`", edit)) is not None:
            yield found


def _gradients_dropped(finding: Finding, sources: Sources) -> Iterator[Candidate]:
    """Gradients set to None after a step, where they keep the graph that made them."""
    if finding.freed_by == FreedBy.PROGRAM or not any(hop.reference == ".grad" for hop in finding.trace):
        return
    for parsed, call, _ in _flagged(sources):
        one = next(found for found in parsed.found if found.node is call)
        function = one.scope.node
        steps = [
            (s, s.value.func.value)
            for s in ast.walk(function)
            if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and isinstance(s.value.func, ast.Attribute)
            if s.value.func.attr == "step"
        ]

        def zeroed(plan: Plan, parsed: ParsedFile = parsed, steps: list[tuple[ast.Expr, ast.expr]] = steps) -> bool:
            for step, optimizer in steps:
                editor = plan.of(parsed)
                editor.insert_after(step, f"{editor.source_of(optimizer)}.zero_grad()")
            return bool(steps)

        if (found := attempt("`zero_grad()` after the step", zeroed)) is not None:
            yield found
        loop = one.loops[-1] if one.loops else None
        modules = [
            f.node.func.value
            for f in parsed.found
            if isinstance(f.node, ast.Call) and last_name(f.node.func) == "parameters" and f.scope is one.scope
            if isinstance(f.node.func, ast.Attribute)
        ]
        names = list(dict.fromkeys(ast.unparse(m) for m in modules))

        def dropped(plan: Plan, parsed: ParsedFile = parsed, loop: ast.stmt | None = loop) -> bool:
            if loop is None:
                return False
            for name in names:  # noqa: B023 - called at once
                code = f"for parameter in {name}.parameters():\n    parameter.grad = None"
                plan.of(parsed).append_to_body(loop, code)
            return bool(names)  # noqa: B023

        if (found := attempt("gradients set to None", dropped)) is not None:
            yield found


# ------------------------------------------------------------------------------------------------------------- caches

_ENTRIES = 8
"""Entries of a cache in an edit. Heuristic: few enough that a run of a dozen steps shows the bound."""


def _of_caches(finding: Finding, sources: Sources) -> Iterator[Candidate]:
    """A bounded cache, a cache in the object, or none, for a function that `functools` caches."""
    hop = next((hop for hop in finding.trace if hop.type == CACHE), None)
    own = hop.name.rpartition(".")[2] if hop is not None else ""
    if not own:
        return
    for parsed in sources.matching(rf"def\s+{own}\s*\("):
        for scope in parsed.scopes:
            node = scope.node
            if isinstance(node, ast.FunctionDef) and node.name == own and node.decorator_list:
                yield from _of_cached(parsed, scope, node, sources)
    yield from _bounded(sources)


def _is_cache(node: ast.expr) -> bool:
    return last_name(node.func if isinstance(node, ast.Call) else node) in ("cache", "lru_cache")


def _of_cached(parsed: ParsedFile, scope: Scope, node: ast.FunctionDef, sources: Sources) -> Iterator[Candidate]:
    caches = [one for one in node.decorator_list if _is_cache(one)]
    is_method = scope.outer is not None and scope.outer.is_class
    if is_method and caches and len(node.args.args) == 1 and len(node.decorator_list) == 1:

        def as_property(plan: Plan) -> bool:
            plan.of(parsed).replace(caches[0], "functools.cached_property")
            if "functools" not in parsed.module.imported:
                plan.of(parsed).add_import("import functools")
            for its in sources.containing(node.name):
                for read, _ in its.reads.get(node.name, ()):
                    call = next(its.above(read), None)
                    if not isinstance(call, ast.Call) or call.func is not read or call.args:
                        return False
                    plan.of(its).replace(call, plan.of(its).source_of(read))
            return True

        if (found := attempt("`functools.cached_property`", as_property)) is not None:
            yield found
    if caches:

        def bounded(plan: Plan) -> bool:
            plan.of(parsed).replace(caches[0], _bound_cache(parsed, caches[0]))
            return True

        if (found := attempt("a bounded cache", bounded)) is not None:
            yield found
    chosen = caches[:1] or node.decorator_list[:1]

    def uncached(plan: Plan) -> bool:
        plan.of(parsed).undecorate(node, node.decorator_list.index(chosen[0]))
        return True

    if (found := attempt("without the cache", uncached)) is not None:
        yield found


def _bound_cache(parsed: ParsedFile, cache: ast.expr) -> str:
    func = cache.func if isinstance(cache, ast.Call) else cache
    name = ast.unparse(func.value) + "." if isinstance(func, ast.Attribute) else ""
    if not name and parsed.module.imported.get("lru_cache") is None:
        name = "functools."
    return f"{name}lru_cache(maxsize={_ENTRIES})"


def _bounded(sources: Sources) -> Iterator[Candidate]:
    """`maxsize` for all unbounded caches that are made by a call."""

    def edit(plan: Plan) -> bool:
        done = False
        for parsed in sources.containing("lru_cache"):
            for one in parsed.found:
                if not isinstance(one.node, ast.Call) or last_name(one.node.func) != "lru_cache":
                    continue
                sizes = [k.value for k in one.node.keywords if k.arg == "maxsize"] or one.node.args[:1]
                if sizes and isinstance(sizes[0], ast.Constant) and sizes[0].value is None:
                    plan.of(parsed).replace(sizes[0], str(_ENTRIES))
                    done = True
        return done

    if (found := attempt("a bounded cache", edit)) is not None:
        yield found
