"""A container that the source empties or bounds is found to be so, and what only looks like it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from findings.source.traces import finding, kept

from leakscope.findings.facts import EmptiedLater, RuleName, Severity
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.source.bounds import emptied_at
from leakscope.findings.source.index import Sources
from leakscope.findings.source.lines import with_lines
from leakscope.findings.source.stores import stores_for
from leakscope.run.model import Ended, Rank, Run, Step
from leakscope.run.rows import MemoryThere

OF_OBJECT = """
    frame main train.py:1 -> local trainer
    object __main__.Trainer train.py:3 -> .rows
    list -> [i]
    tensor float32[8] -> storage
    storage s
"""
OF_MODULE = """
    module __main__ train.py:1 -> .rows
    dict -> [i]
    tensor float32[8] -> storage
    storage s
"""
OF_LOCAL = """
    frame fit train.py:1 -> local rows
    list -> [i]
    tensor float32[8] -> storage
    storage s
"""
Reported = list[tuple[str, int | None, int | None, bool]]


def emptied(trace: str, place: int, text: str) -> Reported:
    """(source line, bound, period, whether it is decided) of each line that empties what the cut names."""
    found, sources = finding(trace, place), Sources(kept(train=text))
    assert found.cut is not None
    reference = found.cut.references[0]
    lines = kept(train=text)["train.py"]
    return [
        (lines[int(one.where.partition(":")[2]) - 1].strip(), one.bound, one.every, one.is_decided)
        for one in emptied_at(found, reference, stores_for(found, reference, sources), sources)
    ]


TRAINER = """
LIMIT = 64
class Trainer:
    def __init__(self, most=32):
        self.rows = []
        self.most = most
    def step(self, x):
        {before}
        self.rows.append(x)
        {after}
    def {name}(self):
        {end}
    def fit(self, steps=50):
        for epoch in range(9):
            for _ in range(steps):
                self.step(make())
            {epoch}
