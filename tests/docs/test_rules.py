"""Each rule has a page with its texts, a leaking script and a fixed version."""

from __future__ import annotations

import re

import pytest
from support.pages import DOCS, PAGES
from support.pages.blocks import Block, blocks_of

from leakscope.findings.facts import RuleName
from leakscope.findings.rules import RULES
from leakscope.report.formats.as_sarif import rule_help

MARKED = re.compile(r"^ *> (?:adds|edit|holds) +(\d+) \| (.*)$", re.MULTILINE)
"""The line to edit, as the report shows it."""
AVOIDABLE = (RuleName.LATE_RELEASE, RuleName.IDLE_MEMORY, RuleName.WORKER_COPIES)
"""Rules that the text does not name with what they tell: their scripts print the names."""


def page_of(rule: RuleName) -> str:
    return (PAGES / "rules" / f"{rule}.md").read_text(encoding="utf-8")


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def section(page: str, heading: str) -> str:
    """What stands below a heading, in one line."""
    return in_one_line(page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])


def scripts(page: str) -> tuple[Block, Block, str, str]:
    """The script that leaks, how it is mended, what is said of it, and what is said of the mended one."""
    blocks = blocks_of(page)
    (script,) = (block for block in blocks if block.language == "python")
    (change,) = (block for block in blocks if block.language == "diff")
    assert change.title == script.title
    leaking, mended = (block.text for block in blocks if block.language in ("console", "text"))
    return script, change, leaking, mended


def test_every_rule_has_a_page_in_the_navigation_and_in_the_list() -> None:
    pages = {path.stem for path in (PAGES / "rules").glob("*.md")}
    assert pages == {*RuleName, "index"}
    assert re.findall(r"rules/(.*)\.md", (DOCS / "mkdocs.yml").read_text(encoding="utf-8")) == ["index", *RuleName]
    listed = re.findall(r"^\| \[(.*)\]\((.*)\.md\) \| (.*) \|$", page_of_all(), re.MULTILINE)
    assert listed == [(name, name, RULES[name].text) for name in RuleName]


def page_of_all() -> str:
    return (PAGES / "rules" / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", RuleName)
def test_a_page_says_what_the_rules_texts_say(rule: RuleName) -> None:
    page, told = page_of(rule), rule_help(rule)
    assert page.startswith(f"# {rule}\n\n{told.text}\n\n")
    assert section(page, "Why it happens").startswith(told.why)
    assert section(page, "Mended").startswith(told.cure)


@pytest.mark.parametrize("rule", RuleName)
def test_the_script_is_told_by_the_rule_and_the_mended_one_is_clean(rule: RuleName) -> None:
    script, change, leaking, mended = scripts(page_of(rule))
    assert (f"['{rule}']" if rule in AVOIDABLE else f"; {rule} [") in in_one_line(leaking)
    assert "Verdict  CLEAN" in mended and rule not in mended
    lines = script.text.splitlines()
    for number, text in MARKED.findall(leaking):
        assert text.strip() and lines[int(number) - 1].strip().startswith(text.strip())
        assert f"{lines[int(number) - 1]}\n" in change.text, "it is mended elsewhere than where leakscope says"
