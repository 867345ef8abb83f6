"""Who sets which attribute is written with a heap graph and read again; what names no reference is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.heap_text import heap_from

from leakscope.graph.serialize import from_json, is_same, to_json

GRAPH = replace(
    heap_from("object net freed=1 -> .strategy -> object other freed=1\nobject other -> .model -> object net"),
    set_by={1: "gpytorch"},
)


def test_who_sets_an_attribute_is_read_again() -> None:
    read = from_json(json.loads(json.dumps(to_json(GRAPH))))
    assert is_same(read, GRAPH) and read.set_by == {1: "gpytorch"}
    assert "set_by" not in to_json(replace(GRAPH, set_by={}))


@pytest.mark.parametrize("wrong", [{"2": "gpytorch"}, {"-1": "gpytorch"}, {"1": 3}, ["gpytorch"]])
def test_what_sets_no_reference_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"set_by|no text"):
        from_json(to_json(GRAPH) | {"set_by": wrong})