Trainer().fit()
"""


def trainer(before: str = "", after: str = "", end: str = "pass", epoch: str = "", name: str = "finish") -> Reported:
    text = TRAINER.format(before=before or "pass", after=after or "pass", end=end, epoch=epoch or "pass", name=name)
    return emptied(OF_OBJECT, 1, text)


@pytest.mark.parametrize(
    "line",
    [
        "self.rows.clear()",
        "self.rows = []",
        "del self.rows[:]",
        "del self.rows",
    ],
)
def test_what_a_method_empties_at_the_end_of_an_epoch_has_the_epochs_length(line: str) -> None:
    assert trainer(end=line, epoch="self.finish()") == [(line, None, 50, True)]


@pytest.mark.parametrize(
    ("test", "empties"),
    [
        ('not hasattr(self, "rows")', False),
        ('getattr(self, "rows", None) is None', False),
        ("not self.rows", False),
        ('"rows" not in self.__dict__', False),
        ('hasattr(self, "rows")', True),
        ("x is None", True),
        ('not hasattr(self, "others")', True),
    ],
)
def test_what_binds_a_name_that_is_not_there_yet_empties_nothing(test: str, empties: bool) -> None:
    assert bool(trainer(before=f"if {test}: self.rows = []")) == empties


def test_what_a_helper_empties_is_followed_through_its_argument() -> None:
    text = TRAINER.format(before="pass", after="pass", end="pass", epoch="drop(self.rows)", name="finish")
    assert emptied(OF_OBJECT, 1, text + "\ndef drop(them):\n    them.clear()\n") == [("them.clear()", None, 50, True)]


@pytest.mark.parametrize(
    ("after", "bound"),
    [
        ("if len(self.rows) > 64: self.rows.pop(0)", 64),
        ("if len(self.rows) >= self.most: self.rows = []", 32),
        ("while len(self.rows) > 2 * LIMIT: del self.rows[0]", 128),
        ("if 99 < len(self.rows): self.rows.popleft()", 99),
        ("if len(self.rows) > 2**6: self.rows.pop(0)", 64),
        ("if len(self.rows) > 64 // 0: self.rows.pop(0)", None),
        ("del self.rows[:-20]", 20),
        ("self.rows = self.rows[-20:]", 20),
        ("if x is not None and len(self.rows) > unknown(): self.rows.pop()", None),
    ],
)
def test_what_a_length_bounds_has_that_bound(after: str, bound: int | None) -> None:
    assert trainer(after=after) == [(after, bound, None, True)]


@pytest.mark.parametrize(
    ("before", "bound"),
    [("if len(self.rows) >= 100: return", 100), ("if len(self.rows) < 100: self.rows.append(x)", 100)],
)
def test_a_test_of_the_length_before_it_gains_is_a_bound(before: str, bound: int) -> None:
    text = TRAINER.replace(
        "        self.rows.append(x)\n", "" if "append" in before else "        self.rows.append(x)\n"
    )
    found = emptied(OF_OBJECT, 1, text.format(before=before, after="pass", end="pass", epoch="pass", name="finish"))
    assert [bound for _, bound, _, _ in found] == [bound]


def test_a_period_of_steps_is_read() -> None:
    text = "rows = {}\nfor k in range(999):\n    rows[k] = make()\n    if k % 25 == 24:\n        rows.clear()\n"
    assert emptied(OF_MODULE, 0, text) == [("rows.clear()", None, 25, True)]


def test_what_a_global_is_bound_to_anew_in_another_function_is_emptied() -> None:
    text = """
        rows = {}
        def step(k):
            rows[k] = make()
        def reset():
            global rows
            rows = {}
        for epoch in range(3):
            for k in range(30):
                step(k)
            reset()
    """
    assert emptied(OF_MODULE, 0, text) == [("rows = {}", None, 30, True)]


def test_a_list_made_in_each_turn_of_an_outer_loop_is_emptied() -> None:
    text = """
        def fit():
            for epoch in range(3):
                rows = []
                for x in data:
                    rows.append(net(x))
        fit()
    """
    assert emptied(OF_LOCAL, 0, text) == [("rows = []", None, None, True)]


def test_a_local_goes_with_its_function_where_a_loop_calls_that() -> None:
    text = """
        def fit(n):
            rows = []
            for x in range(n):
                rows.append(net(x))
            return sum(rows)
        for epoch in range(3):
            fit(40)
    """
    assert emptied(OF_LOCAL, 0, text) == [("fit(40)", None, 40, True)]
    assert emptied(OF_LOCAL, 0, text.replace("for epoch in range(3):", "if True:")) == []


def test_a_hook_that_lightning_calls_is_reached() -> None:
    text = """
        from lightning import LightningModule
        class Trainer(LightningModule):
            def training_step(self, x):
                self.rows.append(x)
            def {name}(self):
                self.rows.clear()
    """
    assert emptied(OF_OBJECT, 1, text.format(name="on_train_epoch_end")) == [("self.rows.clear()", None, None, True)]
    assert emptied(OF_OBJECT, 1, text.format(name="forget_all")) == []


def test_a_condition_that_the_source_does_not_decide_is_told_as_such() -> None:
    assert trainer(after="if x.mean() > 3: self.rows.clear()")[0][3] is False
    assert trainer(end="self.rows.clear()", after="if x.done: self.finish()")[0][3] is False


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"end": "self.rows.clear()"}, "never called"),
        ({"after": "other.clear()"}, "another container"),
        ({"after": "if len(self.rows) > 9: del other[0]"}, "another container under the test"),
        ({"after": "if len(self.rows) > 9: print(len(self.rows))"}, "nothing is taken out"),
        ({"after": "self.rows.pop()"}, "as often as it gains, and it grows all the same"),
        ({"after": "self.finish()", "end": "self.rows.clear()"}, "the same, in a method"),
        ({"end": "self.rows.pop()", "epoch": "self.finish()"}, "one item an epoch"),
        ({"after": "if x.done: self.rows.remove(x)"}, "one item now and then"),
        ({"epoch": "pass\n        self.rows.clear()"}, "once, behind all loops"),
        ({"epoch": "pass\n        for _ in range(3): self.rows.clear()"}, "in a loop behind all those that add"),
        ({"before": "try: check(x)\n        except ValueError: self.rows.clear()"}, "after an error"),
        ({"before": "if len(self.rows) > 0: print(1)"}, "a test for emptiness"),
    ],
)
def test_what_does_not_keep_it_from_growing_is_no_evidence(fields: dict[str, str], why: str) -> None:
    assert trainer(**fields) == [], why


def settled(text: str, items: int, steps: int, last: int = 9, **more: object) -> Finding:
    """The finding of a list with so many items after a run of some steps."""
    found = replace(
        finding(OF_OBJECT, 1, rule=RuleName.STEP_GROWTH, bytes_per_step=1024.0),
        retained_bytes=1024 * items,
        sightings=tuple(Sighting(0, step, 1024 * step) for step in range(3, last + 1, 2)),
    )
    hop = replace(found.trace[2], object=f"list, {items} items")
    found = replace(found, trace=(*found.trace[:2], hop, *found.trace[3:]))
    done = tuple(Step(n, 0.1, None, None) for n in range(1, steps + 1))
    run = Run(("train.py",), (Rank(0, done, (), Ended("finished", 0, steps), **more),), 1, "cpu", "2.13.0", "0")
    sources = kept(
        train=TRAINER.format(before="pass", after=text, end="self.rows.clear()", epoch="pass", name="finish")
    )
    return with_lines(found, Sources(sources), run)


def test_what_is_filling_is_a_note_that_says_how_many_steps_would_show_it() -> None:
    reported = settled("if len(self.rows) > 40: self.rows.clear()", items=9, steps=9)
    assert reported.severity == Severity.NOTE
    assert isinstance(reported.settled_by, EmptiedLater)
    assert (reported.settled_by.where, reported.settled_by.bound, reported.settled_by.steps) == ("train.py:9", 40, 41)
    assert reported.suggestion is None


def test_what_has_grown_past_its_bound_is_a_leak() -> None:
    assert settled("if len(self.rows) > 40: self.rows.clear()", items=43, steps=60).severity == Severity.LEAK
    assert settled("if len(self.rows) > 40: self.rows.clear()", items=42, steps=60).severity == Severity.NOTE


def test_a_bound_that_is_more_than_a_quarter_of_memory_is_too_large() -> None:
    memory = (MemoryThere("the host's memory", 100 << 10),)
    for bound, severity in ((25, Severity.NOTE), (26, Severity.LEAK)):
        line = f"if len(self.rows) > {bound}: self.rows.clear()"
        assert settled(line, items=9, steps=9, host_memory=memory).severity == severity


def test_functions_that_call_each_other_are_followed_to_an_end() -> None:
    text = TRAINER.format(before="pass", after="self.finish(x)", end="self.rows.clear(); self.step(x)", epoch="pass",
                          name="finish")  # fmt: skip
    assert all(bound is None for _, bound, _, _ in emptied(OF_OBJECT, 1, text))


def test_what_has_grown_through_a_whole_period_is_a_leak() -> None:
    line = "if self.k % 20 == 0: self.rows.clear()"
    assert settled(line, items=30, steps=30, last=31).severity == Severity.LEAK
    filling = settled(line, items=15, steps=15, last=15)
    assert filling.severity == Severity.NOTE and isinstance(filling.settled_by, EmptiedLater)
    assert filling.settled_by.steps == 2 + 2 * 20, "of the warm-up and two periods"
