"""What closes a cycle through autograd, and what an `lru_cache` keeps a graph by."""

from __future__ import annotations

import pytest
from support.heap_text import heap_from

from leakscope.findings.judge import judge
from leakscope.findings.model import Finding
from leakscope.findings.rules.retained_graph import GraphFacts
from leakscope.findings.rules.uncollectable_cycle import ClosedBy, UncollectableFacts
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

STEPS = (3, 5, 7, 9)


def found_in(one: str) -> Finding:
    """The finding of a run that gains one of these in each step; `#` is its number."""
    texts = {step: "".join(one.replace("#", f"#{k}") for k in range(step)) for step in STEPS}
    looks = tuple(HeapSnapshot(step, "step", heap_from(text), None, 0) for step, text in texts.items())
    rank = Rank(0, tuple(Step(n, 0.1, None, None) for n in range(1, 10)), looks, Ended("stopped", 0, 9))
    (finding,) = judge(Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0")).findings
    return finding


SAVED = """
tensor t# freed=never -> .grad_fn -> node N# freed=never
node N# -> saved result -> tensor t#
tensor t# -> storage -> storage s# 1048576 freed=never
"""
KEPT_ON_CTX = """
tensor t# freed=never -> .grad_fn -> node N# freed=never
node N# -> .owner -> object S# freed=never
object S# -> .last -> node M# freed=never
node M# -> saved result -> tensor t#
tensor t# -> storage -> storage s# 1048576 freed=never
"""
PACKED = "node M# -> unpack hook of saved result -> function unpack#\n"
HOOKED = KEPT_ON_CTX.replace(".owner", "hook clear")


@pytest.mark.parametrize(
    ("cycle", "closed_by"),
    [
        (SAVED, ClosedBy.PACK_HOOK),
        (KEPT_ON_CTX + PACKED, ClosedBy.PACK_HOOK),
        (KEPT_ON_CTX, ClosedBy.OTHER),
        (HOOKED, ClosedBy.HOOK),
    ],
    ids=["autograd alone", "with an unpack hook", "an attribute", "a hook"],
)
def test_a_pack_hook_closes_a_cycle_where_nothing_else_can_or_the_node_has_one(cycle: str, closed_by: ClosedBy) -> None:
    facts = found_in(cycle).facts
    assert isinstance(facts, UncollectableFacts) and facts.closed_by == closed_by


CACHE = "functools._lru_cache_wrapper size"
KEPT = """
object h# -> .y -> tensor y#
tensor y# -> .grad_fn -> node N#
node N# -> saved self -> tensor t#
tensor t# -> storage -> storage s# 1048576
"""


@pytest.mark.parametrize(
    ("by", "by_arguments"),
    [
        (f"{CACHE} -> cached arguments -> list k#\nlist k# -> [0] -> object h#\n", True),
        (f"{CACHE} -> cached result -> dict of\ndict of -> key (...) -> list k#\nlist k# -> [0] -> object h#\n", True),
        (f"{CACHE} -> cached result -> object h#\n", False),
        (f"{CACHE} -> cached result -> dict of\ndict of -> [#] -> object h#\n", False),
    ],
)
def test_a_graph_that_the_key_of_a_cache_holds_is_no_result(by: str, by_arguments: bool) -> None:
    facts = found_in(f"module train -> .size -> {CACHE}\n{by}{KEPT}").facts
    assert isinstance(facts, GraphFacts) and facts.by_arguments is by_arguments


@pytest.mark.parametrize(("freed", "never"), [("never", 1 << 20), ("1", 0)])
def test_what_gc_never_frees_is_told_from_garbage_where_no_step_was_seen(freed: str, never: int) -> None:
    heap = heap_from(SAVED.replace("freed=never", f"freed={freed}"))
    rank = Rank(0, (), (HeapSnapshot(0, "end", heap, None, 0),), Ended("finished", 0, 0))
    (alive,) = judge(Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0")).listed
    assert (alive.categories["leaked"], alive.uncollectable_bytes) == (1 << 20, never)
