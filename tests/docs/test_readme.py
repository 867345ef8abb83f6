"""README shows the output of the tutorial's run, and its links resolve."""

from __future__ import annotations

import re

from support import ROOT
from support.pages import PAGES
from support.pages.blocks import blocks_of, commands_of
from support.pages.comparison import agree

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_shows_the_run_of_the_tutorial() -> None:
    page = (PAGES / "tutorial.md").read_text(encoding="utf-8")
    recorded = {c.words: c.output for b in blocks_of(page) if b.language == "console" for c in commands_of(b.text)}
    (shown,) = [block for block in blocks_of(README) if block.language == "console"]
    for command in commands_of(shown.text):
        assert agree(command.output, recorded[command.words]), command.words


def test_links_of_readme_lead_to_files() -> None:
    for link in re.findall(r"\]\(([^)#]+)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link
