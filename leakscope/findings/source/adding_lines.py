"""The lines of the kept source that add to what is to be cut."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from leakscope.findings.facts import FreedBy
from leakscope.findings.model import CutReference, Finding, Hop
from leakscope.findings.rules.immortal_cycle import ClosedBy, ImmortalFacts
from leakscope.findings.rules.step_growth import GrowsIn, GrowthFacts
from leakscope.findings.source.closures import (
    is_hooks,
    where_closed,
    where_exit_handler,
    where_handed_on,
    where_hooked,
    where_packed,
    where_registered,
)
from leakscope.findings.source.index import BY_NAME, ParsedFile, Sources, class_of, file_of, is_item, last_name
from leakscope.findings.source.scopes import Meaning
from leakscope.findings.source.stores import How, Store, may_hold, mentions, stores_of
from leakscope.graph.model import ObjectKind

LINES = 3
"""Lines that are told for one reference: more would be a listing of the program."""
FILES = 30
"""Files beside those of its class that are read for the name of an attribute, chosen: a commoner name says nothing."""
_TENSORS = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.STORAGE, ObjectKind.GRAD_NODE, ObjectKind.WORK)
_ADDED_TO = (ObjectKind.CONTAINER, ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER)
CACHE = "functools._lru_cache_wrapper"
_ARRAY = "numpy.ndarray"
_NAME = re.compile(r"[^\W\d]\w*")


def stores_for(finding: Finding, reference: CutReference, sources: Sources) -> tuple[Store, ...]:
    """The places that put something where one reference of a finding's cut is, the likeliest first; () where the
    sources show none.

    They are looked for where the trace says that its names are: a local in its function and what it calls with it, an
    attribute in the methods of the class, a global in its module and where it is imported.
    """
    place, trace = on_trace(finding, reference)
    if isinstance(finding.facts, GrowthFacts) and finding.facts.grows_in == GrowsIn.CALLBACK:
        return where_exit_handler(trace, sources)[:LINES]
    if isinstance(finding.facts, ImmortalFacts) and finding.facts.closed_by == ClosedBy.PACK_HOOK:
        return where_packed(sources)
    if place is None:
        return where_registered(reference.where, sources)[:LINES] if is_item(reference.name) else ()
    in_cycle = finding.freed_by != FreedBy.PROGRAM
    if place and is_item(trace[place].reference) and is_hooks(trace[place - 1].reference):
        place -= 1
    holder = trace[place]
    if is_hooks(holder.reference):
        return where_hooked(trace, place, Meaning(trace, sources, in_cycle), sources)[:LINES]
    if holder.reference.startswith("closure ") and in_cycle:
        return where_closed(trace, place, sources)[:LINES]
    cache = next((hop for hop in trace[place : place + 2] if hop.type == CACHE and hop.name != CACHE), None)
    if cache is not None:
        return _calls(cache, sources)[:LINES]
    for loosely in (False, True):
        meaning = Meaning(trace, sources, in_cycle, loosely)
        stores = list(_stores(place, meaning, sources))
        if chosen := _chosen(stores, place, meaning):
            return tuple(_one_a_line(chosen))[:LINES]
    return where_handed_on(trace, sources)[:LINES]


def on_trace(finding: Finding, reference: CutReference) -> tuple[int | None, tuple[Hop, ...]]:
    """Position of the hop that holds by a reference, and a trace that leads over it.

    A further reference that the trace does not lead over may be one of an object on it: `context.outputs` beside
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
    """All that is put into what gains, or bound in the place of what is held, in the files that name it."""
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
    """Positions of the objects to which something may be added: what the reference at `place` leads to, and what
    that holds as its items.

    Also what holds by it, where the reference is an item or an attribute that no user's class has: `queue.queue`.
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
    """Whether the way in which something is added fits the object: a method that it has, and no key that is always the
    same but that of the cut at `place`.
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
    """Files in which what is held may be named, by its own name or as a parameter of what is called with it."""
    trace = meaning.trace
    above = [hop for hop in trace[place::-1] if _word(hop)]
    if meaning.in_cycle:  # its way around is its name
        above = [*above, *(hop for hop in trace[place + 1 :] if _word(hop))]
    passed = trace if meaning.in_cycle else trace[: place + 1]
    files = [sources.of_line(file_of(hop)) for hop in passed if file_of(hop)]
    for hop in above if meaning.in_cycle else above[:1]:
        files += _naming(hop, sources)
    if trace[place].kind == ObjectKind.NN_MODULE:  # its name there may be made up as the program runs
        files += sources.files_of_class(class_of(trace[place]))
        files += sources.matching(rf"(?<!\bself)\.({'|'.join(BY_NAME)})\(|\bsetattr\(", FILES)
    return meaning.follow(list(dict.fromkeys(parsed for parsed in files if parsed is not None)))


def _naming(hop: Hop, sources: Sources) -> list[ParsedFile]:
    """Files that have the name by which a hop holds: no other one that of a local, and `self.` before an attribute is
    of no interest but in the classes of its object.
    """
    word = _word(hop)
    if hop.reference.startswith(("local ", "closure ")) and file_of(hop):
        return []
    if hop.kind == ObjectKind.NAMESPACE or not hop.reference.startswith("."):
        return sources.containing(word)
    elsewhere = sources.matching(rf"(?<!\bself)(\.|['\"]){re.escape(word)}(?!\w)", FILES)
    return [*sources.files_of_class(class_of(hop)), *elsewhere]


