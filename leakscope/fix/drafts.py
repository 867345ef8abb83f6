"""Drafts of edits, and what they need to know of the source: names of objects, loops, functions and reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from leakscope.findings.facts import FreedBy
from leakscope.findings.model import CutReference, Finding, Hop
from leakscope.findings.source.bounds import CallGraph, loops_of
from leakscope.findings.source.edits import StoreCase
from leakscope.findings.source.index import (
    FoundNode,
    ParsedFile,
    Scope,
    Sources,
    class_of,
    is_file,
    is_item,
    is_module,
    is_static,
    last_name,
    pairs,
    related,
)
from leakscope.findings.source.scopes import Meaning
from leakscope.findings.source.stores import How, Store, files_naming, on_trace, stores_for
from leakscope.fix.editor import CannotEdit, SourceEditor
from leakscope.fix.model import Candidate
from leakscope.fix.plan import Plan
from leakscope.graph.model import ObjectKind

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise)
_RUNS = (ObjectKind.FRAME, ObjectKind.GENERATOR)
_PUTS = ("append", "extend", "appendleft", "extendleft", "add", "put", "put_nowait", "insert", "update", "setdefault")
"""Methods that add to a container and read nothing of it."""
_EMPTIES = ("clear", "reset")


# ------------------------------------------------------------------------------------------------------------- drafts

_Edit = Callable[[SourceEditor], None]


@dataclass(frozen=True)
class Draft:
    """A candidate that is not written yet."""

    family: str
    """The kind of edit and its place: drafts of one family for several references of a cut are combined."""
    title: str
    edits: tuple[tuple[ParsedFile, _Edit], ...] = ()

    def _and(self, parsed: ParsedFile, edit: _Edit) -> Draft:
        return replace(self, edits=(*self.edits, (parsed, edit)))

    def before(self, parsed: ParsedFile, statement: ast.stmt, *code: str) -> Draft:
        """Insert statements before another one."""
        return self._and(parsed, lambda editor: editor.insert_before(statement, *code))

    def after(self, parsed: ParsedFile, statement: ast.stmt, *code: str) -> Draft:
        """Insert statements after another one."""
        return self._and(parsed, lambda editor: editor.insert_after(statement, *code))

    def append(self, parsed: ParsedFile, compound: ast.stmt, *code: str) -> Draft:
        """Insert statements at the end of the body of another one."""
        return self._and(parsed, lambda editor: editor.append_to_body(compound, *code))

    def replace(self, parsed: ParsedFile, expr: ast.expr, code: str) -> Draft:
        """Replace an expression."""
        return self._and(parsed, lambda editor: editor.replace(expr, code))

    def instead(self, parsed: ParsedFile, statement: ast.stmt, *code: str) -> Draft:
        """Replace a statement."""
        return self._and(parsed, lambda editor: editor.replace_statement(statement, *code))

    def remove(self, parsed: ParsedFile, statement: ast.stmt) -> Draft:
        """Remove a statement."""
        return self._and(parsed, lambda editor: editor.remove(statement))

    def wrap(self, parsed: ParsedFile, first: ast.stmt, last: ast.stmt, head: str) -> Draft:
        """Put statements into a block."""
        return self._and(parsed, lambda editor: editor.wrap(first, last, head))

    def imports(self, parsed: ParsedFile, code: str) -> Draft:
        """Add an import, if `code` is not empty."""
        return self._and(parsed, lambda editor: editor.add_import(code)) if code else self

    def together(self, other: Draft) -> Draft:
        """Both in one."""
        title = self.title if self.title == other.title else f"{self.title}, {other.title}"
        return Draft(self.family, title, (*self.edits, *other.edits))

    def written(self) -> Candidate | None:
        """The candidate; None if it cannot be written, or changes nothing."""
        plan = Plan()
        try:
            for parsed, edit in self.edits:
                edit(plan.of(parsed))
            return plan.candidate(self.title)
        except CannotEdit:
            return None


def combined(drafts: Sequence[Sequence[Draft]]) -> Iterator[Draft]:
    """One draft for all references of a cut: those of one family together, otherwise with the first of the others."""
    if not drafts or not all(drafts):
        return
    first, *others = drafts
    for draft in first:
        whole = draft
        for of_other in others:
            same = next((one for one in of_other if one.family == draft.family), of_other[0])
            if same.edits and same.title != whole.title:
                whole = whole.together(same)
        yield whole


# -------------------------------------------------------------------------------------------------------- the source


def code_of(parsed: ParsedFile, node: ast.AST) -> str:
    """The code of a node as written, with its lines dedented to the first; unparsed if that is not known."""
    text = ast.get_source_segment("\n".join(parsed.lines), node)
    if text is None:
        return ast.unparse(node)
    indent = " " * int(getattr(node, "col_offset", 0))
    return "\n".join(line.removeprefix(indent) for line in text.split("\n"))


def block_of(parsed: ParsedFile, statement: ast.stmt) -> list[ast.stmt]:
    """The statements of a block, with the given one among them; () if it is not found."""
    above = next(parsed.above(statement), parsed.module.node)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(above, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return []


def rest_of_block(parsed: ParsedFile, statement: ast.stmt) -> list[ast.stmt]:
    """The statements after one in its block."""
    block = block_of(parsed, statement)
    return block[block.index(statement) + 1 :] if block else []


def located(parsed: ParsedFile, node: ast.AST, scope: Scope) -> FoundNode | None:
    """A node with its statement and the loops around it; None outside of statements."""
    statement, loops = node if isinstance(node, ast.stmt) else None, []
    for below, above in pairwise([node, *parsed.above(node)]):
        if statement is None and isinstance(above, ast.stmt):
            statement = above
        if (isinstance(above, (ast.For, ast.AsyncFor)) and below is not above.iter) or isinstance(above, ast.While):
            loops.append(above)
    return FoundNode(node, scope, statement, tuple(reversed(loops))) if statement is not None else None


def names_in(node: ast.AST) -> set[str]:
    """All names that a piece of code reads or binds."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def bound_in(node: ast.AST) -> set[str]:
    """The names that a piece of code binds, outside of its functions' own variables."""
    bound = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return bound | {one.name for one in ast.walk(node) if isinstance(one, (*FUNCTIONS, ast.ClassDef))}


