"""What grows with the input of its steps, what is joined with its own last value, and what a running call holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.judging import MIB, growing, items, judged, rank_of, run_of

from leakscope.findings.breakdown import CACHED_SHAPES
from leakscope.findings.candidates import follows_input
from leakscope.findings.facts import FollowsInput, HeldByCall
from leakscope.findings.growth import Series
from leakscope.findings.judge import judge
from leakscope.findings.rules.native_hold import UnattributedFacts
from leakscope.findings.source.stores import is_made_from_itself, variable_of
from leakscope.run.model import Ended, Rank, Run, Step


def _run(
    heap: Callable[[int], str],
    given: Callable[[int], int | None] = lambda _: None,
    source: str = "",
    counted: Callable[[int], int] | None = None,
    new_shapes: Callable[[int], int] = lambda _: 0,
) -> Run:
    rank = rank_of(heap, last=12, counted=counted, seen=counted)
    steps = (replace(s, input_elements=given(s.number), new_shapes=new_shapes(s.number)) for s in rank.steps)
    return run_of(replace(rank, steps=tuple(steps)), sources={"train.py": tuple(source.splitlines())})


def _replaced(step: int) -> str:
    return f"frame train -> local x -> tensor x\ntensor x -> storage -> storage s{step} {step * MIB}\n"


@pytest.mark.parametrize(
    ("given", "source", "verdict"),
    [
        (lambda step: 100 * step, "x = net(batch)", "clean"),
        (lambda step: 100, "x = net(batch)", "leaks"),  # the input is as large as ever
        (lambda step: None, "x = net(batch)", "leaks"),
        (lambda step: 100 * step, "for batch in data:\n    x = torch.cat([x, net(batch)])", "leaks"),
        (lambda step: 100 * step, "for b in data:\n    x = net(b)\n    x = torch.cat([head, x])", "clean"),
    ],
)
def test_one_tensor_that_is_larger_with_its_input_is_no_leak(
    given: Callable[[int], int | None], source: str, verdict: str
) -> None:
    found = judge(_run(_replaced, given, source))
    assert found.verdict == verdict
    assert isinstance(found.findings[0].settled_by, FollowsInput) is (verdict == "clean")


def test_a_list_that_gains_tensors_is_a_leak_however_the_input_grows() -> None:
    assert judge(_run(growing(), lambda step: 100 * step)).verdict == "leaks"


@pytest.mark.parametrize(("last", "follows"), [(4, True), (5, False)])
def test_attention_may_grow_with_the_square_of_its_input(last: int, follows: bool) -> None:
    """Twice the input: up to 2 ** 2.2 times the bytes."""
    steps = tuple(Step(n, 0.1, None, None, input_elements=100 if n < 9 else 200) for n in range(1, 10))
    rank = Rank(0, steps, (), Ended("finished", 0, 9))
    line = Series((3, 9), (100, 100 * last))
    assert (follows_input(rank, line, (1, 1)) is not None) is follows
    assert follows_input(rank, line, (1, 2)) is None
    assert follows_input(rank, Series((3, 5), (100, 101)), (1, 1)) is None  # it rose where the input did not


@pytest.mark.parametrize(
    ("source", "itself"),
    [
        ("seen = torch.cat([seen, x])", True),
        ("class A:\n  def f(self, x):\n    self.seen = torch.cat((self.seen, x), 0)", True),
        ("class A:\n  def f(self, x):\n    self.seen = x if self.seen is None else torch.cat([self.seen, x])", True),
        ("state['seen'] = np.append(state['seen'], x)", True),
        ("seen = seen + x", False),
        ("seen = torch.cat([a, b])", False),
        ("def f(x):\n  seen = embed(x)\n  seen = torch.cat([token, seen])", False),
        ("def f(:", False),
    ],
)
def test_what_the_source_joins_with_its_own_value(source: str, itself: bool) -> None:
    assert is_made_from_itself({"train.py": source.splitlines()}, "seen") is itself


@pytest.mark.parametrize(
    ("references", "name"),
    [((".net", ".seen"), "seen"), (("local seen", "[0]"), "seen"), (("['seen']",), "seen"), (("[0]",), "")],
)
def test_the_name_of_what_a_path_ends_at(references: tuple[str, ...], name: str) -> None:
    assert variable_of(references) == name


@pytest.mark.parametrize(
    ("where", "held"), [("<torch/optim/lbfgs.py>:491", True), ("<mytrainer/loop.py>:12", False), ("train.py:7", False)]
)
def test_what_a_running_call_of_torch_holds_is_no_leak(where: str, held: bool) -> None:
    found = judged(lambda step: f"frame step where={where} -> local old -> list old {step}\n" + items("list old", step))
    assert (found.verdict == "clean") is held
    assert isinstance(found.findings[0].settled_by, HeldByCall) is held


@pytest.mark.parametrize(("every", "verdict"), [(4, "inconclusive"), (6, "leaks")])
def test_shapes_that_are_new_in_a_quarter_of_the_steps_may_be_kernels(every: int, verdict: str) -> None:
    found = judge(
        _run(
            lambda step: "module train -> .x -> tensor x",
            lambda step: 100,
            counted=lambda step: (10 + step) * MIB,
            new_shapes=lambda step: int(step % every == 0),
        )
    )
    facts = found.findings[0].facts
    assert found.verdict == verdict
    assert isinstance(facts, UnattributedFacts)
    assert facts.shapes == 12 // every
    assert (facts.full_at_step > CACHED_SHAPES) is (verdict == "inconclusive")


def test_what_leaks_held_at_the_end_is_extrapolated_by_the_counters() -> None:
    for rate, more in ((1, 3), (0.5, 1.5), (2, 3)):
        run = _run(growing(), counted=lambda step, rate=rate: round((50 + rate * step) * MIB))
        why = judge(run).why
        assert (why.bytes, why.bytes_at_end) == (9 * MIB, round((9 + more) * MIB))
    ends_with_snapshot = replace(run, ranks=(replace(run.ranks[0], steps=run.ranks[0].steps[:9]),))
    assert judge(ends_with_snapshot).why.bytes_at_end == 0
