"""A damaged run with every kind of file causes no traceback, no long run time and no clean verdict."""

from __future__ import annotations

import pytest
from support.damage.fuzzing import fuzz_apart

SECONDS = 4.0
"""A few hundred damages of each run; `python -m support.damage.fuzzing` takes more."""
MOST_BYTES = 512 << 20
"""Memory at most: reading the whole run takes a fifth of it."""


@pytest.mark.process
@pytest.mark.parametrize("run", ["small", "orphan"])
def test_nothing_but_a_sentence_comes_of_a_damaged_run(run: str, with_support: dict[str, str]) -> None:
    """The same damage each time, as far as the time goes; `--only` of `support.damage.fuzzing` repeats one."""
    told = fuzz_apart(run, SECONDS, with_support)
    assert told.failures == []
    assert told.told > told.refused and told.damaged
    assert told.peak_bytes < MOST_BYTES