def new_name(scope: Scope, *names: str) -> str:
    """The first of some names that a function does not use."""
    used = names_in(scope.node)
    return next((name for name in names if name not in used), f"{names[0]}_")


def imported(parsed: ParsedFile, module: str, name: str) -> tuple[str, str]:
    """How a file names something of a module, and the import that this needs; "" if it has it."""
    for own, dotted in parsed.module.imported.items():
        if dotted == f"{module}.{name}":
            return own, ""
    for own, dotted in parsed.module.imported.items():
        if dotted == module:
            return f"{own}.{name}", ""
    others = any(dotted.startswith(f"{module}.") for dotted in parsed.module.imported.values())
    if others or name in ("deque", "WeakSet", "WeakKeyDictionary", "WeakValueDictionary"):
        return name, f"from {module} import {name}"
    return f"{module}.{name}", f"import {module}"


def at_end_of(draft: Draft, parsed: ParsedFile, scope: Scope, *code: str, reads: str = "") -> Draft | None:
    """A draft with statements at the end of a function, before its `return`.

    `reads`: the name that the code takes away, so that what the `return` reads of it is evaluated first.
    """
    function = scope.node
    if not isinstance(function, FUNCTIONS):
        return None
    last = function.body[-1]
    if isinstance(last, ast.Raise):
        return None
    if not isinstance(last, ast.Return):
        return draft.append(parsed, function, *code)
    if last.value is None or not reads or reads not in ast.unparse(last.value):
        return draft.before(parsed, last, *code)
    if isinstance(last.value, ast.Name):
        return None
    name = new_name(scope, "result", "value", "returned")
    return draft.instead(parsed, last, f"{name} = {code_of(parsed, last.value)}", *code, f"return {name}")


