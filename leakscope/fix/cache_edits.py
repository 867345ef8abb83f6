"""Candidate edits for caches that have no bound."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from leakscope.findings.source.edits import is_a_store
from leakscope.findings.source.index import ParsedFile, Sources, last_name
from leakscope.findings.source.stores import CACHE, Store
from leakscope.fix.drafts import FUNCTIONS, Case, Draft, code_of, imported


def _size(case: Case) -> int:
    """A bound for a cache: at most half of its items, so that a run as long as the recorded one shows that it holds."""
    match = re.search(r", ([\d,]+) items?\b", " ".join(hop.object for hop in case.trace[case.place + 1 :]))
    items = int(match[1].replace(",", "")) if match else 0
    size = 1
    while 2 * size <= min(items // 2, 32):
        size *= 2
    return size


def evicting_drafts(case: Case) -> Iterator[Draft]:
    """The oldest entry of a cache removed before one is added, or all of them."""
    store = next((s for s in case.stores if s.key is not None and s.gains == case.place + 1), None)
    parsed = case.parsed(store) if store is not None else None
    if store is None or store.key is None or parsed is None or not case.is_dict or not is_a_store(store):
        return
    if not _is_computed_when_missing(store, parsed):
        return
    name, size = code_of(parsed, store.target), _size(case)
    if size > 1:
        draft = Draft("evict", f"at most {size} entries in `{name}` at {store.where}")
        evict = (f"if len({name}) >= {size}:", f"    {name}.pop(next(iter({name})))")
        yield draft.before(parsed, store.found.statement, "\n".join(evict))
    draft = Draft("newest", f"`{name}.clear()` before the next entry at {store.where}")
    yield draft.before(parsed, store.found.statement, f"{name}.clear()")


def _is_computed_when_missing(store: Store, parsed: ParsedFile) -> bool:
    """Whether entries are made where they are missing: `if key not in cache`, `cache.get(key)`, `except KeyError`."""
    key, name = ast.unparse(store.key), ast.unparse(store.target)  # type: ignore[arg-type]
    for node in ast.walk(store.found.scope.node):
        tested: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            tested = [node.left, node.comparators[0]]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            tested = [*node.args[:1], node.func.value]
        if [ast.unparse(part) for part in tested] == [key, name]:
            return True
    return any(
        isinstance(up, ast.ExceptHandler) and up.type is not None and "KeyError" in ast.unparse(up.type)
        for up in parsed.above(store.found.node)
    )


def function_cache_drafts(case: Case) -> Iterator[Draft]:
    """A bound for the cache of a function; without the cache if it is that of a method."""
    hop = next(hop for hop in case.trace[case.place : case.place + 2] if hop.type == CACHE)
    own, size = hop.name.rpartition(".")[2], _size(case)
    for parsed in case.sources.containing(own):
        for scope in parsed.scopes:
            if not isinstance(scope.node, FUNCTIONS) or scope.name != hop.name:
                continue
            is_method = scope.outer is not None and scope.outer.is_class
            for decorator in scope.node.decorator_list:
                for file, call in _cache_calls(decorator, parsed, case.sources):
                    drafts = [*_without_cache(parsed, decorator, own)] if call is decorator else []
                    drafts += _with_size(file, call, 1 if is_method else size, hop.name)
                    yield from drafts if is_method else reversed(drafts)


_CACHES = ("cache", "lru_cache")


def _cache_calls(decorator: ast.expr, parsed: ParsedFile, sources: Sources) -> Iterator[tuple[ParsedFile, ast.expr]]:
    """Where the cache is made: the decorator, or a call in a decorator of the kept files."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if last_name(called) in _CACHES:
        yield parsed, decorator
        return
    for file in sources.matching(rf"def\s+{re.escape(last_name(called))}\s*\("):
        for one in file.found:
            inside = one.scope.name.rpartition(".")[2] == last_name(called)
            if inside and isinstance(one.node, ast.Call) and last_name(one.node.func) in _CACHES:
                yield file, one.node


def _with_size(parsed: ParsedFile, call: ast.expr, size: int, name: str) -> list[Draft]:
    maker = call.func if isinstance(call, ast.Call) else call
    draft = Draft("lru", f"`lru_cache(maxsize={size})` of {name.rpartition('.')[2]}()")
    if last_name(maker) == "cache":
        lru, needs = imported(parsed, "functools", "lru_cache")
        return [draft.replace(parsed, maker, f"{lru}(maxsize={size})").imports(parsed, needs)]
    if not isinstance(call, ast.Call):
        return [draft.replace(parsed, call, f"{code_of(parsed, call)}(maxsize={size})")]
    given = [keyword.value for keyword in call.keywords if keyword.arg == "maxsize"] + call.args[:1]
    return [draft.replace(parsed, given[0], str(size))] if given else []


def _without_cache(parsed: ParsedFile, decorator: ast.expr, own: str) -> Iterator[Draft]:
    function = next(parsed.above(decorator), None)
    if not isinstance(function, FUNCTIONS) or len(function.decorator_list) != 1:
        return
    yield Draft("no cache", f"{own}() without its cache").instead(parsed, function, code_of(parsed, function))
