"""Candidate edits for containers, caches and registries that retain memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

from leakscope.findings.facts import RuleName
from leakscope.findings.model import Finding
from leakscope.findings.source.edits import StoreCase, effects_of, is_a_store
from leakscope.findings.source.index import BY_NAME, FoundNode, ParsedFile, Scope, Sources, last_name
from leakscope.findings.source.stores import CACHE, PACK, How, Store, is_hooks, mentions, mentions_of
from leakscope.fix.cache_edits import evicting_drafts, function_cache_drafts
from leakscope.fix.drafts import (
    FUNCTIONS,
    LEAVES,
    Case,
    Draft,
    Spot,
    at_end_of,
    block_of,
    cases_of,
    code_of,
    combined,
    imported,
    is_empty,
    located,
    new_name,
)
from leakscope.fix.model import Candidate
from leakscope.fix.release_edits import (
    closing_drafts,
    context_drafts,
    entry_drafts,
    exit_drafts,
    hook_drafts,
    pipeline_drafts,
)
from leakscope.graph.model import TENSOR_KINDS, ObjectKind

_MOST = 12
"""Maximum candidates for one leak: each costs a run of the script."""
_SPOTS = 4
"""Maximum places at which the clearing of a container is tried. Heuristic: loop, epoch, step function, caller."""


def container_candidates(
    finding: Finding,
    stores: Sequence[StoreCase],
    sources: Sources,
) -> Iterator[Candidate]:
    """Candidate edits for a leak whose memory a container, hook, context, registry or pipeline retains.

    Args:
        finding: A leak.
        stores: The stores of each reference of its cut.
        sources: The kept source of its run.

    Yields:
        Candidates in the order in which to try them, at most a dozen. Only a run shows which of them is right.

    """
    seen: set[object] = set()
    for draft in _drafts(finding, stores, sources):
        candidate = draft.written()
        if candidate is None or candidate.changes in seen:
            continue
        seen.add(candidate.changes)
        yield candidate
        if len(seen) >= _MOST:
            return


def _drafts(finding: Finding, stores: Sequence[StoreCase], sources: Sources) -> Iterator[Draft]:
    cases = cases_of(finding, stores, sources)
    of_context = finding.rule in (RuleName.DIST_AUTOGRAD_CONTEXT, RuleName.UNCOLLECTABLE_CYCLE, RuleName.NATIVE_HOLD)
    if of_context:
        yield from context_drafts(finding, sources)
    yield from closing_drafts(finding, sources)
    yield from combined([list(_of_case(case)) for case in cases])
    yield from pipeline_drafts(finding, cases, sources)
    if not of_context:
        yield from context_drafts(finding, sources)


def _of_case(case: Case) -> Iterator[Draft]:
    """The drafts for one reference, by what holds it."""
    names = {store.name for store in case.stores}
    if any(_is_made_from_itself(store) for store in case.stores):
        return
    if is_hooks(case.holder.reference) or any(re.fullmatch(r"_?register_\w*hook", name) for name in names):
        yield from hook_drafts(case)
    elif "register" in names and any(last_name(store.target) == "register" for store in case.stores):
        yield from exit_drafts(case)
    elif any(hop.type == CACHE for hop in case.trace[case.place : case.place + 2]):
        yield from function_cache_drafts(case)
    elif names & {"def", PACK}:
        yield from entry_drafts(case)
    else:
        yield from _of_container(case)
        yield from entry_drafts(case)


def _is_made_from_itself(store: Store) -> bool:
    """Whether an entry is made from the previous one, as in `mean[name] = 0.9 * mean[name] + 0.1 * x`."""
    is_entry = store.key is not None and isinstance(store.found.node, (ast.Assign, ast.AugAssign))
    return is_entry and bool(store.values) and mentions(store.values[0], store.target)


def _of_container(case: Case) -> Iterator[Draft]:
    if any(store.name == "add_param_group" for store in case.stores):
        yield from _of_param_group(case)
        return
    yield from _not_stored(case)
    yield from _last_items(case)
    yield from _bounded_by_name(case)
    yield from _under_one_name(case)
    yield from _keyed(case)
    yield from evicting_drafts(case)
    item = case.trace[min(case.place + 2, len(case.trace) - 1)]
    if item.kind in _WEAK_OBJECTS and item.kind not in TENSOR_KINDS:
        yield from _weakly_held(case)
    yield from _reset_by_owner(case)
    yield from _popped(case)
    yield from _after_last_read(case)
    yield from _emptied(case)
    yield from _emptied_before(case)
    yield from _weakly_held(case)
    yield from _made_per_call(case)
    yield from _chain_cut(case)


# ------------------------------------------------------------------------------------------------------ what is stored


def _not_stored(case: Case) -> Iterator[Draft]:
    """Without the lines that store, if nothing reads the container; calls in them stay."""
    if case.is_read or not case.stores or case.holder.reference.startswith(".__"):
        return
    draft = Draft("not stored", f"without what nothing reads at {case.stores[0].where}")
    for store in case.stores:
        parsed = case.parsed(store)
        if parsed is None or not is_a_store(store) or store.name in (*BY_NAME, "add_param_group", "def"):
            return
        calls = [call for value in store.values for call in effects_of(value)]
        if len(calls) > 1:
            return
        statement, rest = store.found.statement, [code_of(parsed, call) for call in calls]
        draft = draft.instead(parsed, statement, *rest) if rest else draft.remove(parsed, statement)
    yield draft


def _last_items(case: Case) -> Iterator[Draft]:
    """A bound for a list or deque of which only the last items are read."""
    most, slices = 0, False
    for read in case.reads:
        parsed = case.sources.file(read.scope.file)
        above = next(parsed.above(read.node), None) if parsed is not None else None
        back = _items_back(above, read.node)
        if back is None:
            return
        most = max(most, back)
        slices |= isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Slice)
    kind = case.held.object
    if not most or not kind.startswith(("list", "deque")):
        return
    for parsed, _, _, value in case.initial()[:1] if not slices else ():
        deque, code = imported(parsed, "collections", "deque")
        draft = Draft("deque", f"`deque(maxlen={most})` at {parsed.name}:{value.lineno}")
        yield draft.replace(parsed, value, f"{deque}(maxlen={most})").imports(parsed, code)
    if kind.startswith("list"):
        yield from _after_stores(case, "last items", lambda name: f"del {name}[:-{most}]")


def _items_back(above: ast.AST | None, node: ast.AST) -> int | None:
    """1 for `rows[-1]` and `rows.pop()`, 9 for `rows[-9:]`; None for any other use."""
    if isinstance(above, ast.Attribute) and above.attr == "pop":
        return 1
    if not isinstance(above, ast.Subscript) or above.value is not node or not isinstance(above.ctx, ast.Load):
        return None
    bound: ast.expr | None = above.slice
    if isinstance(bound, ast.Slice):
        bound = bound.lower if bound.upper is None and bound.step is None else None
    if isinstance(bound, ast.UnaryOp) and isinstance(bound.op, ast.USub) and isinstance(bound.operand, ast.Constant):
        return bound.operand.value if isinstance(bound.operand.value, int) else None
    return None


def _after_stores(case: Case, family: str, code: Callable[[str], str]) -> Iterator[Draft]:
    """A statement after each one that adds something to the container."""
    draft = Draft(family, "")
    for store in case.stores:
        parsed = case.parsed(store)
        if parsed is None or not is_a_store(store) or store.gains != case.place + 1:
            return
        text = code(code_of(parsed, store.target))
        draft = Draft(family, f"`{text}` at {store.where}", draft.edits).after(parsed, store.found.statement, text)
    if draft.edits:
        yield draft


_BOUND = re.compile(r"_*(max|capacity|limit|window|keep|size|queue|buffer|history|bank)(_?\w*)", re.IGNORECASE)
"""Names of numbers that are meant to bound a container."""


def _bounded_by_name(case: Case) -> Iterator[Draft]:
    """A list or tensor bounded by a number of the program that is meant for it, as `self.capacity`."""
    for store in case.stores[:1]:
        parsed = case.parsed(store)
        for bound in _bounds(case, store) if parsed is not None else ():
            value = store.values[0] if store.values else None
            is_joined = store.how == How.BINDS and value is not None and mentions(value, store.target)
            if is_joined and isinstance(value, ast.Call) and parsed is not None:
                draft = Draft("bound", f"the last `{bound}` rows at {store.where}")
                yield draft.replace(parsed, value, f"{code_of(parsed, value)}[-{bound}:]")
            elif case.held.object.startswith("list") and store.gains == case.place + 1:
                yield from _of_bounded_list(case, bound)


def _of_bounded_list(case: Case, bound: str) -> Iterator[Draft]:
    for parsed, one, _, value in case.initial()[:1]:
        names = {part.id for part in ast.walk(ast.parse(bound)) if isinstance(part, ast.Name)}
        if all(one.scope.owner(name) is not None for name in names):
            deque, needs = imported(parsed, "collections", "deque")
            draft = Draft("bound", f"`deque(maxlen={bound})` at {parsed.name}:{value.lineno}")
            yield draft.replace(parsed, value, f"{deque}(maxlen={bound})").imports(parsed, needs)
    yield from _after_stores(case, "bound", lambda name: f"del {name}[:-{bound}]")


def _bounds(case: Case, store: Store) -> list[str]:
    """The numbers meant as a bound that a storing line can name: attributes of its object, constants of its module."""
    scope, parsed = store.found.scope, case.parsed(store)
    if parsed is None:
        return []
    found = []
    if scope.outer is not None and scope.outer.is_class and scope.parameters:
        own = scope.parameters[0]
        for (around, attribute), values in parsed.stored_in_self.items():
            known = all(_is_number(value, method) for method, value in values)
            if around is scope.outer and known and _BOUND.fullmatch(attribute):
                found.append(f"{own}.{attribute}")
    for name, bindings in parsed.module.bound.items():
        known = bool(bindings) and all(_is_number(binding.value, parsed.module) for binding in bindings)
        if known and _BOUND.fullmatch(name) and scope.owner(name) is parsed.module:
            found.append(name)
    return found[:2]


def _is_number(value: ast.expr, scope: Scope) -> bool:
    """Whether a value may be a whole number: one that is written, or a parameter with such a default."""
    if isinstance(value, ast.Constant):
        return type(value.value) is int and value.value > 0
    return isinstance(value, ast.Name) and value.id in (*scope.parameters, *scope.keywords)


# ------------------------------------------------------------------------------------------------- when it is emptied


def _emptying(case: Case, name: str) -> tuple[str, ...]:
    """Code that empties the container; () if it is none."""
    hop = case.held
    if any(one.kind == ObjectKind.WORK for one in case.trace[case.place + 1 :]) and not case.is_read:
        waits = _each_work(case)
        if waits is None:
            return ()
        return (f"for {waits} in {name}:\n    work.wait()", f"{name}.clear()")
    if hop.kind == ObjectKind.CONTAINER and hop.type != CACHE:
        if hop.object.startswith("tuple"):
            return (f"{name} = ()",)
        return (f"{name}.clear()",)
    if hop.type.rpartition(".")[2] in ("Queue", "LifoQueue", "PriorityQueue", "SimpleQueue"):
        return (f"while not {name}.empty():\n    {name}.get()",)
    begun = [value for _, _, _, value in case.initial()]
    rebound = [s for s in case.stores if s.how == How.BINDS and mentions(s.values[0], s.target)]
    if rebound and not begun:
        begun = _first_values(case)
    return (f"{name} = {ast.unparse(begun[0])}",) if rebound and begun else ()


def _each_work(case: Case) -> str | None:
    """`work`, or `work, _` if the items are pairs with a Work first."""
    for store in case.stores:
        value = store.values[0] if store.values else None
        if isinstance(value, ast.Tuple):
            starts = [isinstance(part, ast.Call) for part in value.elts]
            if starts.count(True) != 1:
                return None
            return ", ".join("work" if start else "_" for start in starts)
    return "work"


def _first_values(case: Case) -> list[ast.expr]:
    """The values without variables that are first assigned to a name which is made from itself."""
    stored = {id(store.found.statement) for store in case.stores}
    found = []
    for parsed in case.files:
        for one in parsed.found:
            if not isinstance(one.node, (ast.Assign, ast.AnnAssign)) or id(one.statement) in stored:
                continue
            targets = one.node.targets if isinstance(one.node, ast.Assign) else [one.node.target]
            value = one.node.value
            if value is None or not any(case.place + 1 in case.meaning.bound_by(t, one.scope) for t in targets):
                continue
            free = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)} - set(parsed.module.imported)
            if not free:
                found.append(value)
    return found


def _name_at(case: Case, spot: Spot) -> str | None:
    """The code for the container at a place; that of the storing line in its own function."""
    for store in case.stores:
        parsed = case.parsed(store)
        if parsed is None or store.found.scope is not spot.scope:
            continue
        is_it = store.gains == case.place + 1 or (store.gains is None and store.how == How.BINDS)
        if is_it and not _has_computed_key(store.target):
            return code_of(parsed, store.target)
    return case.name_in(spot.scope)


def _has_computed_key(node: ast.expr) -> bool:
    """Whether an expression is an item by a key that is known only there: `rows[name]`."""
    inside = [one.slice for one in ast.walk(node) if isinstance(one, ast.Subscript)]
    return any(not isinstance(key, ast.Constant) for key in inside)


def _spots(case: Case) -> list[tuple[Spot, str]]:
    """The places at which the container has a name, each with that name."""
    spots = case.spots()
    if not any(spot.loop is not None for spot in spots):  # a hook or callback, called by a library
        spots = [*_training_loops(case), *spots]
    named = [(spot, name) for spot in spots if (name := _name_at(case, spot)) is not None]
    return named[:_SPOTS]


def _training_loops(case: Case) -> list[Spot]:
    """The loops in which backward runs or an optimizer steps, innermost first."""
    found = []
    for parsed in case.sources.matching(r"\.(backward|step)\("):
        for one in parsed.found:
            if isinstance(one.node, ast.Call) and last_name(one.node.func) in ("backward", "step"):
                for chain in case.calls.call_chains(one):
                    for each in chain:
                        file = case.sources.file(each.scope.file)
                        found += [Spot(file, each.scope, loop) for loop in reversed(each.loops) if file is not None]
    return list(dict.fromkeys(found))


def _emptied(case: Case) -> Iterator[Draft]:
    """The container emptied at the end of a loop's body or function, or at the start of the first of them."""
    spots = _spots(case)
    for number, (spot, name) in enumerate(spots):
        code = _emptying(case, name)
        if not code or not _is_bound_there(spot, code[-1]):
            continue
        draft = Draft(f"end {number}", f"`{code[-1]}` at the end of {spot.where}")
        if spot.loop is None:
            ended = at_end_of(draft, spot.parsed, spot.scope, *code, reads=name)
            if ended is not None:
                yield ended
        elif not isinstance(spot.loop.body[-1], LEAVES):  # type: ignore[attr-defined]
            yield draft.append(spot.parsed, spot.loop, *code)
    for number, (spot, name) in enumerate(spots[:2]):
        code = _emptying(case, name)
        body = getattr(spot.loop if spot.loop is not None else spot.scope.node, "body", None)
        if len(code) == 1 and isinstance(body, list) and _is_bound_there(spot, code[-1]):
            first = body[1] if len(body) > 1 and spot.loop is None and _is_text(body[0]) else body[0]
            draft = Draft(f"start {number}", f"`{code[-1]}` at the start of {spot.where}")
            yield draft.before(spot.parsed, first, *code)