# -------------------------------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Spot:
    """A place where something can be emptied: the body of a loop or function that runs once per step or more seldom."""

    parsed: ParsedFile
    scope: Scope
    loop: ast.stmt | None
    """The loop; None for the function."""

    @property
    def where(self) -> str:
        """`the loop at train.py:31`, `forward()`."""
        if self.loop is not None:
            return f"the loop at {self.parsed.name}:{self.loop.lineno}"
        return f"{self.scope.name.rpartition('.')[2]}()"


@dataclass(frozen=True)
class Case:
    """One reference of a leak's cut, with the lines that store there."""

    finding: Finding
    trace: tuple[Hop, ...]
    place: int
    """Position of the hop with the reference."""
    stores: tuple[Store, ...]
    sources: Sources
    calls: CallGraph = field(repr=False)

    @property
    def holder(self) -> Hop:
        """The referrer of the reference."""
        return self.trace[self.place]

    @property
    def held(self) -> Hop:
        """The referent."""
        return self.trace[self.place + 1]

    @property
    def is_dict(self) -> bool:
        """Whether the referent is a dict."""
        return self.held.object.startswith(("dict", "OrderedDict", "defaultdict"))

    @cached_property
    def meaning(self) -> Meaning:
        """What expressions of the source mean on the trace: strictly, if that shows what the stores add to."""
        strict = Meaning(self.trace, self.sources, self.finding.freed_by != FreedBy.PROGRAM)
        strict.follow([parsed for store in self.stores if (parsed := self.parsed(store)) is not None])
        wanted = {self.place, self.place + 1}
        known = [
            strict.of(s.target, s.found.scope) if s.how == How.ADDS else strict.bound_by(s.target, s.found.scope)
            for s in self.stores
        ]
        return strict if all(wanted & places for places in known) else self._loose

    @cached_property
    def _loose(self) -> Meaning:
        return Meaning(self.trace, self.sources, self.finding.freed_by != FreedBy.PROGRAM, loosely=True)

    @cached_property
    def files(self) -> list[ParsedFile]:
        """The files that may name the referent."""
        stored = [parsed for store in self.stores if (parsed := self.parsed(store)) is not None]
        return list(dict.fromkeys([*stored, *files_naming(self.meaning, self.place, self.sources)]))

    def parsed(self, store: Store) -> ParsedFile | None:
        """The file of a store."""
        return self.sources.file(store.found.scope.file)

    # names

    def name_in(self, scope: Scope, at: int | None = None) -> str | None:
        """The code by which a scope can refer to an object of the trace, by default to the referent."""
        at = self.place + 1 if at is None else at
        _ = self.files  # follows what calls pass on
        for place in range(at, -1, -1):
            for start, begins in self._names_at(place, scope):
                rest = [_as_code(hop.reference) for hop in self.trace[begins:at]]
                if begins <= at and all(rest):
                    return start + "".join(part for part in rest if part)
        return None

    def _names_at(self, place: int, scope: Scope) -> Iterator[tuple[str, int]]:
        """(name, position of its object) for the names of a scope that start at one hop."""
        hop, around = self.trace[place], scope.outer
        method = scope
        while around is not None and not around.is_class and around.outer is not None:  # a function in a method
            method, around = around, around.outer
        in_class = around is not None and around.is_class and bool(method.parameters) and not is_static(method)
        of_object = bool(class_of(hop)) and hop.kind not in (ObjectKind.CLASS, ObjectKind.GRAD_NODE)
        if in_class and of_object and around is not None and related(hop, around, self.sources):
            yield method.parameters[0], place
        for parameter in scope.parameters[1:] if in_class else scope.parameters:
            if place in self.meaning.of(self._parameter(parameter, scope), scope):
                yield parameter, place
        yield from self._variables_at(place, scope)

    def _variables_at(self, place: int, scope: Scope) -> Iterator[tuple[str, int]]:
        """(name, position of its object) for the variables of a scope that start at one hop."""
        hop = self.trace[place]
        kind, _, name = hop.reference.rpartition(" ")
        if hop.kind in _RUNS and kind == "local" and scope.name == hop.name and is_file(hop, scope.file):
            yield name, place + 1
        elif kind == "closure" and (owner := scope.owner(name)) is not None and owner.outer is not None:
            if is_file(hop, scope.file) and (owner.name == hop.name or hop.name.startswith(f"{owner.name}.<locals>.")):
                yield name, place + 1
        elif hop.kind == ObjectKind.NAMESPACE and hop.reference.startswith("."):
            name = hop.reference[1:]
            owner = scope.owner(name)
            of_module = owner is not None and owner.outer is None
            if of_module and owner is not None:
                of_module = is_module(hop, scope.file) or owner.imported.get(name, "").endswith(f"{hop.name}.{name}")
            if of_module:
                yield name, place + 1
            for own, dotted in scope.module.imported.items():
                if dotted == hop.name:
                    yield f"{own}.{name}", place + 1
        elif hop.kind == ObjectKind.CLASS and scope.owner(class_of(hop)) is not None:
            yield class_of(hop), place

    @cached_property
    def _parameters(self) -> dict[tuple[int, str], ast.Name]:
        return {}

    def _parameter(self, name: str, scope: Scope) -> ast.Name:
        """A read of a parameter; always the same node, because meanings are known by node."""
        return self._parameters.setdefault((id(scope), name), ast.Name(name, ast.Load()))

    # loops and functions

    @cached_property
    def chains(self) -> list[tuple[FoundNode, ...]]:
        """The calls that lead to the lines that store, for each caller."""
        return [chain for store in self.stores for chain in self.calls.call_chains(store.found)]

    @cached_property
    def reads(self) -> list[FoundNode]:
        """The places that read the referent, in the order of the source, other than to add to it or to empty it.

        Their nodes are the expressions that give the referent, or else a container of it.
        """
        return list(self._reads(self.meaning))

    @cached_property
    def is_read(self) -> bool:
        """Whether anything may read the referent."""
        return any(True for _ in self._reads(self.meaning)) or any(True for _ in self._reads(self._loose))

    def _reads(self, meaning: Meaning) -> Iterator[FoundNode]:
        statements = [store.found.statement for store in self.stores]
        for parsed, node, scope in self._mentions(meaning):
            place = located(parsed, node, scope)
            if place is None or place.statement in statements:
                continue
            if not _is_only_written(parsed, node) and not _is_in_test_of_key(parsed, node):
                yield place

    def _mentions(self, meaning: Meaning) -> Iterator[tuple[ParsedFile, ast.expr, Scope]]:
        wanted = {self.place + 1}
        above = self.place
        while above and is_item(self.trace[above].reference):
            wanted.add(above)
            above -= 1
        word = re.findall(r"\w+", self.trace[above].reference.rpartition(" ")[2])
        names = {word[-1]} if word else set()
        names |= {store.target.id for store in self.stores if isinstance(store.target, ast.Name)}
        for parsed in self.files:
            own = set(names)
            for scope in parsed.scopes:  # `rows = self.rows`
                for other, bindings in scope.bound.items():
                    if any(not b.of_item and last_name(b.value) in names for b in bindings):
                        own.add(other)
            found = [(node, scope) for name in sorted(own) for node, scope in parsed.reads.get(name, ())]
            for first, scope in sorted(found, key=lambda pair: (pair[0].lineno, pair[0].col_offset)):
                if not wanted & meaning.of(first, scope):
                    continue
                node = first
                for above_node in parsed.above(first):  # the list of `history["loss"]`
                    if self.place + 1 in meaning.of(node, scope) or not isinstance(above_node, ast.Subscript):
                        break
                    if self.place + 1 not in meaning.of(above_node, scope):
                        break
                    node = above_node
                yield parsed, node, scope

    def is_referent(self, node: ast.AST, scope: Scope) -> bool:
        """Whether an expression gives the referent itself."""
        return isinstance(node, ast.expr) and self.place + 1 in self.meaning.of(node, scope)

    def reads_in_loops(self) -> list[FoundNode]:
        """The reads that run in a loop in which something is stored, too."""
        stored = {loop for chain in self.chains for loop, _ in loops_of(chain)}
        return [
            read
            for read in self.reads
            if any(loop in stored for chain in self.calls.call_chains(read) for loop, _ in loops_of(chain))
        ]

    def spots(self) -> list[Spot]:
        """Where it can be emptied, the likeliest first.

        First the innermost loop around the stores that contains all reads which are in a loop with them, then the loops
        around it; then the functions on the way that a loop, or a library, calls.
        """
        loops = list(dict.fromkeys(pair for chain in self.chains for pair in loops_of(chain)))
        read = [
            {loop for chain in self.calls.call_chains(one) for loop, _ in loops_of(chain)}
            for one in self.reads_in_loops()
        ]
        complete = [all(loop in around for around in read) for loop, _ in loops]
        first = complete.index(True) if True in complete else 0
        found = [Spot(file, scope, loop) for loop, scope in loops[first:] if (file := self.sources.file(scope.file))]
        for chain in self.chains:
            for number, one in enumerate(chain):
                parsed = self.sources.file(one.scope.file)
                is_repeated = any(other.loops for other in chain[number + 1 :]) or not self.calls.is_followed(chain)
                if parsed is not None and isinstance(one.scope.node, FUNCTIONS) and is_repeated:
                    found.append(Spot(parsed, one.scope, None))
        return list(dict.fromkeys(found))

    def initial(self) -> list[tuple[ParsedFile, FoundNode, ast.expr, ast.expr]]:
        """(file, place, target, value) of the assignments of an empty container to the referent's name."""
        return [
            (parsed, one, target, value)
            for parsed in self.files
            for one in parsed.found
            for target, value in pairs(one.node)
            if is_empty(value) and self.place + 1 in self.meaning.bound_by(target, one.scope)
        ]


