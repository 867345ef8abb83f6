"""Suggested edits: one line of source that would cut the reference, if heap and source both show that it is safe."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from leakscope.findings.facts import RuleName
from leakscope.findings.model import CutReference, Finding, Hop, Suggestion
from leakscope.findings.source.bounds import QUEUES
from leakscope.findings.source.index import FoundNode, ParsedFile, Sources, class_of, is_cell, key_of, last_name
from leakscope.findings.source.stores import (
    CACHE,
    PACK,
    How,
    Store,
    is_hooks,
    may_hold,
    mentions,
    mentions_of,
    on_trace,
    runs_hook,
    stores_for,
)
from leakscope.findings.source.uses import Uses, of_default
from leakscope.graph.model import TENSOR_KINDS, ObjectKind

_DISPLAYS = (ast.List, ast.Tuple, ast.Set)
_OF_MANY = ("extend", "extendleft", "update")
_SUMS = (ast.Add, ast.Sub)
_PRODUCTS = (ast.Mult, ast.Div)
_JOINS = ("cat", "concat", "concatenate", "hstack", "vstack", "dstack")
_CUTS_OFF = ("with_traceback", "detach", "clone", "copy")


def stored_value(store: Store, between: Sequence[Hop]) -> ast.expr | None:
    """The expression in a line that gives what the trace shows there; None if it could be one of several.

    `between` are the containers of the trace inside the growing one: if the line writes them out, it puts the last of
    them there with the value in it. For a sum it is the added term, for a line that carries a value on (`h = cell(x,
    h)`) the previous value.
    """
    if not store.values:
        return None
    value, found = store.values[0], store.found
    if isinstance(value, ast.Starred):
        return None
    if store.how == How.BINDS:
        bound = _carried(store, value)
        return bound if not between else None
    if store.name in _OF_MANY or (store.key is None and isinstance(found.node, ast.AugAssign)):
        if not isinstance(value, _DISPLAYS) or len(value.elts) != 1:
            return None
        value = value.elts[0]
    if between:
        part = _part(value, between[-1].reference, found)
        return _branch(part, found) if part is not None else None
    return _branch(value, found)


def _carried(store: Store, value: ast.expr) -> ast.expr | None:
    """What an assignment adds to its own target, or the target if it is passed on; otherwise the value."""
    if isinstance(store.found.node, ast.AugAssign):
        adds = isinstance(store.found.node.op, _SUMS)
        return _factor(_branch(value, store.found)) if adds else None
    node = store.found.node
    if isinstance(node, ast.Assign) and value is node.value and not any(store.target is one for one in node.targets):
        return None  # `out, state = net(x)`: unpacked values have no method of a tensor
    if not mentions(value, store.target):
        return _branch(value, store.found)
    if isinstance(value, ast.BinOp) and isinstance(value.op, _SUMS):
        others = [term for term in _terms(value) if not mentions(term, store.target)]
        return _factor(_branch(others[0], store.found)) if len(others) == 1 else None
    if isinstance(value, ast.Call):
        if last_name(value.func) in _JOINS and value.args and isinstance(value.args[0], (ast.List, ast.Tuple)):
            others = [part for part in value.args[0].elts if not mentions(part, store.target)]
            return others[0] if len(others) == 1 and len(value.args[0].elts) > 1 else None
        carried = list(mentions_of(value, store.target))
        return carried[0] if len(carried) == 1 else None
    return None


def _terms(value: ast.expr) -> list[ast.expr]:
    """The terms of a sum."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, _SUMS):
        return [*_terms(value.left), *_terms(value.right)]
    return [value]


def _factor(value: ast.expr | None) -> ast.expr | None:
    """The operand that a number multiplies: `loss` of `0.1 * loss`."""
    while isinstance(value, ast.BinOp) and isinstance(value.op, _PRODUCTS):
        if isinstance(value.left, ast.Constant):
            value = value.right
        elif isinstance(value.right, ast.Constant):
            value = value.left
        else:
            break
    return value


def _part(value: ast.expr, reference: str, found: FoundNode) -> ast.expr | None:
    """The part of a tuple or dict that a reference of the trace leads to; without a known position the only part that
    may hold memory.
    """
    if isinstance(value, ast.Dict):
        return next((v for k, v in zip(value.keys, value.values, strict=True) if k and key_of(k) == reference), None)
    if not isinstance(value, _DISPLAYS):
        return None
    numbered = [e for k, e in enumerate(value.elts) if reference == f"[{k}]"]
    parts = numbered or [e for e in value.elts if may_hold(e, found) and not is_count(e, found)]
    return parts[0] if len(parts) == 1 and not isinstance(parts[0], ast.Starred) else None


def is_count(value: ast.expr, found: FoundNode) -> bool:
    """Whether a name is the variable of a loop over `range`."""
    owner = found.scope.owner(value.id) if isinstance(value, ast.Name) else None
    if owner is None or not isinstance(value, ast.Name):
        return False
    bound = owner.bound.get(value.id, [])
    return bool(bound) and all(
        b.of_item
        and isinstance(b.value, ast.Call)
        and isinstance(b.value.func, ast.Name)
        and b.value.func.id == "range"
        for b in bound
    )


def _is_cut_off(value: ast.expr) -> bool:
    """Whether an expression gives a value without its graph, its base or its traceback."""
    return isinstance(value, ast.Call) and last_name(value.func) in _CUTS_OFF