def _is_bound_there(spot: Spot, code: str) -> bool:
    """Whether code that rebinds a name means the variable of its scope, not a new local."""
    name = code.partition(" = ")[0]
    if " = " not in code or not name.isidentifier():
        return True
    return spot.scope.owner(name) is spot.scope or name in spot.scope.elsewhere


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _emptied_before(case: Case) -> Iterator[Draft]:
    """The container emptied right before something is added, so that it holds the newest item."""
    for store in case.stores[:1]:
        parsed = case.parsed(store)
        if parsed is None or store.gains != case.place + 1 or not is_a_store(store):
            continue
        name = code_of(parsed, store.target)
        code = _emptying(case, name)
        if len(code) == 1 and re.fullmatch(r"[\w.\[\]'\"]+", name):
            draft = Draft("newest", f"`{code[0]}` before {store.where}")
            yield draft.before(parsed, store.found.statement, *code)


def _after_last_read(case: Case) -> Iterator[Draft]:
    """The container emptied after the statement that reads it, in each function that does so while it grows."""
    last = {id(read.scope): read for read in case.reads_in_loops() if not _is_taken_out(case, read)}
    stored = {id(loop) for store in case.stores for loop in store.found.loops}
    for read in last.values():
        parsed = case.sources.file(read.scope.file)
        if parsed is None or not isinstance(read.node, ast.expr) or (read.loops and id(read.loops[-1]) in stored):
            continue  # the latter is the end of the loop's body
        name = code_of(parsed, read.node) if case.is_referent(read.node, read.scope) else case.name_in(read.scope)
        statement = read.statement
        if isinstance(statement, ast.Assign) and statement.value is read.node:  # `rows = self.rows`
            name = code_of(parsed, statement.targets[0])
            uses = [n for n, scope in parsed.reads.get(name, ()) if scope is read.scope]
            later = located(parsed, max(uses, key=lambda node: node.lineno), read.scope) if uses else None
            statement = later.statement if later is not None else statement
        code = _emptying(case, name) if name is not None else ()
        if not code or isinstance(statement, (ast.If, ast.While)):
            continue
        family = f"after read {read.scope.name}"
        draft = Draft(family, f"`{code[-1]}` after its use at {parsed.name}:{statement.lineno}")
        if not isinstance(statement, ast.Return):
            yield draft.after(parsed, statement, code[-1])
        elif statement.value is read.node and isinstance(read.node, ast.Attribute):
            yield from _handed_over(case, parsed, read, statement, draft)
        elif statement.value is not None and not isinstance(statement.value, (ast.Name, ast.Attribute)):
            result = new_name(read.scope, "result", "value", "returned")
            value = code_of(parsed, statement.value)
            yield draft.instead(parsed, statement, f"{result} = {value}", code[-1], f"return {result}")


