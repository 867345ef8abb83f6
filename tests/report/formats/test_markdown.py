"""Markdown reports render as intended, name the cut first and are truncated at the size limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from support import examples
from support.formats.markdown_rules import problems

from leakscope.report import FORMATS
from leakscope.report.formats.as_markdown import MOST, block, code, plain, sentence


def test_a_run_that_says_too_much_is_cut_short_and_says_so() -> None:
    run, findings = examples.leaking()
    many = tuple(replace(findings.findings[1], fingerprint=f"{number:08x}") for number in range(1000))
    text = FORMATS["markdown"](run, replace(findings, findings=many))
    assert len(text) <= MOST and list(problems(text)) == []
    assert "| and 950 more |" in text and "sections omitted: a comment is limited to 65,000 characters" in text
    first, *others = findings.findings[1].trace
    long = replace(findings.findings[1], trace=(replace(first, where="x " * 40_000), *others))
    text = FORMATS["markdown"](run, replace(findings, findings=(long, *findings.findings)))
    assert len(text) <= MOST and "1 section omitted" in text and text.count("<details>") == 4


@pytest.mark.parametrize("lines", [["```"], ["````", "x"], ["~~~", "</details>"], ["a\nb```", "    ```"], []])
def test_lines_stay_in_their_block(lines: list[str]) -> None:
    fence, inline = MarkdownIt("commonmark").parse("\n".join([*block(lines), "after"]))[0:2]
    assert fence.type == "fence" and inline.type == "paragraph_open"
    assert fence.content.splitlines() == [" ".join(line.splitlines()) for line in lines]


def test_text_calls_nobody() -> None:
    assert plain("@team | <b>") == "@\u200bteam &#124; &#60;b&#62;"
    assert plain("x " * 300, 10) == "x x x x x…" and code("a`b") == "<code>a&#96;b</code>"
    assert sentence("Cut `a_b` at *x*") == "Cut <code>a&#95;b</code> at &#42;x&#42;"
