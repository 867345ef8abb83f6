"""Objects on a reference path carry their own source line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.heap_text import heap_from

from leakscope.findings.naming import hops
from leakscope.graph.model import build


@pytest.mark.parametrize(("kind", "where"), [("function", "train.py:9"), ("frame", "train.py:4")])
def test_a_function_has_its_own_line_and_a_call_that_of_its_variable(kind: str, where: str) -> None:
    graph = heap_from(f"{kind} watch where=train.py:9 -> closure model -> network Net")
    objects = [graph.object(index) for index in (0, 1)]
    graph = build(objects, [replace(graph.reference(0), where="train.py:4")])
    assert [hop.where for hop in hops(graph, 0, (0,), 0, {}, (None, None))] == [where, ""]