def _handed_over(
    case: Case, parsed: ParsedFile, read: FoundNode, statement: ast.Return, draft: Draft
) -> Iterator[Draft]:
    """`rows, self.rows = self.rows, []` before what returns them."""
    empty = {"list": "[]", "dict": "{}"}.get(case.held.object.partition(",")[0])
    name = code_of(parsed, read.node)
    if empty is not None and isinstance(read.node, ast.Attribute):
        own = new_name(read.scope, read.node.attr.strip("_") or "result", "result")
        code = f"{own}, {name} = {name}, {empty}"
        titled = Draft(draft.family, f"`{name} = {empty}` as it is returned at {parsed.name}:{statement.lineno}")
        yield titled.instead(parsed, statement, code, f"return {own}")


def _is_taken_out(case: Case, read: FoundNode) -> bool:
    """Whether a read removes what it reads: `rows.pop()`."""
    parsed = case.sources.file(read.scope.file)
    above = next(parsed.above(read.node), None) if parsed is not None else None
    return isinstance(above, ast.Attribute) and above.attr in ("pop", "popleft", "popitem", "get_nowait")


def _reset_by_owner(case: Case) -> Iterator[Draft]:
    """The method of the owner that empties the container, called where its turn ends."""
    methods = []
    for parsed in case.files:
        for one in parsed.found:
            method = one.scope
            if method.outer is None or not method.outer.is_class or not isinstance(method.node, FUNCTIONS):
                continue
            own = method.name.rpartition(".")[2]
            required = len(method.parameters) - len(method.node.args.defaults)
            if own.startswith("__") or required != 1 or method in [store.found.scope for store in case.stores]:
                continue
            if _empties(case, one):
                methods.append(own)
    for own in dict.fromkeys(methods):
        for number, spot in enumerate(case.spots()[:_SPOTS]):
            owner = case.name_in(spot.scope, case.place)
            if owner is None or spot.loop is None or spot.scope.name.endswith(f".{own}"):
                continue
            draft = Draft(f"reset {own} {number}", f"`{owner}.{own}()` at the end of {spot.where}")
            yield draft.append(spot.parsed, spot.loop, f"{owner}.{own}()")


