"""Do the counters of the steps tell of a growth that goes on, and not of what comes and goes?"""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from support.examples import MIB
from support.heap_text import heap_from

from leakscope.findings.counters import counted_rate, rate_at_end
from leakscope.record.kinds import EndKind, Occasion
from leakscope.record.model import Ended, Look, Rank, Step


def _rank(levels: list[float], looked_at: tuple[int, ...] = ()) -> Rank:
    """Steps at whose ends so many MiB are counted."""
    steps = tuple(Step(k, 0.1, round(level * MIB), None) for k, level in enumerate(levels, 1))
    looks = tuple(Look(k, Occasion.STEP, heap_from(""), None, 0) for k in looked_at)
    return Rank(0, steps, looks, Ended(EndKind.FINISHED, 0, len(steps)))


@given(taken=st.lists(st.booleans(), min_size=6, max_size=12), looked_at=st.sets(st.integers(3, 10), max_size=4))
def test_what_a_few_steps_take_and_let_go_of_is_no_growth(taken: list[bool], looked_at: set[int]) -> None:
    """As threads do that come and go, on a busy machine: 4.37 MiB each."""
    half = len(taken) // 2
    assume(any(taken[:half]))
    rank = _rank([94, 98, *(102.5 if there else 98.13 for there in taken)], looked_at=tuple(sorted(looked_at)))
    for rate in (counted_rate(rank, 2), rate_at_end(rank, 2)):
        assert rate is not None
        assert rate <= 0


@given(
    each=st.floats(0.5, 64),
    steps=st.integers(8, 60),
    noise=st.lists(st.floats(-0.1, 0.1), min_size=60, max_size=60),
)
def test_a_growth_that_goes_on_is_told_of_however_few_steps_there_are(
    each: float, steps: int, noise: list[float]
) -> None:
    rank = _rank([100 + each * (k + noise[k]) for k in range(steps)], looked_at=(3, 5))
    rate = rate_at_end(rank, 2)
    assert rate is not None
    assert 0.5 * each * MIB < rate < 1.5 * each * MIB
