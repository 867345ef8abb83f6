"""Each distinct leak is told once, with its tests, and then how many tests were judged."""

from __future__ import annotations

from leakscope.pytest_plugin.judging import Judgement, Left, Outcome, State, grouped
from leakscope.pytest_plugin.settings import BaselineLeak
from leakscope.pytest_plugin.suite import Session, summary_text

CYCLE = Left("aaaaaaaa", "tensor-cycle", "a cycle", 2048, State.FAILS, "`net.hook`: frees 2.00 KiB", "a.py:3")
HOOKS = Left("bbbbbbbb", "tensor-cycle", "a cycle of hooks", 12, State.OF_LIBRARY, library="gpytorch")
OLD = Left("cccccccc", "step-growth", "a list", 1 << 20, State.KNOWN)


def failed(*left: Left) -> Judgement:
    return Judgement(Outcome.FAILED, left=left, seconds=0.5)


JUDGEMENTS = (
    *((f"test_a.py::test[{n}]", failed(CYCLE, HOOKS)) for n in range(4)),
    ("test_a.py::test_old", Judgement(Outcome.JUDGED, left=(OLD,), seconds=0.5, processes=True)),
    ("test_a.py::test_more", failed(Left("aaaaaaaa", "tensor-cycle", "a cycle", 4096, State.FAILS, "`net.hook`"))),
    ("test_a.py::test_more", Judgement(Outcome.JUDGED)),
    ("test_a.py::test_dark", Judgement(Outcome.INCONCLUSIVE, "this torch hides it")),
    ("a.py::a", Judgement(Outcome.NOT_JUDGED, "doctests")),
)

TOLD = """\
1. a cycle [aaaaaaaa]
   cut      `net.hook`
   left     4.00 KiB at most, 12.00 KiB in all, by 5 tests
   tests    test_a.py::test[0]
            test_a.py::test[1]
            test_a.py::test[2] and 2 more

Closed by libraries: they fail a test with --leakscope-strict (1)
- [bbbbbbbb] gpytorch, 12 B at most, 4 tests: a cycle of hooks

In the baseline (1)
- [cccccccc] 1.00 MiB, 1 test: a list

Fixed: in the baseline, and no test shows them any more (1)
- [dddddddd] a tuple

judged   7 tests: 5 failed, 1 inconclusive, 1 passed
leaks    1 that fail tests, 1 closed by libraries, 1 in the baseline
unclear  this torch hides it
unjudged doctests: 1; fixtures (--leakscope-fixtures judges them); what processes kept that tests started: 1
time     3.0 s for looking and telling
Written: known.json"""


def test_the_summary_of_a_session() -> None:
    session = Session(
        JUDGEMENTS, everywhere=True, fixed=(BaselineLeak("dddddddd", "a tuple", 1, ()),), said=("Written: known.json",)
    )
    assert summary_text(session, 110) == TOLD


def test_the_gravest_comes_first_and_of_those_the_largest() -> None:
    groups = grouped(JUDGEMENTS)
    assert [(group.fingerprint, len(group.tests), group.bytes) for group in groups] == [
        ("aaaaaaaa", 5, 12288),
        ("bbbbbbbb", 4, 48),
        ("cccccccc", 1, 1 << 20),
    ]


def test_many_leaks_take_a_line_each_and_then_a_number() -> None:
    many = tuple(("t", failed(Left(f"{n:08}", "tensor-cycle", "one", 100 - n, State.FAILS, "cut"))) for n in range(40))
    text = summary_text(Session(many), 110)
    assert "20. one [00000019]" in text and "- [00000029] 71 B, 1 test: one" in text
    assert "00000030" not in text and "  and 10 more" in text


def test_marked_tests_that_left_nothing_need_no_summary() -> None:
    clean = (("t", Judgement(Outcome.JUDGED)),)
    assert not Session(clean).is_worth_telling
    assert Session(clean, everywhere=True).is_worth_telling
    assert Session(JUDGEMENTS[:1]).is_worth_telling
    assert not Session().is_worth_telling