def _empties(case: Case, one: FoundNode) -> bool:
    """Whether a statement of a method rebinds the container to an empty one, or clears it."""
    if (
        isinstance(one.node, ast.Call)
        and last_name(one.node.func) == "clear"
        and isinstance(one.node.func, ast.Attribute)
    ):
        return case.place + 1 in case.meaning.of(one.node.func.value, one.scope)
    return any(place is one for _, place, _, _ in case.initial())


def _popped(case: Case) -> Iterator[Draft]:
    """An item taken out where it is read by position or key, if that is the only read that leaves it."""
    reads = [read for read in case.reads if not _is_taken_out(case, read)]
    is_dict = case.is_dict
    if len(reads) != 1 or not (is_dict or case.held.object.startswith("list")):
        return
    (read,) = reads
    parsed = case.sources.file(read.scope.file)
    above = next(parsed.above(read.node), None) if parsed is not None else None
    if parsed is None or not isinstance(above, ast.Subscript) or above.value is not read.node:
        return
    key = above.slice
    if not case.is_referent(read.node, read.scope) or not isinstance(above.ctx, ast.Load):
        return
    if isinstance(key, (ast.Slice, ast.UnaryOp)) or (isinstance(key, ast.Constant) and not isinstance(key.value, str)):
        return
    name = code_of(parsed, read.node)
    taken = f"{name}.pop({code_of(parsed, key)})" if is_dict else f"{name}.pop(0)"
    yield Draft("pop", f"`{taken}` at {parsed.name}:{above.lineno}").replace(parsed, above, taken)
    if isinstance(read.statement, ast.Assign):
        code = f"{code_of(parsed, above)} = None"
        yield Draft("forget", f"`{code}` at {parsed.name}:{above.lineno}").after(parsed, read.statement, code)


