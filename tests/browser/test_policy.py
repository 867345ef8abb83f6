"""The page runs only its own script, makes no requests and is complete without JavaScript."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.browser import Pages
from support.browser.recorded_pages import page

from leakscope.report.html.page import policy, script

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOREIGN = "<script>document.title = 'foreign'</script>"


def runs_its_own(opened: Page) -> bool:
    return opened.evaluate("typeof showTarget") == "function"  # a name of the script's


def test_the_page_runs_its_own_script_and_asks_for_nothing(pages: Pages) -> None:
    opened = pages.open(page("leaking"))
    assert runs_its_own(opened) and pages.said == []
    assert {address.partition(":")[0] for address in pages.requests} == {"file"}
    assert {address.rpartition("/")[2] for address in pages.requests} == {"page_0.html"}


@pytest.mark.parametrize(
    "foreign",
    [FOREIGN, "<img src=x onerror=\"document.title = 'foreign'\">", "<script src=foreign.js></script>"],
)
def test_a_foreign_script_does_not_run(foreign: str, pages: Pages) -> None:
    smuggled = page("leaking").replace("</main>", f"{foreign}</main>")
    (pages.folder / "foreign.js").write_text("document.title = 'foreign'", encoding="utf-8")
    opened = pages.open(smuggled)
    assert opened.title().startswith("leakscope: ")
    assert any("Content Security Policy" in text for text in pages.said)
    assert runs_its_own(opened)


def test_without_the_policy_it_would_run(pages: Pages) -> None:
    smuggled = page("leaking").replace("</main>", f"{FOREIGN}</main>")
    smuggled = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", smuggled)
    assert pages.open(smuggled).title() == "foreign"


def test_changed_by_one_character_its_own_script_does_not_run(pages: Pages) -> None:
    changed = page("leaking").replace('"use strict";', '"use strict"; ')
    assert not runs_its_own(pages.open(changed))


def test_the_policy_forbids_all_but_the_one_script() -> None:
    assert policy().split("; ")[:2] == ["default-src 'none'", "style-src 'unsafe-inline'"]
    assert re.fullmatch(r"script-src 'sha256-[A-Za-z0-9+/]{43}='", policy().split("; ")[2])
    assert "</script" not in script().lower() and "<!--" not in script()


@pytest.mark.parametrize("name", ["leaking", "clean"])
def test_all_is_there_with_javascript_switched_off(name: str, pages: Pages) -> None:
    with_script, without = pages.open(page(name)), pages.open(page(name), scripts=False)
    assert without.locator("button, form, input").count() == 0
    with_script.locator(".copy, .filter, .zooming").evaluate_all("parts => parts.forEach(part => part.remove())")
    text = "document.querySelector('main').textContent.replace(/\\s+/g, ' ')"
    assert without.evaluate(text) == with_script.evaluate(text)
    assert without.locator("main").inner_text().strip()