def _branch(value: ast.expr, found: FoundNode) -> ast.expr | None:
    """The branch of `a if test else b` that may hold memory."""
    while isinstance(value, ast.IfExp):
        parts = [part for part in (value.body, value.orelse) if may_hold(part, found) and not _is_cut_off(part)]
        if len(parts) != 1:
            return None
        value = parts[0]
    return value


_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.List, ast.Tuple, ast.Dict)
"""Expressions that take a method call without parentheses."""


_MAX_LINES = 12
"""Maximum lines of one edit. Heuristic: more would be a rewrite of the program."""


def with_method(parsed: ParsedFile, value: ast.expr, method: str) -> Suggestion | None:
    """The line with `.detach()` or the like after one of its expressions; the last line if it spans several."""
    text, end = _text(parsed, value), value.end_lineno
    if text is None:
        if not isinstance(value, (ast.Call, ast.Subscript)) or end is None or end > len(parsed.lines):
            return None
        line = parsed.lines[end - 1].encode()
        after = line[: value.end_col_offset] + f".{method}()".encode() + line[value.end_col_offset :]
        return _suggestion(parsed, end, after.decode(errors="replace").strip())
    bare = isinstance(value, _ATOMS) and not (isinstance(value, ast.Tuple) and not text.startswith("("))
    return with_text(parsed, value, f"{text if bare else f'({text})'}.{method}()")


def with_text(parsed: ParsedFile, value: ast.expr | ast.stmt, new: str) -> Suggestion | None:
    """The line with another text for one of its expressions; None if that is not on one line."""
    if _text(parsed, value) is None or value.end_col_offset is None:
        return None
    line = _line(parsed, value).encode()  # offsets of ast count UTF-8 bytes
    after = line[: value.col_offset] + new.encode() + line[value.end_col_offset :]
    return _suggestion(parsed, value.lineno, after.decode(errors="replace").strip())