# ------------------------------------------------------------------------------------------------- how it is held


def _under_one_name(case: Case) -> Iterator[Draft]:
    """One name in place of a new one each time: `"stage"` for `f"stage_{step}"`."""
    for store in case.stores:
        parsed = case.parsed(store)
        if parsed is None or store.key is None or isinstance(store.key, ast.Constant):
            continue
        for node in _written_key(store, store.key):
            first = node.values[0] if node.values else None
            text = str(first.value) if isinstance(first, ast.Constant) else ""
            bare = text.rstrip("_-./: ")
            is_taken = bare in parsed.reads or any(scope.name.rpartition(".")[2] == bare for scope in parsed.scopes)
            text = f"{text}0" if is_taken else bare
            if re.fullmatch(r"[\w./ -]+", text):
                yield Draft("one name", f'one name, "{text}", at {parsed.name}:{node.lineno}').replace(
                    parsed, node, f'"{text}"'
                )


def _keyed(case: Case) -> Iterator[Draft]:
    """A dict in place of a list of pairs of a name and a value, so that the newest value of a name stays."""
    begun = [(parsed, value) for parsed, _, _, value in case.initial() if isinstance(value, ast.List)]
    if not case.held.object.startswith("list") or len(begun) != 1 or not case.stores:
        return
    draft = Draft("keyed", f"a dict in place of a list of pairs at {begun[0][0].name}:{begun[0][1].lineno}")
    draft = draft.replace(*begun[0], "{}")
    for store in case.stores:
        parsed, pair = case.parsed(store), store.values[0] if store.values else None
        is_pair = isinstance(pair, ast.Tuple) and len(pair.elts) == 2  # noqa: PLR2004 - key and value
        if parsed is None or not is_pair or store.name != "append" or not is_a_store(store):
            return
        assert isinstance(pair, ast.Tuple)
        if not isinstance(pair.elts[0], (ast.Constant, ast.JoinedStr, ast.Name)):
            return
        key, value = (code_of(parsed, part) for part in pair.elts)
        draft = draft.instead(parsed, store.found.statement, f"{code_of(parsed, store.target)}[{key}] = {value}")
    for read in case.reads:
        parsed = case.sources.file(read.scope.file)
        above = next(parsed.above(read.node), None) if parsed is not None else None
        is_over = isinstance(above, (ast.For, ast.comprehension)) and above.iter is read.node
        if parsed is None or not is_over or not isinstance(read.node, ast.expr):
            return
        draft = draft.replace(parsed, read.node, f"{code_of(parsed, read.node)}.items()")
    yield draft