def cases_of(finding: Finding, stores: Sequence[StoreCase], sources: Sources) -> list[Case]:
    """The references to cut of a leak with their stores; without a cut, the first container on its trace."""
    calls = CallGraph(sources)
    references = finding.cut.references if finding.cut is not None else _containers(finding)
    found = []
    for reference in references:
        place, trace = on_trace(finding, reference)
        own = tuple(case.store for case in stores if case.place == place and case.trace == trace)
        own = own or stores_for(finding, reference, sources)
        if trace and (place is not None or own):
            found.append(Case(finding, trace, place or 0, own, sources, calls))
    return found


def _containers(finding: Finding) -> list[CutReference]:
    trace = finding.trace
    return [
        CutReference(trace[place - 1].reference, trace[place - 1].where, trace=place - 1)
        for place in range(1, len(trace) - 1)
        if trace[place].kind == ObjectKind.CONTAINER and is_item(trace[place].reference)
    ][:1]


def _as_code(reference: str) -> str:
    """A reference of a trace as code behind its referrer; "" if its name is not known."""
    if re.fullmatch(r"\.[^\W\d]\w*", reference) or re.fullmatch(r"\[(\d+|'[^'\\]*')\]", reference):
        return reference.replace("'", '"')
    return ""


_EMPTY_CALLS = ("list", "dict", "set", "deque", "OrderedDict", "defaultdict", "Counter", "tuple")


def is_empty(value: ast.expr) -> bool:
    """Whether a value is a new container with nothing in it."""
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.Call) and last_name(value.func) in _EMPTY_CALLS:
        return not value.args or last_name(value.func) == "defaultdict"
    return False


def _is_only_written(parsed: ParsedFile, node: ast.expr) -> bool:
    """Whether an expression is only used to add something, to empty it, or to count it in a test."""
    above = list(parsed.above(node))
    top = node
    while above and isinstance(above[0], ast.Subscript) and above[0].value is top:
        top = above.pop(0)  # type: ignore[assignment]
    if isinstance(getattr(top, "ctx", None), (ast.Store, ast.Del)):
        return True
    method, call, *rest = [*above, None, None]
    if isinstance(method, ast.Attribute) and isinstance(call, ast.Call) and isinstance(rest[0], ast.Expr):
        return method.attr in (*_PUTS, *_EMPTIES)
    return False


def _is_in_test_of_key(parsed: ParsedFile, node: ast.expr) -> bool:
    """Whether an expression is the container of `key in container`."""
    above = next(parsed.above(node), None)
    return isinstance(above, ast.Compare) and isinstance(above.ops[-1], (ast.In, ast.NotIn)) and node is not above.left
