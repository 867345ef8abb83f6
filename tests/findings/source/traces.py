"""Traces from text, one object a line: its kind, its name, its line if it has one, and the reference by which it holds.

frame main train.py:3 -> local history
list -> [i]
tensor float32[] -> .grad_fn
"""

from __future__ import annotations

import textwrap
from typing import Any

from support.heap_text import _KINDS

from leakscope.findings.facts import FreedBy, HopStatus, Severity, StaticText
from leakscope.findings.model import Cut, CutReference, Finding, Hop, Suggestion
from leakscope.findings.source.index import Sources
from leakscope.findings.source.lines import with_lines
from leakscope.findings.source.stores import stores_for
from leakscope.graph.model import ObjectKind

_MORE = {
    "tuple": "container", "deque": "container", "set": "container", "parameter": "parameter", "cache": "container",
    "nn": "nn.Module", "optimizer": "optimizer", "generator": "generator", "class": "class", "work": "work",
    "traceback": "traceback", "thread": "thread", "text": "instance", "array": "native",
}  # fmt: skip
_TYPES = {"cache": "functools._lru_cache_wrapper", "class": "type", "function": "function", "text": "str"}


def hops(text: str) -> tuple[Hop, ...]:
    """The trace that the text tells; `*` behind a kind says that it is the object of the line with that same mark."""
    return tuple(_hop(*line.partition(" -> ")[::2]) for line in map(str.strip, text.strip().splitlines()))


def _hop(words_of_hop: str, reference: str) -> Hop:
    kind, *words = words_of_hop.split()
    mark = int(kind.partition("*")[2]) if "*" in kind else None
    kind = kind.partition("*")[0]
    where = next((word for word in words if ".py:" in word), "")
    name = next((word for word in words if word != where), kind)
    label = f"Tensor {name}" if kind in ("tensor", "parameter") else words_of_hop
    word = ObjectKind({**_KINDS, **_MORE}[kind])
    return Hop(label, _TYPES.get(kind, name), word, where, HopStatus.LEAKED, reference, index=mark, name=name)


def finding(text: str, *places: int, freed_by: FreedBy = FreedBy.PROGRAM, **fields: Any) -> Finding:
    """A finding with this trace, whose cut is the references at these places of it."""
    trace = hops(text)
    cut = Cut(tuple(CutReference(trace[k].reference, "", f"{trace[k].reference}", trace=k) for k in places), 1 << 20)
    reported = {
        "rule": "step-growth", "facts": StaticText("it grows"), "fingerprint": "00000000", "severity": Severity.LEAK,
        "freed_by": freed_by, "retained_bytes": 1 << 20, "bytes_per_step": 1e5, "trace": trace, "cut": cut,
    } | fields  # fmt: skip
    return Finding(**reported)


def kept(**files: str) -> dict[str, tuple[str, ...]]:
    return {f"{name}.py": tuple(textwrap.dedent(text).strip("\n").splitlines()) for name, text in files.items()}


def reported(found: Finding, **files: str) -> list[str]:
    """The source lines that are told for the first reference of the cut."""
    sources = kept(**files)
    assert found.cut is not None
    places = [store.where for store in stores_for(found, found.cut.references[0], Sources(sources))]
    return [sources[name][int(line) - 1].strip() for name, _, line in (place.partition(":") for place in places)]


def edit(found: Finding, **files: str) -> Suggestion | None:
    """The edit that is suggested."""
    return with_lines(found, Sources(kept(**files))).suggestion