def _written_key(store: Store, key: ast.expr) -> list[ast.JoinedStr]:
    """The f-strings that give a key."""
    found = [node for node in ast.walk(key) if isinstance(node, ast.JoinedStr)]
    if not found and isinstance(key, ast.Name):
        owner = store.found.scope.owner(key.id)
        for binding in owner.bound.get(key.id, ()) if owner is not None else ():
            found += [node for node in ast.walk(binding.value) if isinstance(node, ast.JoinedStr)]
    return found


_WEAK_OBJECTS = frozenset({
    ObjectKind.INSTANCE, ObjectKind.METHOD, ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER, ObjectKind.FUNCTION,
    *TENSOR_KINDS,
})  # fmt: skip
"""Kinds of objects to which a weak reference is possible."""


def _weakly_held(case: Case) -> Iterator[Draft]:
    """A registry that does not keep its objects alive."""
    if case.place + 2 >= len(case.trace):
        return
    item, held = case.trace[case.place + 1], case.trace[case.place + 2]
    by_key = item.reference.startswith(("key ", "[<"))
    if item.kind != ObjectKind.CONTAINER or not (by_key or held.kind in _WEAK_OBJECTS):
        return
    kind = "WeakKeyDictionary" if by_key else "WeakValueDictionary"
    if item.object.startswith("set"):
        kind = "WeakSet"
    elif not case.is_dict:
        yield from _of_weak_list(case)
        return
    for parsed, _, _, value in case.initial()[:1]:
        name, needs = imported(parsed, "weakref", kind)
        draft = Draft("weak", f"`{kind}()` at {parsed.name}:{value.lineno}")
        yield draft.replace(parsed, value, f"{name}()").imports(parsed, needs)