def with_texts(parsed: ParsedFile, texts: Mapping[ast.AST, str]) -> Suggestion | None:
    """The lines from the first to the last of some nodes, with another text for each; None if they are too far apart or
    one is not on one line.
    """
    nodes = sorted(texts, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
    first, last = (int(getattr(node, "lineno", 0)) for node in (nodes[0], nodes[-1]))
    if last - first >= _MAX_LINES or any(
        getattr(node, "end_lineno", 0) != getattr(node, "lineno", 0) for node in nodes
    ):
        return None
    lines = [line.encode() for line in parsed.lines[first - 1 : last]]
    before = textwrap.dedent("\n".join(parsed.lines[first - 1 : last]))
    for node in reversed(nodes):
        place, start, end = (getattr(node, name) for name in ("lineno", "col_offset", "end_col_offset"))
        line = lines[place - first]
        lines[place - first] = line[:start] + texts[node].encode() + line[end:]
    after = textwrap.dedent("\n".join(line.decode(errors="replace") for line in lines))
    return Suggestion(f"{parsed.name}:{first}", before, after)


def with_lines_after(parsed: ParsedFile, node: ast.AST, prefix: str, *more: str) -> Suggestion | None:
    """The line of a statement that is alone on it, with `prefix` before it and further lines after it."""
    start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
    if start != end or not 0 < start <= len(parsed.lines):
        return None
    line = parsed.lines[start - 1]
    if line.encode()[: getattr(node, "col_offset", 0)].strip():
        return None
    return _suggestion(parsed, start, "\n".join((prefix + line.strip(), *more)))


def with_lines_before(parsed: ParsedFile, statement: ast.stmt, *more: str) -> Suggestion | None:
    """The first line of a statement with further lines before it; None if another statement begins that line."""
    line = parsed.lines[statement.lineno - 1]
    if line.encode()[: statement.col_offset].strip():
        return None
    return _suggestion(parsed, statement.lineno, "\n".join((*more, line.strip())))


def with_lines_behind(parsed: ParsedFile, statement: ast.stmt, *more: str) -> Suggestion | None:
    """The last lines of a statement with further lines of its block after them; None if the line also heads a block."""
    above = next(parsed.above(statement), parsed.module.node)
    same_line = getattr(above, "lineno", 0) == statement.lineno
    block = [s for name in ("body", "orelse", "finalbody") for s in getattr(above, name, ()) or ()]
    last, blocks = statement, block if statement in block else []
    while after := next((s for s in blocks if s.lineno == last.end_lineno and s.col_offset > last.col_offset), None):
        last = after
    first = next((s for s in blocks if s.lineno == statement.lineno), statement)
    return None if same_line else with_lines_around(parsed, first, last, "", *more)


def with_lines_inside(parsed: ParsedFile, statement: ast.stmt, head: str) -> Suggestion | None:
    """The lines of a statement, indented, after the head of a block."""
    edit = with_lines_around(parsed, statement, statement, "")
    return edit and Suggestion(edit.where, edit.before, f"{head}\n{textwrap.indent(edit.before, '    ')}")


def with_lines_around(
    parsed: ParsedFile, first: ast.stmt, last: ast.stmt, prefix: str, *more: str
) -> Suggestion | None:
    """The lines of some statements, with `prefix` before the first and further lines after the last."""
    end = last.end_lineno or last.lineno
    if end > len(parsed.lines) or end - first.lineno >= _MAX_LINES:
        return None
    if parsed.lines[first.lineno - 1].encode()[: first.col_offset].strip():
        return None
    before = textwrap.dedent("\n".join(parsed.lines[first.lineno - 1 : end]))
    return Suggestion(f"{parsed.name}:{first.lineno}", before, "\n".join((prefix + before, *more)))


def without(parsed: ParsedFile, statement: ast.stmt, rest: str = "") -> Suggestion | None:
    """The lines of a statement without it, or with the remainder: `pass` if its block has no other; None if it shares
    its lines with another one and is not on one line.
    """
    above = next(parsed.above(statement), parsed.module.node)
    fields = (getattr(above, name, None) for name in ("body", "orelse", "finalbody"))
    block = next((block for block in fields if isinstance(block, list) and statement in block), [])
    rest = rest or ("pass" if len(block) <= 1 else "")
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    neighbours = [s for s in block if s is not statement and s.lineno <= last and (s.end_lineno or 0) >= first]
    line = parsed.lines[first - 1].encode()
    starts, ends = not line[: statement.col_offset].strip(), statement.end_col_offset or 0
    if not neighbours and starts and last - first < _MAX_LINES:
        before = textwrap.dedent("\n".join(parsed.lines[first - 1 : last])).strip()
        comment = parsed.lines[last - 1].encode()[ends:].decode(errors="replace") if rest not in ("", "pass") else ""
        return Suggestion(f"{parsed.name}:{first}", before, (rest + comment).rstrip())
    if first != last:
        return None
    if rest or not neighbours:
        return with_text(parsed, statement, rest or "pass")
    after, at = line[ends:], line[: statement.col_offset].rstrip()
    if after.lstrip().startswith(b";"):
        text = line[: statement.col_offset] + after.lstrip()[1:].lstrip()
    else:
        text = at.removesuffix(b";") + after
    return _suggestion(parsed, first, text.decode(errors="replace").strip())


def text_of(parsed: ParsedFile, value: ast.expr) -> str:
    """The text of an expression, "" if it is not on one line."""
    return _text(parsed, value) or ""


def _suggestion(parsed: ParsedFile, number: int, after: str) -> Suggestion:
    return Suggestion(f"{parsed.name}:{number}", parsed.lines[number - 1].strip(), after)


def _text(parsed: ParsedFile, value: ast.expr | ast.stmt) -> str | None:
    if value.lineno != value.end_lineno or not 0 < value.lineno <= len(parsed.lines):
        return None
    return _line(parsed, value).encode()[value.col_offset : value.end_col_offset].decode(errors="replace")


def _line(parsed: ParsedFile, value: ast.expr | ast.stmt) -> str:
    return parsed.lines[value.lineno - 1]


_ENTRIES = 32
"""Entries of a cache in an edit. Heuristic: few enough that a run of a few dozen steps shows the bound."""
_BY_NAME = frozenset(("globals", "locals", "vars", "getattr", "__dict__", "eval", "exec", "pickle", "asdict"))
_EXPANDING = ("expand", "expand_as", "broadcast_to")
"""Views that repeat a few numbers: their copy is larger than what they keep."""


@dataclass(frozen=True)
class StoreCase:
    """One store of one reference of a finding's cut, and its value."""

    finding: Finding
    trace: tuple[Hop, ...]
    place: int
    """Position of the hop with the reference."""
    store: Store
    parsed: ParsedFile
    sources: Sources

    @property
    def holder(self) -> Hop:
        """The referrer of the reference to cut."""
        return self.trace[self.place]

    @cached_property
    def at(self) -> int:
        """Position of the referent, below all containers."""
        below = range(self.place + 1, len(self.trace) - 1)
        return next((k for k in below if self.trace[k].kind != ObjectKind.CONTAINER), len(self.trace) - 1)

    @property
    def held(self) -> Hop:
        """The first referent below that is not a container."""
        return self.trace[self.at]

    @cached_property
    def value(self) -> ast.expr | None:
        """The expression of the referent, None if it cannot be distinguished from others."""
        gains = self.place if self.store.gains is None else self.store.gains
        return stored_value(self.store, self.trace[gains + 1 : self.at])

    @property
    def holds_others(self) -> bool:
        """Whether the line also stores other things than tensors, such as numbers or None: the heap has some beside
        those that leak, or the source binds such to the name.
        """
        if self.store.how != How.ADDS or self.store.gains is None:
            return self._may_be_none
        place, target = self.store.gains, self.store.target
        levels = [place]
        while isinstance(target, ast.Subscript):  # `history[name].append(value)` adds to each of history's lists
            place, whole, target = place - 1, key_of(target.slice) is None, target.value
            levels += [place] if whole and place >= 0 else []
        return any(self.trace[k].others for k in levels) or self._may_be_none

    @property
    def _may_be_none(self) -> bool:
        value = self.value
        owner = self.store.found.scope.owner(value.id) if isinstance(value, ast.Name) else None
        if owner is None or not isinstance(value, ast.Name):
            return False
        return any(isinstance(b.value, ast.Constant) and not b.of_item for b in owner.bound.get(value.id, ()))

    @cached_property
    def uses(self) -> Uses:
        """The other uses of it in the program."""
        return Uses(self.store, self.sources)


def suggested(finding: Finding, found: Sequence[Sequence[Store]], sources: Sources) -> Suggestion | None:
    """The edits of what stores each reference of the cut; None if one of them has no edit that certainly preserves the
    meaning.
    """
    references = finding.cut.references if finding.cut is not None else ()
    edits: dict[Suggestion, None] = {}
    for reference, stores in zip(references, found, strict=True):
        of_reference = _of_reference(finding, reference, stores, sources)
        if not of_reference:
            return None
        edits |= dict.fromkeys(place for edit in of_reference for place in edit.places)
    if not edits or len({edit.where for edit in edits}) < len(edits):  # two edits on one line
        return None
    first, *others = edits
    return replace(first, also=tuple(others))


def _of_reference(
    finding: Finding, reference: CutReference, stores: Sequence[Store], sources: Sources
) -> list[Suggestion]:
    """The edits of the lines that store one reference: of all that add to what grows, else of the first that allows
    one.
    """
    place, trace = on_trace(finding, reference)
    edits: list[Suggestion] = []
    if finding.keeps_graphs:  # a tensor that is bound once grows through in-place updates
        stores = [store for store in stores if not _is_bound_once(store)]
    for store in stores if place is not None else ():
        parsed = sources.file(store.found.scope.file)
        case = StoreCase(finding, trace, place or 0, store, parsed, sources) if parsed is not None else None
        if case is not None and is_fixed(case):
            continue
        edit = _edit(case) if case is not None else None
        is_edit = edit is not None and any(one.before != one.after for one in edit.places)
        if edit is not None and is_edit:
            edits.append(edit)
            if store.gains is None:
                break
        elif store.gains is not None:
            return []
    return edits if edits or place is None else _otherwise(finding, trace, place, stores, sources)


def _is_bound_once(store: Store) -> bool:
    """Whether a line is the initial binding of a name or attribute: outside of all loops of a module or `__init__`."""
    begins = store.found.scope.outer is None or store.found.scope.name.endswith("__init__")
    return store.how == How.BINDS and begins and not store.found.loops


def _otherwise(
    finding: Finding, trace: tuple[Hop, ...], place: int, stores: Sequence[Store], sources: Sources
) -> list[Suggestion]:
    """The edit of another place than the storing lines: of an in-place update, or of another reference of a cycle."""
    edit = None
    if not stores and finding.keeps_graphs and trace[place + 1].kind in TENSOR_KINDS:
        edit = _without_grad(trace[: place + 1], sources)
    elif finding.rule == RuleName.TENSOR_CYCLE and finding.cut is not None and len(finding.cut.references) == 1:
        edit = _of_cycle(finding, trace, place, sources)
    return [edit] if edit is not None else []


def _of_cycle(finding: Finding, trace: tuple[Hop, ...], place: int, sources: Sources) -> Suggestion | None:
    """Remove the statement that closes a cycle by another reference than the cut, if nothing reads that."""
    again = next(
        (k for k in range(1, len(trace)) if trace[k].index is not None and trace[k].index == trace[0].index), 0
    )
    for other in range(again):
        hop = trace[other]
        if other == place or not hop.reference.startswith(".") or hop.kind != ObjectKind.INSTANCE:
            continue
        stores = stores_for(finding, CutReference(hop.reference, hop.where, trace=other), sources)
        parsed = sources.file(stores[0].found.scope.file) if len(stores) == 1 else None
        if parsed is None or stores[0].how != How.BINDS:
            continue
        if (edit := _not_kept(StoreCase(finding, trace, other, stores[0], parsed, sources))) is not None:
            return edit
    return None


def _without_grad(above: Sequence[Hop], sources: Sources) -> Suggestion | None:
    """`with torch.no_grad():` around the single statement of the kept files, or loop of such statements, that updates
    parameters or the names above a tensor in place and records that for backward; None if the program may
    differentiate through updates.
    """
    named = {word for hop in above for word in re.findall(r"\w+", hop.reference)} | set(_PARAMETERS)
    if sources.matching(r"\b(create_graph|retain_graph|functional_call)\b"):
        return None
    found = [
        (parsed, one)
        for parsed in sources.matching(r"\.(mul|add|sub|div|lerp|copy|addcmul)_\(")
        for one in parsed.found
        if isinstance(one.node, ast.Call) and last_name(one.node.func) in _IN_PLACE and _is_recorded(parsed, one, named)
    ]
    if len({id(one.statement) for _, one in found}) != 1:
        return None
    parsed, one = found[0]
    statement = one.statement
    around = next(parsed.above(statement), None)
    if isinstance(around, ast.For) and not around.orelse and around.body == [statement]:
        statement = around
    has_torch = parsed.module.imported.get("torch") == "torch"
    return with_lines_inside(parsed, statement, "with torch.no_grad():") if has_torch else None


_PARAMETERS = ("parameters", "named_parameters", "state_dict", "buffers", "named_buffers")
_IN_PLACE = ("mul_", "add_", "sub_", "div_", "lerp_", "copy_", "addcmul_")


def _is_recorded(parsed: ParsedFile, one: FoundNode, named: set[str]) -> bool:
    """Whether autograd records a statement of only in-place updates of one of some names or their items, as far as the
    source shows.
    """
    if not isinstance(one.statement, ast.Expr) or not isinstance(one.statement.value, ast.Call):
        return False
    above = list(parsed.above(one.statement))
    updated: ast.expr = one.statement.value
    while isinstance(updated, (ast.Call, ast.Subscript)) or (
        isinstance(updated, ast.Attribute) and updated.attr in _IN_PLACE
    ):
        updated = updated.func if isinstance(updated, ast.Call) else updated.value
    loops = [
        up
        for up in above
        if isinstance(up, ast.For)
        and any(isinstance(n, ast.Name) and n.id == last_name(updated) for n in ast.walk(up.target))
    ]
    over = {last_name(node) for up in loops for node in ast.walk(up.iter) if isinstance(node, ast.expr)}
    item = isinstance(updated, ast.Name) and not named.isdisjoint(over)
    if not item and last_name(updated) not in named:
        return False
    heads = [item.context_expr for up in above if isinstance(up, ast.With) for item in up.items]
    heads += [each for up in above for each in getattr(up, "decorator_list", ())]
    off = {"no_grad", "inference_mode", "set_grad_enabled"}
    names = {last_name(node) for head in heads for node in ast.walk(head) if isinstance(node, ast.expr)}
    inside = {last_name(node) for node in ast.walk(one.statement) if isinstance(node, ast.expr)}
    return names.isdisjoint(off) and inside.isdisjoint(("data", "detach", "item", "grad"))


def _chain(value: ast.expr) -> set[str]:
    """The calls of which the last gives a value: `detach` and `clone` of `x.detach().clone()`."""
    names = set()
    while isinstance(value, ast.Call):
        names.add(last_name(value.func))
        value = value.func.value if isinstance(value.func, ast.Attribute) else value.func
    return names


def is_fixed(case: StoreCase) -> bool:
    """Whether a line already stores a copy, or a value without graph or traceback, as the edit would."""
    value = case.value
    if not isinstance(value, ast.Call):
        return False
    if case.finding.rule == RuleName.VIEW_HOLD:
        return last_name(value.func) in ("clone", "copy")
    graph = case.held.reference == ".grad_fn" or case.finding.keeps_graphs
    return graph and not {"detach", "item", "float", "tolist", "zeros", "ones", "empty"}.isdisjoint(_chain(value))


def _edit(case: StoreCase) -> Suggestion | None:
    """The edit of one line, by the kind of value."""
    if case.store.name == "def":
        return _forgetting(case)
    if case.store.name == PACK:
        return _packed_detached(case)
    if is_hooks(case.holder.reference):
        return _with_handle(case) or _with_handles(case)
    return _of_value(case)


def _of_value(case: StoreCase) -> Suggestion | None:
    """The edit of a line that stores a value."""
    if any(hop.type == CACHE for hop in case.trace[case.place : case.at]):
        return None  # its lines are calls, and the key holds their arguments
    if case.holder.kind == ObjectKind.GRAD_NODE:
        return _saved_for_backward(case)
    if case.held.kind == ObjectKind.EXCEPTION:
        return _without_traceback(case)
    if case.finding.rule == RuleName.VIEW_HOLD:
        # a copy of a tensor keeps its graph; a number has neither graph nor storage
        number = case.finding.keeps_graphs and case.held.object.endswith("[]")
        return _without_graph(case) if number else None if case.finding.keeps_graphs else _copied(case)
    if case.held.kind in TENSOR_KINDS and (case.held.reference == ".grad_fn" or case.finding.keeps_graphs):
        return _without_graph(case)
    if case.held.kind == ObjectKind.WORK:
        return _dropped_when_waited_for(case)
    if case.finding.rule == RuleName.TENSOR_CYCLE:
        return _not_kept(case) if case.store.how == How.BINDS and case.held.kind == ObjectKind.INSTANCE else None
    growth = case.finding.rule in (RuleName.STEP_GROWTH, RuleName.OBJECT_GROWTH)
    return _not_kept(case) or _evicting(case) or _of_the_last(case) if growth else None


def _not_kept(case: StoreCase) -> Suggestion | None:
    """Remove the statement that stores it, if nothing reads the target; calls in it are kept."""
    store, statement = case.store, case.store.found.statement
    if not is_a_store(store) or _may_be_read_elsewhere(case):
        return None
    if store.name == "setattr":
        if case.held.kind not in TENSOR_KINDS[:1] or not _is_never_named(case):
            return None
    elif not case.uses.never_read():
        return None
    calls = [call for value in store.values for call in effects_of(value)]
    if len(calls) > 1:
        return None
    text = text_of(case.parsed, calls[0]) if calls else ""
    if calls and isinstance(calls[0], ast.NamedExpr):  # a statement of its own needs parentheses
        text = f"({text})" if text else ""
    return without(case.parsed, statement, text) if text or not calls else None


def is_a_store(store: Store) -> bool:
    """Whether a statement only stores a value in one place."""
    statement, node = store.found.statement, store.found.node
    if isinstance(statement, ast.Expr):
        return statement.value is node and isinstance(node, ast.Call) and bool(store.values)
    if isinstance(statement, ast.Assign):
        whole = store.values[:1] == (statement.value,)
        return node is statement and len(statement.targets) == 1 and whole
    return isinstance(statement, ast.AugAssign) and node is statement


def _may_be_read_elsewhere(case: StoreCase) -> bool:
    """Whether the target may be read outside the kept files: by a later notebook cell, by a library whose class has the
    attribute, or by code that reads variables without naming them.
    """
    if is_cell(case.parsed.name) or _reads_by_name(case.parsed):
        return True
    store, target = case.store, of_default(case.store.target)
    if store.how == How.ADDS and store.name != "setattr":
        gains = case.trace[store.gains] if store.gains is not None else None
        if gains is None or (gains.kind != ObjectKind.CONTAINER and gains.type.rpartition(".")[2] not in QUEUES):
            return True  # a layer, a parameter group: its new owner uses it
    while isinstance(target, ast.Subscript):
        target = target.value
    if store.name == "setattr" or not isinstance(target, ast.Attribute):
        return False
    owner = next((hop for hop in case.trace if hop.reference == f".{target.attr}"), None)
    if owner is None or target.attr in _CALLED_BY_TORCH:
        return True
    return owner.kind != ObjectKind.NAMESPACE and not _is_plain(class_of(owner), case.sources)


def _is_plain(name: str, sources: Sources) -> bool:
    """Whether a class is the user's, without a library base that reads attributes of subclasses."""
    bases = sources.bases(name)
    return sources.has_class(name) and all(sources.has_class(base) or base in _PLAIN_BASES for base in bases)


def _is_never_named(case: StoreCase) -> bool:
    """Whether the start of a name that a program generates, `dbg_` of `f"dbg_{step}"`, occurs nowhere else in it."""
    key = case.store.key
    if isinstance(key, ast.BinOp):
        key = key.left
    first = key.values[0] if isinstance(key, ast.JoinedStr) and key.values else key
    text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    prefix = text.partition("%")[0].partition("{")[0]
    if not re.fullmatch(r"\w{2,}", prefix):
        return False
    files = case.sources.matching(re.escape(prefix))
    return sum("\n".join(parsed.lines).count(prefix) for parsed in files) == 1


def effects_of(value: ast.expr) -> list[ast.expr]:
    """The outermost calls in an expression that are not known to be pure."""
    if isinstance(value, ast.Call):
        name = last_name(value.func)
        inside = value.func.value if isinstance(value.func, ast.Attribute) else None
        of_torch = isinstance(inside, ast.Name) and inside.id in ("torch", "np", "numpy")
        known = name in (_OF_TORCH if of_torch else _PURE if inside is not None else _PURE_BUILTINS)
        if not known:
            return [value]
        parts = [*value.args, *(keyword.value for keyword in value.keywords)]
        return [call for part in ([inside] if inside is not None else []) + parts for call in effects_of(part)]
    if isinstance(value, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
        return [value]
    if isinstance(value, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return [value] if any(isinstance(node, ast.Call) for node in ast.walk(value)) else []
    return [call for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr) for call in effects_of(part)]


_PURE = frozenset({
    "detach", "clone", "cpu", "item", "float", "double", "half", "bool", "long", "int", "mean", "sum", "max", "min",
    "std", "var", "norm", "square", "abs", "sqrt", "exp", "log", "view", "reshape", "flatten", "unsqueeze",
    "squeeze", "repeat", "expand", "transpose", "permute", "t", "numpy", "tolist", "to", "contiguous", "size", "dim",
    "numel", "argmax", "argmin", "softmax", "sigmoid", "tanh", "copy", "flip",
})  # fmt: skip
"""Methods of tensors and arrays that change nothing and draw no random numbers."""
_PURE_BUILTINS = frozenset({
    "float", "int", "str", "bool", "len", "list", "tuple", "dict", "set", "round", "abs", "sum", "max", "min",
    "type", "repr",
})  # fmt: skip
_OF_TORCH = frozenset({
    "cat", "concat", "stack", "hstack", "vstack", "concatenate", "mean", "sum", "abs", "square", "sqrt", "zeros",
    "ones", "empty",
})  # fmt: skip
_CALLED_BY_TORCH = ("forward", "step", "train", "eval", "zero_grad", "grad", "data", "weight", "bias")
"""Attributes that torch reads from modules, parameters and optimizers."""
_PLAIN_BASES = frozenset({
    "Module", "object", "Dataset", "IterableDataset", "ABC", "Generic", "Protocol", "Enum", "NamedTuple", "Function",
})  # fmt: skip
"""Base classes that read only their own attributes of subclasses."""


def _dropped_when_waited_for(case: StoreCase) -> Suggestion | None:
    """Empty the container after the loop that waits for everything in it."""
    loop = case.uses.waited_for()
    parsed = case.sources.file(case.store.found.scope.file)
    if loop is None or parsed is None or _reads_by_name(case.parsed):
        return None
    parsed = next((one for one in case.sources.containing("wait") if _contains(one, loop)), None)
    gone = next((node for node in ast.walk(loop) if isinstance(node, (ast.For, ast.comprehension))), None)
    if parsed is None or gone is None:
        return None
    container = gone.iter.value if isinstance(gone.iter, ast.Subscript) else gone.iter
    text = text_of(parsed, container)
    return with_lines_around(parsed, loop, loop, "", f"{text}.clear()") if text else None


def _contains(parsed: ParsedFile, node: ast.AST) -> bool:
    return next(parsed.above(node), None) is not None


def _of_the_last(case: StoreCase) -> Suggestion | None:
    """`del rows[:-1]` after the line that adds to a list of which only the last items are read."""
    store, statement = case.store, case.store.found.statement
    if store.name not in ("", "append", "extend"):
        return None  # the last item need not be the most recent one
    gains = case.trace[store.gains] if store.gains is not None else None
    adds = isinstance(statement, ast.AugAssign) or (
        isinstance(statement, ast.Expr) and statement.value is store.found.node
    )
    if gains is None or not adds or _reads_by_name(case.parsed):
        return None
    back = case.uses.items_from_end()
    if back and gains.object.startswith("deque"):
        return _with_maxlen(case, back)
    if not gains.object.startswith("list"):
        return None
    text = text_of(case.parsed, store.target)
    return with_lines_after(case.parsed, statement, "", f"del {text}[:-{back}]") if back and text else None


def _with_maxlen(case: StoreCase, back: int) -> Suggestion | None:
    """`deque(maxlen=1)` at the initial binding of a deque of which only the last items are read."""
    target = case.store.target
    if isinstance(target, ast.Name):
        owner = case.store.found.scope.owner(target.id)
        values = [bound.value for bound in owner.bound.get(target.id, ())] if owner is not None else []
    else:
        own = case.store.found.scope.outer
        name = target.attr if isinstance(target, ast.Attribute) else ""
        values = [value for _, value in case.parsed.stored_in_self.get((own, name), ())] if own is not None else []
    begun = values[0] if len(values) == 1 else None
    if not isinstance(begun, ast.Call) or last_name(begun.func) != "deque" or begun.args or begun.keywords:
        return None
    return with_text(case.parsed, begun, f"{text_of(case.parsed, begun.func)}(maxlen={back})")


def _evicting(case: StoreCase) -> Suggestion | None:
    """Remove the oldest entry of a cache before adding one, if missing entries are recomputed."""
    store, statement = case.store, case.store.found.statement
    gains = case.trace[store.gains] if store.gains is not None else None
    if (
        gains is None
        or not gains.object.startswith("dict")
        or store.key is None
        or not isinstance(statement, ast.Assign)
    ):
        return None
    text, key = text_of(case.parsed, store.target), ast.unparse(store.key)
    above = next(case.parsed.above(statement), None)
    test = above.test if isinstance(above, ast.If) and statement in above.body else None
    missing = (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.NotIn)
        and (ast.unparse(test.left), ast.unparse(test.comparators[0])) == (key, ast.unparse(store.target))
    )
    if not missing or not text or not case.uses.only_read_by_key(key) or _reads_by_name(case.parsed):
        return None
    edit = with_lines_after(case.parsed, statement, "")
    evict = f"if len({text}) >= {_ENTRIES}: {text}.pop(next(iter({text})))"
    return edit and Suggestion(edit.where, edit.before, f"{evict}\n{edit.before}")


def _reads_by_name(parsed: ParsedFile) -> bool:
    """Whether a file may read a variable or attribute without its name."""
    return not _BY_NAME.isdisjoint(parsed.reads)


def _without_graph(case: StoreCase) -> Suggestion | None:
    """`loss.item()` for a number; `out.detach()` for larger tensors, and for one that is made from
    itself at each step.
    """
    value, store = case.value, case.store
    if value is None:
        return None
    if case.finding.rule == RuleName.STEP_GROWTH and _is_piled_up(case):
        return _not_kept(case) or _of_the_last(case)
    if store.how == How.BINDS and _is_mention(value, store.target):
        return with_method(case.parsed, value, "detach") if _steps_in_loop(store) else None
    if case.uses.differentiated():
        return _of_the_last(case)
    if case.holds_others:
        return _guarded(case, value)
    scalar = case.held.object.endswith("[]")
    as_number = scalar and not case.uses.as_object()
    return with_method(case.parsed, value, "item" if as_number else "detach")


def _is_piled_up(case: StoreCase) -> bool:
    """Whether the tensors themselves accumulate, one more at each step: without their graphs they still do."""
    gains = case.store.gains
    piled = gains is not None and case.trace[gains].reference == "[i]"
    return piled and case.held.reference == "storage" and not case.held.object.endswith("[]")


def _guarded(case: StoreCase, value: ast.expr) -> Suggestion | None:
    """`x.detach() if isinstance(x, torch.Tensor) else x`, for a name, in a file that has `torch`."""
    torch = case.parsed.module.imported.get("torch") == "torch"
    if not torch or not isinstance(value, ast.Name):
        return None
    name = value.id
    above = next(case.parsed.above(value), None)
    alone = isinstance(above, (ast.Call, ast.List, ast.Assign, ast.Dict, ast.Tuple))
    text = f"{name}.detach() if isinstance({name}, torch.Tensor) else {name}"
    return with_text(case.parsed, value, text if alone else f"({text})")


def _is_mention(value: ast.expr, target: ast.expr) -> bool:
    return ast.unparse(value) == ast.unparse(target)


def _steps_in_loop(store: Store) -> bool:
    """Whether the innermost loop around a line runs backward too: one iteration is one step, not one element of a
    sequence.
    """
    return bool(store.found.loops) and any(
        isinstance(node, ast.Call) and last_name(node.func) == "backward" for node in ast.walk(store.found.loops[-1])
    )


def _copied(case: StoreCase) -> Suggestion | None:
    """A copy of only what is used: of a view with its own memory, not of one whose data was removed."""
    value = case.value
    names = {last_name(node) for node in ast.walk(value) if isinstance(node, ast.expr)} if value is not None else set()
    if value is None or not names.isdisjoint(_EXPANDING):
        return None
    if case.held.kind in TENSOR_KINDS and case.held.reference == "storage":
        return with_method(case.parsed, value, "clone")
    return with_method(case.parsed, value, "copy") if case.held.type == "numpy.ndarray" else None


def _without_traceback(case: StoreCase) -> Suggestion | None:
    """`str(error)`; if the program goes on to use it as an exception, that without its traceback."""
    name = case.value
    if not isinstance(name, ast.Name) or not _is_caught(name, case):
        return None
    if case.uses.as_text():
        return with_text(case.parsed, name, f"str({name.id})")
    same = (hop for hop in case.trace if hop is case.held or (hop.index is not None and hop.index == case.held.index))
    own = any(hop.reference == ".__traceback__" for hop in same)
    return with_text(case.parsed, name, f"{name.id}.with_traceback(None)") if own else None


def _is_caught(name: ast.Name, case: StoreCase) -> bool:
    """Whether the line is in the `except ... as name` that binds the name and raises nothing again."""
    return any(
        isinstance(node, ast.ExceptHandler)
        and node.name == name.id
        and node.lineno <= name.lineno <= (node.end_lineno or node.lineno)
        and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        for node in ast.walk(case.parsed.module.node)
    )


def _with_handle(case: StoreCase) -> Suggestion | None:
    """Keep the handle, and remove it after the statement that runs the hook; None if another line keeps it, or if no
    statement of the same block is known to run the hook or the block may be left earlier.
    """
    one, store = case.store.found, case.store
    if not isinstance(one.statement, ast.Expr) or one.statement.value is not one.node:
        return None
    rest = _behind(one.statement, one.scope.node)
    running = [at for at, statement in enumerate(rest) if runs_hook(statement, store.name, store.target)]
    if not running or "handle" in one.scope.bound:
        return None
    span = rest[: running[-1] + 1]
    if any(isinstance(node, _LEAVES) for statement in span for node in ast.walk(statement)):
        return None
    return with_lines_around(case.parsed, one.statement, span[-1], "handle = ", "handle.remove()")


def _with_handles(case: StoreCase) -> Suggestion | None:
    """Keep the handles of hooks registered in a loop in a list, and remove them after the statement that runs the
    hooks.
    """
    one, store, parsed = case.store.found, case.store, case.parsed
    is_alone = isinstance(one.statement, ast.Expr) and one.statement.value is one.node
    above = next((up for up in parsed.above(one.statement) if not isinstance(up, ast.If)), None)
    if not is_alone or not isinstance(above, ast.For) or "handles" in one.scope.bound:
        return None
    over = [node for node in ast.walk(above.iter) if isinstance(node, (ast.Name, ast.Attribute))]
    rest = _behind(above, one.scope.node)
    running = [at for at, statement in enumerate(rest) if any(runs_hook(statement, store.name, of) for of in over)]
    span = rest[: running[-1] + 1] if running else []
    if not span or any(isinstance(node, _LEAVES) for statement in (above, *span) for node in ast.walk(statement)):
        return None
    text = text_of(parsed, store.found.node) if isinstance(store.found.node, ast.expr) else ""
    kept = with_text(parsed, one.statement, f"handles.append({text})") if text else None
    removed = with_lines_behind(parsed, span[-1], "for handle in handles:", "    handle.remove()")
    begun = with_lines_before(parsed, above, "handles = []")
    if kept is None or removed is None or begun is None:
        return None
    if kept.where == begun.where:
        return replace(begun, after=f"handles = []\n{kept.after}", also=(removed,))
    return replace(begun, also=(kept, removed))


def _packed_detached(case: StoreCase) -> Suggestion | None:
    """`return t.detach()` for the single line on which a pack hook returns its argument."""
    value, scope = case.store.target, case.store.found.scope
    returned = [node for node in ast.walk(scope.node) if isinstance(node, ast.Return)]
    if len(returned) != 1 or not isinstance(value, ast.Name) or value.id not in scope.parameters:
        return None
    return None if value.id in scope.bound else with_method(case.parsed, value, "detach")


_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise, ast.Yield, ast.YieldFrom)


