"""The findings of recorded runs are as recorded, field by field; `make goldens` records them anew."""

from __future__ import annotations

import pytest

from golden_runs.judged import NAMES, differences, expected, judged


@pytest.mark.parametrize("name", NAMES)
def test_the_fields_of_a_recorded_run(name: str) -> None:
    assert list(differences(expected()[name], judged(name))) == []