def _of_weak_list(case: Case) -> Iterator[Draft]:
    """A list of weak references to objects, each of which is used where it is still alive."""
    held = case.trace[case.place + 2]
    weak = {ObjectKind.METHOD: "WeakMethod", ObjectKind.INSTANCE: "ref", ObjectKind.NN_MODULE: "ref"}.get(held.kind)
    if weak is None or not case.held.object.startswith("list") or not case.stores:
        return
    draft = Draft("weak", f"`weakref.{weak}` of what is added at {case.stores[0].where}")
    for store in case.stores:
        parsed = case.parsed(store)
        if parsed is None or store.name != "append" or len(store.values) != 1:
            return
        ref, needs = imported(parsed, "weakref", weak)
        draft = draft.replace(parsed, store.values[0], f"{ref}({code_of(parsed, store.values[0])})").imports(
            parsed, needs
        )
    for read in case.reads:
        parsed = case.sources.file(read.scope.file)
        loop = next(parsed.above(read.node), None) if parsed is not None else None
        if parsed is None or not isinstance(loop, ast.For) or loop.iter is not read.node:
            return
        if not isinstance(loop.target, ast.Name):
            return
        name = loop.target.id
        reference = new_name(read.scope, "reference", "weak")
        draft = draft.replace(parsed, loop.target, reference).before(
            parsed, loop.body[0], f"{name} = {reference}()\nif {name} is None:\n    continue"
        )
    if draft.edits:
        yield draft


