"""Copy buttons, filters, zoom, links and navigation of the page work in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.browser import PHONE, Pages, unfold
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


@pytest.mark.parametrize("what", [".cutbox code[data-copy]", ".facts code[data-copy]"])
def test_copy_takes_the_text_beside_the_button(what: str, leaking: Page) -> None:
    leaking.context.grant_permissions(["clipboard-read", "clipboard-write"])
    unfold(leaking)
    code = leaking.locator(what).first
    label = "Copy " + code.text_content().strip().splitlines()[0][:60]
    made = leaking.locator(f".copy[aria-label='{label}']").first
    made.click()
    leaking.wait_for_function("[...document.querySelectorAll('.copy')].some(made => made.textContent === 'copied')")
    assert leaking.evaluate("navigator.clipboard.readText()").split() == code.text_content().split() != []


def test_what_is_copied_of_an_edit_can_be_pasted(leaking: Page) -> None:
    leaking.context.grant_permissions(["clipboard-read", "clipboard-write"])
    assert "+\xa0del collect" in leaking.locator(".code.edit pre code").first.inner_text()
    made, box = leaking.locator(".code.edit .copy").first, leaking.locator(".code.edit figcaption").first
    made.click()
    leaking.wait_for_function("[...document.querySelectorAll('.copy')].some(made => made.textContent === 'copied')")
    assert leaking.evaluate("navigator.clipboard.readText()") == "collect(outputs, grads)\ndel collect"
    leaking.evaluate("getSelection().selectAllChildren(document.querySelector('.code.edit pre code'))")
    assert leaking.evaluate("getSelection().toString()").split() == ["collect(outputs,", "grads)", "del", "collect"]
    button, around = made.bounding_box(), box.bounding_box()
    assert button is not None and around is not None
    assert button["y"] + button["height"] <= around["y"] + around["height"], "it hangs out of its box"


def test_where_nothing_can_be_copied_the_text_is_marked_for_the_keys(leaking: Page) -> None:
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


def test_findings_are_filtered_by_text(several: Page) -> None:
    title = several.locator("article.finding h3").first.text_content()
    several.locator(".filter [name=text]").fill(title.partition(". ")[2].upper())
    assert shown(several.locator(".findings-list tr[data-ranks]")) == 1
    assert several.locator("article.finding").first.is_visible()


def test_what_is_found_unfolds(several: Page) -> None:
    folded = several.locator("details article.finding").last
    assert not folded.is_visible()
    several.locator(".filter [name=text]").fill(folded.get_attribute("id"))
    assert folded.is_visible()


def test_a_run_with_one_finding_and_few_ranks_needs_no_filter(leaking: Page) -> None:
    assert leaking.locator("form.filter").count() == 0


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


def test_a_line_of_the_trace_lights_its_reference_and_the_other_way_round(leaking: Page) -> None:
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


def test_a_link_to_a_finding_opens_what_it_is_folded_in(pages: Pages) -> None:
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


def test_a_link_shows_a_finding_that_was_filtered_out(several: Page) -> None:
    last = several.locator("article.finding").last
    several.locator(".filter [name=rank]").fill("100")
    assert not last.is_visible()
    several.evaluate("name => { location.hash = name }", last.get_attribute("id"))
    last.wait_for(state="visible")


def test_the_list_of_findings_stays_in_view_and_marks_where_one_is(several: Page) -> None:
    links = several.locator(".findings-list a[href^='#']")
    assert links.count() == LEAKS
    several.locator("article.finding").nth(1).evaluate("one => one.scrollIntoView()")
    several.wait_for_function("document.querySelector('.findings-list a[aria-current]')")
    assert links.first.locator("visible=true").count() == 1
    top = several.locator(".findings-list").bounding_box()["y"]
    assert 0 <= top < 100


def test_on_a_phone_the_list_is_not_in_the_way(pages: Pages) -> None:
    opened = pages.open(page("8 ranks"), PHONE)
    opened.locator("article.finding").nth(1).evaluate("one => one.scrollIntoView()")
    assert opened.locator(".findings-list").bounding_box()["y"] < 0
