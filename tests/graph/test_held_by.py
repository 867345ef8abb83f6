"""The referrer index returns all references to an object with their multiplicity."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.graph.walks import ReferrerIndex, in_rows, occurrences

COUNT = 9
places = st.integers(0, COUNT - 1)
pairs = st.lists(st.tuples(places, places), max_size=30)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(references=pairs, asked=st.sets(st.integers(0, COUNT + 2)))
@pytest.mark.parametrize("pure", ["", "1"])
def test_what_holds_some_objects_is_all_that_holds_them(
    references: list[tuple[int, int]], asked: set[int], pure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, held = (np.array([pair[k] for pair in references], dtype=np.int32) for k in (0, 1))
    monkeypatch.setenv("LEAKSCOPE_PURE", pure)
    held_by = ReferrerIndex(COUNT, holder, held)
    into = held_by.into(np.array(sorted(asked), dtype=np.int64))
    assert Counter(zip(*(column.tolist() for column in into), strict=True)) == Counter(
        pair for pair in references if pair[1] in asked
    )
    assert held_by.times().tolist() == [sum(pair[1] == k for pair in references) for k in range(COUNT)]
    assert [column.dtype for column in into] == [np.int32, np.int32]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4))))
def test_rows_follow_each_other(rows: list[tuple[int, int]]) -> None:
    first, lengths = (np.array([row[k] for row in rows], dtype=np.int64) for k in (0, 1))
    assert in_rows(first, lengths).tolist() == [place for start, many in rows for place in range(start, start + many)]


@given(st.lists(places), st.lists(places))
def test_occurrences_are_counted(values: list[int], asked: list[int]) -> None:
    counted = occurrences(np.sort(np.array(values, dtype=np.int32)), np.array(asked, dtype=np.int64))
    assert counted.tolist() == [values.count(value) for value in asked]
