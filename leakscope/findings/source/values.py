"""Which expression of a line is what it stores?"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from leakscope.findings.model import Hop
from leakscope.findings.source.names import key_of, last_name
from leakscope.findings.source.parsed import Found
from leakscope.findings.source.stores import How, Store, may_hold, mentions, mentions_of

_DISPLAYS = (ast.List, ast.Tuple, ast.Set)
_OF_MANY = ("extend", "extendleft", "update")
_SUMS = (ast.Add, ast.Sub)
_PRODUCTS = (ast.Mult, ast.Div)
_JOINS = ("cat", "concat", "concatenate", "hstack", "vstack", "dstack")
_CUTS_OFF = ("with_traceback", "detach", "clone", "copy")


def stored_value(store: Store, between: Sequence[Hop]) -> ast.expr | None:
    """The expression in a line that gives what the trace shows to hang there; None where it could be one of several.

    `between` are the containers of the trace inside of the one that gains: where the line writes one out, it puts the
    last of them there with the value in it. Of a sum it is what is
    added, of a line that carries a value on (`h = cell(x, h)`) the value as it was.
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
    """What an assignment adds to its own target, or the target where it is handed on; the value of one that does
    neither.
    """
    if isinstance(store.found.node, ast.AugAssign):
        adds = isinstance(store.found.node.op, _SUMS)
        return _factor(_branch(value, store.found)) if adds else None
    node = store.found.node
    if isinstance(node, ast.Assign) and value is node.value and not any(store.target is one for one in node.targets):
        return None  # `out, state = net(x)`: what is unpacked has no method of a tensor's
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
    """What a number multiplies: `loss` of `0.1 * loss`."""
    while isinstance(value, ast.BinOp) and isinstance(value.op, _PRODUCTS):
        if isinstance(value.left, ast.Constant):
            value = value.right
        elif isinstance(value.right, ast.Constant):
            value = value.left
        else:
            break
    return value


def _part(value: ast.expr, reference: str, found: Found) -> ast.expr | None:
    """The part of a tuple or a dict that a reference of the trace leads to; where it tells no place, the only part
    that may hold memory.
    """
    if isinstance(value, ast.Dict):
        return next((v for k, v in zip(value.keys, value.values, strict=True) if k and key_of(k) == reference), None)
    if not isinstance(value, _DISPLAYS):
        return None
    numbered = [e for k, e in enumerate(value.elts) if reference == f"[{k}]"]
    parts = numbered or [e for e in value.elts if may_hold(e, found) and not _is_count(e, found)]
    return parts[0] if len(parts) == 1 and not isinstance(parts[0], ast.Starred) else None


def _is_count(value: ast.expr, found: Found) -> bool:
    """Whether a name is that of a loop over `range`."""
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


def _branch(value: ast.expr, found: Found) -> ast.expr | None:
    """Of `a if test else b` the branch that may hold memory."""
    while isinstance(value, ast.IfExp):
        parts = [part for part in (value.body, value.orelse) if may_hold(part, found) and not _is_cut_off(part)]
        if len(parts) != 1:
            return None
        value = parts[0]
    return value
