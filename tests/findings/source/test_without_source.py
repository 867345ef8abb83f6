"""Runs recorded without source have the same verdict and locations, but no excerpts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import SAMPLES

from leakscope.findings import judge
from leakscope.process.user_code import without_source
from leakscope.report import FORMATS
from leakscope.run.model import Run
from leakscope.run.reader import read_run

SAMPLE = SAMPLES / "p2p_pipeline" / "stage-backward-cycle"


@pytest.fixture(scope="module")
def run() -> Run:
    return read_run(SAMPLE)


@pytest.mark.process  # that draws
def test_the_verdict_and_the_places_are_the_same_and_no_line_is_shown(run: Run) -> None:
    with_lines, bare = judge(run), judge(replace(run, sources={}))
    assert bare.verdict == with_lines.verdict
    for one, other in zip(bare.findings, with_lines.findings, strict=True):
        assert (one.fingerprint, one.retained_bytes, one.made_at) == (
            other.fingerprint,
            other.retained_bytes,
            other.made_at,
        )
        assert [hop.where for hop in one.trace] == [hop.where for hop in other.trace]
    lines = (line.strip() for text in run.sources.values() for line in text)
    line = next(line for line in lines if "collect" in line and len(line) > 20)
    for name in FORMATS:
        assert FORMATS[name](replace(run, sources={}), bare)
    shown = FORMATS["html"](replace(run, sources={}), bare)
    assert line not in shown and "train.py:" in shown


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