def _behind(statement: ast.stmt, inside: ast.AST) -> list[ast.stmt]:
    """The statements after one in its block."""
    for node in ast.walk(inside):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and statement in block:
                return block[block.index(statement) + 1 :]
    return []


def _saved_for_backward(case: StoreCase) -> Suggestion | None:
    """`ctx.save_for_backward(out)` for `ctx.out = out`, if `out` is returned by forward."""
    store, value = case.store, case.value
    forward, target = store.found.scope.node, store.target
    if not isinstance(value, ast.Name) or not isinstance(forward, ast.FunctionDef):
        return None
    if not isinstance(target, ast.Attribute) or not isinstance(store.found.node, ast.Assign):
        return None
    calls = [last_name(node.func) for node in ast.walk(forward) if isinstance(node, ast.Call)]
    returned = [node.value for node in ast.walk(forward) if isinstance(node, ast.Return) and node.value is not None]
    outputs = {one.id for out in returned for one in ast.walk(out) if isinstance(one, ast.Name)}
    if value.id not in outputs or "save_for_backward" in calls:
        return None
    reads = _reads_in_backward(case, target.attr)
    ctx = text_of(case.parsed, target.value)
    if reads is None or not ctx or with_lines_after(case.parsed, store.found.statement, "") is None:
        return None
    return with_texts(
        case.parsed,
        {store.found.node: f"{ctx}.save_for_backward({value.id})"}
        | {read: f"{text_of(case.parsed, read.value)}.saved_tensors[0]" for read in reads},
    )


