"""Whose code closes a cycle, whoever's class the objects on it are of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.heap_text import heap_from

from leakscope.findings.candidates import Candidate
from leakscope.findings.grouping import group_storages
from leakscope.findings.growth import series
from leakscope.findings.library import origin_of

HOOK = """
network test.Net where=test.py:3 freed=1 -> ._hooks -> dict d freed=1
dict d -> [0] -> object torch.Hook freed=1
object torch.Hook -> .__wrapped__ -> method Base.clear where=<lib/base.py>:7 freed=1
method Base.clear -> .__self__ -> network test.Net
network test.Net -> .weight -> tensor t freed=1
tensor t -> storage -> storage s 400 freed=1
"""
STRATEGY = """
network test.Net where=test.py:3 freed=1 -> .strategy -> object lib.Strategy freed=1
object lib.Strategy -> .model -> network test.Net
network test.Net -> .weight -> tensor t freed=1
tensor t -> storage -> storage s 400 freed=1
"""
CLASS = """
class {} freed=1 -> .__mro__ -> class {}
class {} -> .called_with -> tensor t freed=1
tensor t -> storage -> storage s 400 freed=1
"""


def candidate(text: str, set_by: dict[str, str]) -> Candidate:
    """The garbage of a heap; `set_by` by the name of an attribute."""
    graph = heap_from(text)
    names = [graph.reference(index).name for index in range(len(graph.holder))]
    graph = replace(graph, type=graph.name, set_by={k: set_by[name] for k, name in enumerate(names) if name in set_by})
    (group,) = group_storages(graph)
    return Candidate(0, 1, graph, group, series([1], {1: group.bytes}), 0.0, False)


@pytest.mark.parametrize(
    ("text", "set_by", "whose_it_is"),
    [
        (HOOK, {"._hooks": "torch"}, ("library", "lib")),
        (HOOK, {}, ("application", "")),
        (HOOK.replace("<lib/base.py>:7", "test.py:9"), {"._hooks": "torch"}, ("application", "")),
        (HOOK.replace("<lib/base.py>:7", "<torch/nn.py>:7"), {"._hooks": "torch"}, ("application", "")),
        (STRATEGY, {".strategy": "lib", ".model": "lib"}, ("library", "lib")),
        (STRATEGY, {".strategy": "lib"}, ("application", "")),
        (STRATEGY, {".model": "lib"}, ("application", "")),
        (STRATEGY.replace(".model", "._model"), {".strategy": "lib"}, ("library", "lib")),
        (STRATEGY, {".strategy": "torch", ".model": "torch"}, ("application", "")),
        (CLASS.replace("{}", "unittest.mock.MagicMock"), {}, ("library", "unittest")),
        (CLASS.replace("{}", "test.Made"), {}, ("application", "")),
        (CLASS.replace("{}", "types.Made"), {}, ("application", "")),
    ],
)
def test_a_cycle_is_of_whoever_closes_it(text: str, set_by: dict[str, str], whose_it_is: tuple[str, str]) -> None:
    assert origin_of(candidate(text, set_by)) == whose_it_is


def test_what_the_user_closes_beside_it_is_the_users_to_cut() -> None:
    found = candidate(STRATEGY + "network test.Net -> .mine -> network test.Net", {".strategy": "lib", ".model": "lib"})
    names = [found.graph.reference(index).name for index in range(len(found.graph.holder))]
    assert origin_of(found, [names.index(".mine")]) == ("application", "")
