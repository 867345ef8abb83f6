"""How does the user's own source write what the heap only knows as an item of some container, or of some tensor?"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.model import CutReference, Finding, Hop
from leakscope.findings.source.lines import on_trace
from leakscope.findings.source.names import is_item
from leakscope.findings.source.stores import How, Store
from leakscope.graph.model import ObjectKind

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