def _reads_in_backward(case: StoreCase, name: str) -> list[ast.Attribute] | None:
    """Where the Function's other methods read an attribute of ctx; None if one also sets it."""
    around = case.store.found.scope.outer
    if around is None:
        return []
    named = [n for n in ast.walk(around.node) if isinstance(n, ast.Attribute) and n.attr == name]
    others = [node for node in named if node is not case.store.target]
    return others if all(isinstance(node.ctx, ast.Load) for node in others) else None


def _forgetting(case: StoreCase) -> Suggestion | None:
    """`del walk` after the last call of a function that refers to itself, which empties the cell that
    closes the cycle.
    """
    function = case.store.found
    name, around = getattr(function.node, "name", ""), function.scope.node
    if not name or not isinstance(around, ast.FunctionDef) or case.holder.reference != f"closure {name}":
        return None
    inside = {id(node) for node in ast.walk(function.node)}
    reads = [
        node for node in ast.walk(around) if isinstance(node, ast.Name) and node.id == name and id(node) not in inside
    ]
    called = {id(one.node.func) for one in case.parsed.found if isinstance(one.node, ast.Call)}
    uses = [s for s in around.body if any(id(node) in {id(r) for r in reads} for node in ast.walk(s))]
    if not uses or any(id(node) not in called for node in reads) or not isinstance(uses[-1], (ast.Expr, ast.Assign)):
        return None
    return with_lines_after(case.parsed, uses[-1], "", f"del {name}")