def _made_per_call(case: Case) -> Iterator[Draft]:
    """A default argument that each call makes anew."""
    if case.holder.reference not in (".__defaults__", ".__kwdefaults__"):
        return
    for store in case.stores:
        parsed, function = case.parsed(store), store.found.scope.node
        if parsed is None or not isinstance(store.target, ast.Name) or not isinstance(function, FUNCTIONS):
            continue
        given = function.args
        with_default = [*given.posonlyargs, *given.args][
            len(given.posonlyargs) + len(given.args) - len(given.defaults) :
        ]
        values = dict(zip((arg.arg for arg in with_default), given.defaults, strict=True))
        values |= {arg.arg: value for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
        default = values.get(store.target.id)
        if default is None or not is_empty(default):
            continue
        name = store.target.id
        first = function.body[1] if _is_text(function.body[0]) and len(function.body) > 1 else function.body[0]
        draft = Draft("per call", f"`{name}=None` at {parsed.name}:{default.lineno}")
        code = f"if {name} is None:\n    {name} = {code_of(parsed, default)}"
        yield draft.replace(parsed, default, "None").before(parsed, first, code)


def _chain_cut(case: Case) -> Iterator[Draft]:
    """A new link without the previous one: `Node(x, None)` for `self.head = Node(x, self.head)`."""
    for store in case.stores:
        parsed = case.parsed(store)
        value = store.values[0] if store.values else None
        if parsed is None or store.how != How.BINDS or not isinstance(value, ast.Call):
            continue
        before = [node for node in mentions_of(value, store.target) if node in value.args]
        if len(before) == 1:
            draft = Draft("cut chain", f"without the previous one at {store.where}")
            yield draft.replace(parsed, before[0], "None")


def _of_param_group(case: Case) -> Iterator[Draft]:
    """A parameter group that is added once, or takes the place of the previous one."""
    for store in case.stores:
        parsed = case.parsed(store)
        if parsed is None or store.name != "add_param_group" or not is_a_store(store):
            continue
        name, statement = code_of(parsed, store.target), store.found.statement
        replaced = Draft("replace", f"`del {name}.param_groups[1:]` before {store.where}")
        yield replaced.before(parsed, statement, f"del {name}.param_groups[1:]")
        once = Draft("once", f"only the first group is added at {store.where}")
        yield once.wrap(parsed, statement, statement, f"if len({name}.param_groups) == 1:")
        for loop in store.found.loops[-1:]:
            outside = located(parsed, loop, store.found.scope)
            if outside is not None and block_of(parsed, loop):
                draft = Draft("before loop", f"added before the loop at {parsed.name}:{loop.lineno}")
                yield draft.remove(parsed, statement).before(parsed, loop, code_of(parsed, statement))