def _word(hop: Hop) -> str:
    """The name by which a hop holds, as a program has to write it; "" for an item and for `queue` of a Queue."""
    of_library = hop.kind in (*_ADDED_TO, ObjectKind.INSTANCE) and not file_of(hop)
    names = _NAME.findall(hop.reference.rpartition(" ")[2])
    if not names or is_item(hop.reference) or of_library or names[-1].startswith("__"):
        return ""
    return str(names[-1])


def _chosen(stores: list[Store], place: int, meaning: Meaning) -> list[Store]:
    """Those of the stores that can be what grows, the likeliest first."""
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
    """Those whose values are of the kind that the trace shows, where there are such: a call of the function or class
    that it names, no `detach()` where a graph hangs on it, no `clone()` of a view, no weak reference.
    """
    trace, gains = meaning.trace, gaining(meaning.trace, place)
    rest = (hop for position, hop in enumerate(trace) if position > place and position not in gains)
    held = next((hop for hop in rest if hop.kind != ObjectKind.CONTAINER), None)
    if held is None:
        return stores
    name = held.name.rpartition(".")[2] if held.kind in _NAMED else class_of(held)
    named = [s for s in stores if name and any(name in map(last_name, _names(value)) for value in s.values)]
    if meaning.in_cycle:  # who makes the object is known there
        named = named or [s for s in stores if _goes_on(s, place, meaning)]
    if held.kind == ObjectKind.NATIVE:  # a text, a number: what makes a weak reference may make it as well
        return named or stores
    ends = {"ref", "WeakMethod", "proxy", "with_traceback", "str", "repr"}
    if held.kind in _TENSORS:
        graph = held.reference == ".grad_fn"
        ends |= {"detach", "detach_", "requires_grad_", "item"} if graph else {"clone", "copy"}
    whole = [s for s in stores if not any(isinstance(v, ast.Call) and last_name(v.func) in ends for v in s.values)]
    return named or whole or stores


def _goes_on(store: Store, place: int, meaning: Meaning) -> bool:
    """Whether what is stored means the object that the trace goes on with."""
    after = meaning.everywhere(frozenset({(place if store.gains is None else store.gains) + 1}))
    return any(meaning.of(value, store.found.scope) & after for value in store.values)


_NAMED = (ObjectKind.FUNCTION, ObjectKind.GENERATOR)


def _names(value: ast.expr) -> Iterator[ast.expr]:
    return (node for node in ast.walk(value) if isinstance(node, (ast.Name, ast.Attribute)))


def _displays(value: ast.expr) -> bool:
    """Whether a value is written out as a list, a tuple or the like, with something in it that may hold memory."""
    return isinstance(value, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.DictComp, ast.SetComp))


def _one_a_line(stores: Sequence[Store]) -> list[Store]:
    return list({store.where: store for store in reversed(stores)}.values())[::-1]


def _calls(cache: Hop, sources: Sources) -> tuple[Store, ...]:
    """The calls of a function whose results are cached: each with new arguments adds one."""
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
"""Last names of the functions of torch, torch.nn.functional and numpy that make one array larger than it was."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.AsyncFor, ast.While, ast.Module)


def variable_of(references: Sequence[str]) -> str:
    """The name under which the source knows what a path's last references hold: `seen` of `.seen` or `local seen`."""
    for reference in reversed(references):
        named = re.search(r"([A-Za-z_]\w*)(?:'\]|\"\])?$", reference)
        if named:
            return named[1]
    return ""


def is_made_from_itself(sources: Mapping[str, Sequence[str]], variable: str) -> bool:
    """Whether any of the files joins a variable's previous value with more, and does not set it anew before.

    `x = torch.cat([token, x])` in a loop or a function that has `x = embed(ids)` as well joins nothing of the last
    step's.
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
    """What is assigned to the variable in a scope, not in loops and functions within it."""
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
    """Whether a call in it joins what it is given, and is given the variable."""
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    return any(
        isinstance(call.func, (ast.Name, ast.Attribute))
        and (call.func.id if isinstance(call.func, ast.Name) else call.func.attr) in _JOINS
        and _mentions(call, variable)
        for call in calls
    )


_NAMELESS = (ObjectKind.CONTAINER, ObjectKind.TENSOR, ObjectKind.PARAMETER)
"""Kinds of objects of which there are many without a name of their own: `dict, 2 items`."""
_LONGEST = 60
"""Characters of an expression that is a name; chosen."""


def as_in_source(finding: Finding, reference: CutReference, stores: Sequence[Store]) -> CutReference:
    """A reference of a nameless object as the line writes it that puts something there: `out.metadata['output']`.

    It is told with that line, where it had none. As it is where the sources show none.
    """
    place, trace = on_trace(finding, reference)
    if place is None or trace[place].kind not in _NAMELESS or not stores:
        return reference
    if " of " not in reference.written:  # then it is written as a user would, from its root on
        return reference
    text = _text(stores[0], place, trace[place])
    if not text or len(text) > _LONGEST:
        return reference
    return replace(reference, written=text, where=reference.where or stores[0].where)


def _text(store: Store, place: int, holder: Hop) -> str:
    """The expression; "" where the line is about another object."""
    target = ast.unparse(store.target)
    if store.how == How.ADDS and store.gains == place and is_item(holder.reference):
        return target + holder.reference
    named = store.how == How.BINDS or store.gains == place + 1
    is_attribute = isinstance(store.target, ast.Attribute) and holder.reference == f".{store.target.attr}"
    return target if named and is_attribute else ""
