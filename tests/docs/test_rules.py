"""Each rule's help is its page, with a script that leaks and is told by it, and a mended one.

What the scripts really say is asked of each page by `test_pages.py`.
"""

from __future__ import annotations

import re

import pytest
from support.pages import DOCS, PAGES
from support.pages.blocks import Block, blocks_of, commands_of, with_texts

from leakscope.findings.facts import RuleName
from leakscope.findings.rules import RULES

MARKED = re.compile(r"^ *> (?:adds|edit|holds) +(\d+) \| (.*)$", re.MULTILINE)
"""The line to edit, as the report shows it."""
AVOIDABLE = (RuleName.LATE_RELEASE, RuleName.IDLE_MEMORY, RuleName.WORKER_COPIES)
"""Rules that the text does not name with what they tell: their scripts print the names."""
SECTIONS = ["What it does", "Why is this bad?", "Example", "Use instead", "References"]


def page_of(name: str) -> str:
    return (PAGES / "rules" / f"{name}.md").read_text(encoding="utf-8")


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def typed(block: Block) -> str:
    """The commands of a block that shows some, without their outputs; any other block as it is."""
    if not block.text.startswith("$ "):
        return block.text
    return "".join(f"{line}\n" for command in commands_of(block.text) for line in command.lines)


def with_outputs(text: str, page: str) -> str:
    """A rule's help, with the outputs that the page has of the same commands in their order."""
    recorded = [block.text for block in blocks_of(page) if block.text.startswith("$ ")]
    texts = []
    for block in blocks_of(text):
        known = recorded.pop(0) if block.text.startswith("$ ") and recorded else ""
        same = known and typed(blocks_of(f"```console\n{known}```\n")[0]) == block.text
        texts.append(known if same else block.text)
    return with_texts(text, texts)


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
    listed = re.findall(r"^\| \[(.*)\]\((.*)\.md\) \| (.*) \|$", page_of("index"), re.MULTILINE)
    assert listed == [(name, name, RULES[name].text) for name in RuleName]


@pytest.mark.parametrize("rule", RuleName)
def test_a_page_is_the_help_of_its_rule_with_outputs(rule: RuleName, request: pytest.FixtureRequest) -> None:
    text, page = RULES[rule].help, page_of(rule)
    assert text.startswith(f"# {rule}\n\n{RULES[rule].text}\n\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert all(typed(block) == block.text for block in blocks_of(text)), "the outputs are the page's"
    reported = with_outputs(text, page)
    if request.config.getoption("--docs-update", default=False):
        (PAGES / "rules" / f"{rule}.md").write_text(reported, encoding="utf-8")
    else:
        assert page == reported, "--docs-update writes it into the page"


@pytest.mark.parametrize("rule", RuleName)
def test_the_script_is_told_by_the_rule_and_the_mended_one_is_clean(rule: RuleName) -> None:
    script, change, leaking, mended = scripts(page_of(rule))
    assert (f"['{rule}']" if rule in AVOIDABLE else f"; {rule} [") in in_one_line(leaking)
    assert "Verdict  CLEAN" in mended and rule not in mended
    lines = script.text.splitlines()
    for number, text in MARKED.findall(leaking):
        assert text.strip() and lines[int(number) - 1].strip().startswith(text.strip())
        assert f"{lines[int(number) - 1]}\n" in change.text, "it is mended elsewhere than where leakscope says"
