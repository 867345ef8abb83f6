"""A damaged sample run causes no traceback, no long run time and no clean verdict."""

from __future__ import annotations

import pytest
from support import SAMPLES
from support.damage.fuzzing import fuzz_apart

SECONDS = 4.0
"""A few hundred damages; `python -m support.damage.fuzzing` takes more."""


@pytest.mark.process
def test_nothing_but_a_sentence_comes_of_a_damaged_sample(with_support: dict[str, str]) -> None:
    """As `tests/record/test_fuzzed_small_run.py` does it."""
    reported = fuzz_apart(str(SAMPLES / "p2p_pipeline" / "stage-backward-cycle"), SECONDS, with_support)
    assert reported.failures == []
    assert reported.reported > reported.refused and reported.damaged
