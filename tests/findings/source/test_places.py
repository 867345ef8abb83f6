"""Where a cut is placed in the source, and how it is written there."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
from findings.source.test_lines import LIST_OF_MAIN
from findings.source.traces import finding, kept
from support import examples
from support.heap_text import heap_from

from leakscope.findings.facts import FreedBy
from leakscope.findings.judge import find_lines, judge
from leakscope.findings.model import Cut, Finding, Reason, UnjudgedReason, Why, WhyUnjudged
from leakscope.findings.naming import as_part_of_holder
from leakscope.findings.source.index import Sources
from leakscope.findings.source.lines import with_lines
from leakscope.findings.source.scopes import like_in
from leakscope.process.user_code import without_source
from leakscope.run.model import Ended, Rank, Run
from leakscope.run.rows import StepsBy, StepSourceKind

stage = import_module("leakscope.findings.source.lines")


SUM = """
    module __main__ train.py:7 -> .total
    tensor float32[] -> .grad_fn
    node AddBackward0
"""


SUMMED = """
    total = 0
    for x in data:
        if epoch:
            total += net(x)
        else:
            total += net(x).item()
"""


CLOSURE = """
    function make.<locals>.mask train.py:3 -> closure kept
    tensor float32[8] -> storage
    storage s
"""


CALLED = """
    def make(kept):
        kept = net(kept)
        def mask(x):
            return x * kept
        net.register_hook(mask)
"""


CLOSED = """
    def make(kept):
        kept = net(kept)
        def mask(x):
            return x * kept
        net.mask = mask
"""


@pytest.mark.parametrize(
    ("trace", "text", "where", "expected_at"),
    [
        (SUM, SUMMED, "train.py:6", "train.py:4"),
        (SUM, SUMMED, "train.py:4", "train.py:4"),
        (SUM, SUMMED, "other.py:6", "other.py:6"),
        (SUM, SUMMED, "", ""),
        (SUM, "net(x)", "train.py:6", "train.py:6"),
        (LIST_OF_MAIN, "def main():\n    history = []\n    history = [*history, net(x)]", "train.py:2", "train.py:2"),
        (CLOSURE, CLOSED, "train.py:2", "train.py:2"),
        (CLOSURE, CALLED, "train.py:2", "train.py:2"),
    ],
)
def test_a_tensor_is_cut_where_it_is_bound(trace: str, text: str, where: str, expected_at: str) -> None:
    found = finding(trace, 0, freed_by=FreedBy.GC if trace == CLOSURE else FreedBy.PROGRAM)
    assert found.cut is not None
    cut = replace(found.cut, references=(replace(found.cut.references[0], where=where),))
    after = with_lines(replace(found, cut=cut), Sources(kept(train=text)))
    assert after.cut is not None and after.cut.where == expected_at and after.fingerprint == found.fingerprint


def test_source_that_cannot_be_read_costs_the_lines_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(stage, "stores_for", raises)
    found, run = finding(SUM, 0), Run(("train.py",), (), 1, "cpu", "", "", sources=kept(train=SUMMED))
    findings, unread = find_lines([found], run)
    assert [each.fingerprint for each in findings] == [found.fingerprint]
    (noted,) = unread
    assert noted.rule == found.rule
    assert noted.why == WhyUnjudged(reason=UnjudgedReason.NO_SOURCE, error="RecursionError: too deep")


METADATA = """
    dict*1 -> ['out']
    tensor*2 float32[8] -> .grad_fn
    node*3 TanhBackward0 -> metadata
    dict*1
    tensor*2 float32[8] -> storage
    storage s
"""


WRITTEN = "out.grad_fn.metadata['out']"


STASH = """
    def forward(x):
        out = torch.tanh(x)
        out.grad_fn.metadata["out"] = out
        return out
