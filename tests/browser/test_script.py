"""The page runs only its own script, whose copy buttons, filters, zoom and links work in a real browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.browser import Pages, unfold
from support.browser.recorded_pages import page

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

LEAKS = 4
"""Distinct leaks of the run of 8 ranks."""


@pytest.fixture
def leaking(pages: Pages) -> Page:
    return pages.open(page("leaking"))


@pytest.fixture
def several(pages: Pages) -> Page:
    opened = pages.open(page("8 ranks"))
    opened.locator(".filtering > summary").click()
    return opened


def shown(parts: Locator) -> int:
    return parts.locator("visible=true").count()


def width(part: Locator) -> float:
    box = part.bounding_box()
    assert box is not None
    return box["width"]


def test_a_button_copies_the_text_beside_it(leaking: Page) -> None:
    leaking.context.grant_permissions(["clipboard-read", "clipboard-write"])
    unfold(leaking)
    code = leaking.locator(".cutbox code[data-copy]").first
    label = "Copy " + code.text_content().strip().splitlines()[0][:60]
    made = leaking.locator(f".copy[aria-label='{label}']").first
    made.click()
    leaking.wait_for_function("[...document.querySelectorAll('.copy')].some(made => made.textContent === 'copied')")
    assert leaking.evaluate("navigator.clipboard.readText()").split() == code.text_content().split() != []


def test_a_copied_fix_is_a_patch(pages: Pages) -> None:
    fixed = pages.open(page("fixed"))
    fixed.context.grant_permissions(["clipboard-read", "clipboard-write"])
    made, box = fixed.locator(".code.edit .copy").first, fixed.locator(".code.edit figcaption").first
    made.click()
    fixed.wait_for_function("[...document.querySelectorAll('.copy')].some(made => made.textContent === 'copied')")
    copied = fixed.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied[0].startswith("diff --git a/")
    assert [line[1:].strip() for line in copied if re.match(r"[+-](?![+-])", line)]
    button, around = made.bounding_box(), box.bounding_box()
    assert button is not None and around is not None
    assert button["y"] + button["height"] <= around["y"] + around["height"], "it hangs out of its box"


def test_text_is_selected_where_the_clipboard_is_refused(leaking: Page) -> None:
    leaking.evaluate("void (navigator.clipboard.writeText = async () => { throw new Error('not allowed') })")
    leaking.evaluate("void (document.execCommand = () => false)")
    leaking.locator(".cutbox .copy").first.click()
    leaking.wait_for_function("document.querySelector('.cutbox .copy').textContent === 'press Ctrl+C'")
    marked = leaking.evaluate("getSelection().toString()")
    assert marked == leaking.locator(".cutbox code[data-copy]").first.inner_text()


def test_findings_and_ranks_are_filtered_by_rule(several: Page) -> None:
    rules = several.locator("article.finding[data-severity=leak]").evaluate_all(
        "all => all.map(one => one.dataset.rule)"
    )
    several.locator(".filter [name=rule]").select_option(rules[0])
    for finding in several.locator("article.finding").all():
        same = finding.get_attribute("data-rule") == rules[0]
        assert finding.is_visible() == same
    assert shown(several.locator(".findings-list tr[data-ranks]")) == rules.count(rules[0])


def test_findings_and_ranks_are_filtered_by_rank(several: Page) -> None:
    several.locator(".filter [name=rank]").fill("4")
    seen = several.locator("article.finding.filtered, article.finding:visible").all()
    assert seen
    for finding in several.locator("article.finding").all():
        ranks = finding.get_attribute("data-ranks").split()
        assert finding.evaluate("one => one.classList.contains('filtered')") == ("4" not in ranks)
    several.locator(".filter [name=rank]").fill("100-200")
    assert shown(several.locator("article.finding")) == 0
    assert several.locator("form.filter output").inner_text().startswith("0 of ")
    several.locator(".filter [type=reset]").click()
    several.locator(".filtered").first.wait_for(state="detached")
    assert several.locator(".filter [name=rank]").input_value() == ""


def test_a_filter_unfolds_what_it_matches(several: Page) -> None:
    folded = several.locator("details article.finding").last
    assert not folded.is_visible()
    several.locator(".filter [name=text]").fill(folded.get_attribute("id"))
    assert folded.is_visible()


def test_a_drawing_zooms_by_button_key_and_wheel_and_moves_by_drag(leaking: Page) -> None:
    unfold(leaking)
    box = leaking.locator(".zoom").first
    drawing = box.locator("svg")
    box.scroll_into_view_if_needed()
    usual = width(drawing)
    leaking.get_by_label("Zoom in").first.click()
    assert width(drawing) == pytest.approx(1.25 * usual, rel=0.02)
    leaking.get_by_label("Reset zoom").first.click()
    assert width(drawing) == pytest.approx(usual, rel=0.01)
    box.focus()
    for _ in range(4):
        leaking.keyboard.press("+")
    assert width(drawing) == pytest.approx(1.25**4 * usual, rel=0.02)
    assert box.evaluate("box => box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight")
    leaking.keyboard.press("0")
    place = box.bounding_box()
    leaking.mouse.move(place["x"] + 60, place["y"] + 40)
    leaking.mouse.wheel(0, -200)
    assert width(drawing) == pytest.approx(usual, rel=0.01)  # the wheel alone moves the page
    box.scroll_into_view_if_needed()
    place = box.bounding_box()
    leaking.mouse.move(place["x"] + 60, place["y"] + 40)
    leaking.keyboard.down("Control")
    leaking.mouse.wheel(0, -600)
    leaking.keyboard.up("Control")
    leaking.wait_for_function("document.querySelector('.zoom').classList.contains('zoomed')")
    assert width(drawing) > 1.5 * usual
    at = box.evaluate("box => { box.scrollTo(0, 0); return [box.scrollLeft, box.scrollTop] }")
    leaking.mouse.move(place["x"] + 200, place["y"] + 150)
    leaking.mouse.down()
    leaking.mouse.move(place["x"] + 120, place["y"] + 90, steps=4)
    leaking.mouse.up()
    assert box.evaluate("box => [box.scrollLeft, box.scrollTop]") > at


def test_a_line_of_the_path_and_its_arrow_highlight_each_other(leaking: Page) -> None:
    unfold(leaking)
    finding = leaking.locator("article.finding").first
    drawn = finding.locator("svg g.arrow[data-hop]").first
    hop = drawn.get_attribute("data-hop")
    line = finding.locator(f"li[data-hop='{hop}']")
    line.hover()
    assert "lit" in drawn.get_attribute("class").split()
    leaking.mouse.move(0, 0)
    leaking.locator("h1").hover()
    assert leaking.locator(".lit").count() == 0
    drawn.locator("path").dispatch_event("pointerover")
    assert "lit" in line.get_attribute("class").split()
    leaking.locator("h1").hover()
    line.focus()
    assert "lit" in drawn.get_attribute("class").split()


def test_a_link_to_a_finding_unfolds_it(pages: Pages) -> None:
    opened = pages.open(page("8 ranks"))
    folded = opened.locator("details article.finding").last
    name = folded.get_attribute("id")
    assert not folded.is_visible()
    opened.evaluate("name => { location.hash = name }", name)
    folded.wait_for(state="visible")
    again = pages.open(page("8 ranks"), fragment=f"#{name}").locator(f"article[id='{name}']")
    again.wait_for(state="visible")
    opened.wait_for_function(
        "name => { const at = document.getElementById(name).getBoundingClientRect();"
        "return at.top < innerHeight && at.bottom > 0 }",
        arg=name,
    )


def test_the_list_of_findings_stays_in_view_and_marks_the_current_one(several: Page) -> None:
    links = several.locator(".findings-list a[href^='#']")
    assert links.count() == LEAKS
    several.locator("article.finding").nth(1).evaluate("one => one.scrollIntoView()")
    several.wait_for_function("document.querySelector('.findings-list a[aria-current]')")
    assert links.first.locator("visible=true").count() == 1
    top = several.locator(".findings-list").bounding_box()["y"]
    assert 0 <= top < 100


FOREIGN = "<script>document.title = 'foreign'</script>"


def runs_its_own(opened: Page) -> bool:
    return opened.evaluate("typeof showTarget") == "function"  # a name of the script's


def test_the_page_runs_its_own_script_and_loads_nothing(pages: Pages) -> None:
    opened = pages.open(page("leaking"))
    assert runs_its_own(opened) and pages.console == []
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
    assert any("Content Security Policy" in text for text in pages.console)
    assert runs_its_own(opened)


def test_without_the_policy_it_would_run(pages: Pages) -> None:
    smuggled = page("leaking").replace("</main>", f"{FOREIGN}</main>")
    smuggled = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", smuggled)
    assert pages.open(smuggled).title() == "foreign"


def test_changed_by_one_character_its_own_script_does_not_run(pages: Pages) -> None:
    changed = page("leaking").replace('"use strict";', '"use strict"; ')
    assert not runs_its_own(pages.open(changed))


def test_the_page_is_complete_without_javascript(pages: Pages) -> None:
    with_script, without = pages.open(page("leaking")), pages.open(page("leaking"), scripts=False)
    assert without.locator("button, form, input").count() == 0
    with_script.locator(".copy, .filter, .zooming").evaluate_all("parts => parts.forEach(part => part.remove())")
    text = "document.querySelector('main').textContent.replace(/\\s+/g, ' ')"
    assert without.evaluate(text) == with_script.evaluate(text)
    assert without.locator("main").inner_text().strip()
