"""How is a heap graph written to a file, and read again?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import numpy as np

from leakscope.graph.model import KINDS, OBJECT_COLUMNS, REFERENCE_COLUMNS, REFERENCE_KINDS, ROOTS, CommUse, HeapGraph

_WORDS = {"kind": KINDS, "root": ROOTS, "reference_kind": REFERENCE_KINDS}


def to_json(graph: HeapGraph) -> dict[str, Any]:
    """The graph as plain lists, ready for `json.dump`."""
    data: dict[str, Any] = {
        "strings": list(graph.strings),
        "words": {name: list(words) for name, words in _WORDS.items()},
    }
    for column in OBJECT_COLUMNS + REFERENCE_COLUMNS:
        data[column] = getattr(graph, column).tolist()
    data["made_at"] = {str(index): text for index, text in graph.made_at.items()}
    data["device"] = {str(index): text for index, text in graph.device.items()}
    data["crossed"] = {str(index): list(astuple(use)) for index, use in graph.comm_uses.items()}
    return data


def from_json(data: Mapping[str, Any]) -> HeapGraph:
    """Inverse of `to_json`; raises KeyError, TypeError or ValueError on anything else."""
    columns = {name: np.asarray(data[name], dtype=np.int64) for name in OBJECT_COLUMNS + REFERENCE_COLUMNS}
    for name, words in _WORDS.items():  # a file says its own words, so that new ones may come in between
        columns[name] = np.asarray([words.index(word) for word in data["words"][name]], dtype=np.int64)[columns[name]]
    made_at = {int(index): str(text) for index, text in data["made_at"].items()}
    comm_uses = {int(index): CommUse(*fields) for index, fields in data.get("crossed", {}).items()}
    device = {int(index): str(text) for index, text in data.get("device", {}).items()}
    return HeapGraph(strings=tuple(data["strings"]), made_at=made_at, comm_uses=comm_uses, device=device, **columns)
