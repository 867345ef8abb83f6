"""Changes of lines combine if they do not overlap, and give the text that they were made from."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from leakscope.fix.model import Candidate, Change, applied, candidate_of

TEXTS = st.lists(st.sampled_from(["a", "b", "    c", "", "d()"]), max_size=8).map("\n".join)


@given(TEXTS, TEXTS)
def test_a_candidate_gives_the_text_it_was_made_from(before: str, after: str) -> None:
    candidate = candidate_of("edit", {"train.py": before}, {"train.py": after})
    if candidate is None:
        assert before == after
    else:
        assert applied([candidate], {"train.py": before}) == {"train.py": after}


def test_changes_of_one_line_conflict_and_equal_ones_do_not() -> None:
    line = Candidate("one", (Change("train.py", 3, ("x",), ("y",)),))
    same = Candidate("same", (Change("train.py", 3, ("x",), ("y",)), Change("train.py", 9, ("p",), ())))
    other = Candidate("other", (Change("train.py", 3, ("x",), ("z",)),))
    after = Candidate("after", (Change("train.py", 4, (), ("w",)),))
    elsewhere = Candidate("elsewhere", (Change("model.py", 3, ("x",), ("z",)),))
    assert line.conflicts([other])
    assert not line.conflicts([same, after, elsewhere])
    assert not after.conflicts([Candidate("again", (Change("train.py", 4, (), ("v",)),))])


def test_insertions_at_one_place_are_combined_the_inner_block_first() -> None:
    text = "for x in y:\n    a(x)\nb()"
    inner = Candidate("inner", (Change("f", 3, (), ("    one.clear()",)),))
    also = Candidate("also", (Change("f", 3, (), ("    two.clear()",)),))
    outer = Candidate("outer", (Change("f", 3, (), ("three.clear()",)),))
    line = Candidate("line", (Change("f", 3, ("b()",), ("c()",)),))
    for order in permutations((inner, also, outer, line)):
        lines = applied(order, {"f": text})["f"].split("\n")
        assert lines[:2] == ["for x in y:", "    a(x)"]
        assert sorted(lines[2:4]) == ["    one.clear()", "    two.clear()"]
        assert lines[4:] == ["three.clear()", "c()"]


def test_several_candidates_apply_at_the_lines_of_the_original() -> None:
    text = "a\nb\nc\nd"
    first = candidate_of("first", {"f": text}, {"f": "a\nnew\nb\nc\nd"})
    second = candidate_of("second", {"f": text}, {"f": "a\nb\nc\nD\nE"})
    assert first is not None
    assert second is not None
    assert applied([second, first], {"f": text}) == {"f": "a\nnew\nb\nc\nD\nE"}