"""


def named(found: Finding, text: str) -> tuple[str, str, str]:
    """(as it is written, its line, what the finding is about) with a source."""
    reported = with_lines(found, Sources(kept(train=text)))
    assert reported.cut is not None
    return reported.cut.written, reported.cut.where, reported.subject


def of(trace: str, place: int, written: str, where: str = "") -> Finding:
    found = finding(trace, place, freed_by=FreedBy.NEVER, subject=written)
    assert found.cut is not None
    reference = replace(found.cut.references[0], written=written, where=where)
    return replace(found, cut=Cut((reference,), 1 << 20))


@pytest.mark.parametrize("written", ["['out'] of dict, 1 item", "metadata['out'] of TanhBackward0"])
def test_an_item_of_a_dict_is_told_as_its_line_has_it(written: str) -> None:
    assert named(of(METADATA, 0, written), STASH) == (WRITTEN, "train.py:3", WRITTEN)


def test_without_a_line_that_puts_it_there_it_is_told_by_its_holder() -> None:
    written = "['out'] of dict, 1 item"
    for text in (STASH.replace('"out"', '"other"'), STASH.replace("metadata", "x" * 60), "pass"):
        assert named(of(METADATA, 0, written), text)[0::2] == (written, written)


@pytest.mark.parametrize(("text", "written"), [
    ("node Mul -> metadata -> dict d\ndict d -> ['out'] -> tensor t\n", "metadata['out'] of node Mul"),
    ("object Pair#1 -> .parts -> list d\nlist d -> [0] -> tensor t\n", ".parts[i] of object Pair"),
    ("object A -> .all -> list d\nobject B -> .all -> list d\nlist d -> [0] -> tensor t\n", "[i] of list, 3 items"),
    ("list e -> [0] -> list d\nlist d -> [0] -> tensor t\n", "[i] of list, 3 items"),
])  # fmt: skip
def test_an_item_of_a_container_is_told_with_the_one_object_that_holds_that(text: str, written: str) -> None:
    graph = heap_from(text)
    last = next(r for r in range(len(graph.held)) if graph.object(int(graph.held[r])).kind == "tensor")
    assert as_part_of_holder(graph, last) == written


SOURCES = {
    "src/train.py": ("class Trainer:", "    def training_step(self): ...", "def main():", "    def inner(): ..."),
    "engine/loop.py": ("async def fit_batch(): ...",),
    "broken.py": ("def (",),
}


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("train_step", ("Trainer.training_step",)),
        ("trainer.training_step", ("Trainer.training_step",)),
        ("fit_batches", ("engine.loop.fit_batch",)),
        ("main.iner", ("main.inner", "main")),
        ("xyz", ()),
    ],
)
def test_names_are_like_those_of_the_script_and_of_its_modules(typed: str, near: tuple[str, ...]) -> None:
    found = like_in(typed, SOURCES, "/home/me/src/train.py")
    assert found[: len(near)] == near and bool(found) is bool(near)


def test_a_run_without_its_step_function_says_which_may_be_meant() -> None:
    source = StepsBy(StepSourceKind.FUNCTION, "train_step", missing=True)
    rank = Rank(0, (), (), Ended("finished", 0, 0), step_sources=(source,))
    run = replace(examples.run(rank), sources=SOURCES, command=("src/train.py",))
    why = judge(run).why
    assert isinstance(why, Why)
    assert (why.reason, why.near) == (Reason.FUNCTION_MISSING, ("Trainer.training_step",))


TRACEBACK = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 3, in main
  |     step(token)
  |     ~~~~^^^^^^^
  |   [Previous line repeated 3 more times]
  | ExceptionGroup: two (2 sub-exceptions)
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    main(
    ^^^^^
  File "/home/me/engine.py", line 9, in main
    raise ValueError(
        "in two lines")
ValueError: no such layer
    said the script, indented
  File "/home/me/train.py", line 2
    def f(:
          ^
SyntaxError: invalid syntax"""


def test_a_traceback_without_source_keeps_its_places_and_its_words() -> None:
    assert without_source(TRACEBACK.splitlines()) == (
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/home/me/train.py", line 3, in main',
        "  |   [Previous line repeated 3 more times]",
        "  | ExceptionGroup: two (2 sub-exceptions)",
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 12, in <module>',
        '  File "/home/me/engine.py", line 9, in main',
        "ValueError: no such layer",
        "    said the script, indented",
        '  File "/home/me/train.py", line 2',
        "SyntaxError: invalid syntax",
    )
