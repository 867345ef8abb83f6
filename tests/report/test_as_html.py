"""The HTML report is one offline, deterministic file that escapes everything taken from the run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from support import ROOT, examples
from support.browser import Pages

from leakscope.report import FORMATS
from leakscope.report.html.page import script
from leakscope.run.model import Ended
from leakscope.run.rows import EndKind

VOID = {"meta", "br", "img", "link", "hr", "input", "wbr"}
LOADING = {"src", "href", "xlink:href", "data", "action", "srcset", "poster", "formaction"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; refuses tags that do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page(name: str) -> str:
    return FORMATS["html"](*examples.ALL[name]())


@pytest.mark.process
@pytest.mark.parametrize("name", examples.ALL)
def test_page_is_whole_and_offline_with_no_script_but_its_own(name: str) -> None:
    text = page(name)
    parsed = Page(text)
    assert parsed.tags.count("script") == 1 and f"<script>{script()}</script>" in text
    text = text.replace(script(), "")
    assert not {"img", "iframe", "link", "object", "embed", "foreignobject"} & set(parsed.tags)
    for _, attribute, value in parsed.attributes:
        assert not attribute.startswith("on")
        assert attribute not in LOADING or value.startswith("#")
    assert "@import" not in text and not re.search(r"url\(\s*['\"]?(?!#)", text)
    ids = [value for _, attribute, value in parsed.attributes if attribute == "id"]
    assert len(ids) == len(set(ids))


@pytest.mark.process
@pytest.mark.parametrize("name", examples.ALL)
def test_same_input_gives_the_same_bytes(name: str) -> None:
    assert page(name) == page(name)


@pytest.mark.process
def test_page_tells_what_was_found() -> None:
    text = page("leaking")
    words = " ".join(" ".join(Page(text).words).split())
    for said in (
        "2 distinct leaks", "frees 768.00 KiB", "closure extract", "cut here", "self.losses.append(loss)",
        "stage.py:41 forward (aten::addmm)", "rank 1",
        "lifetimes were not recorded", "stopped by leakscope after 12 steps",
    ):  # fmt: skip
        assert said in words, said
    assert text.count('<svg class="plot"') == 1, "all ranks on one axis"
    assert text.count('<svg class="timeline"') == 1
    assert text.count('class="drawing"') == (3 if shutil.which("dot") else 0)
    assert "var(--series-10)" in text and not re.search("#0[23]00", text)


def test_categories_that_held_nothing_are_left_out() -> None:
    text = page("clean")
    assert '<td data-label="optimizer state">4.00 MiB</td>' in text and 'data-label="leaked"' not in text


@pytest.mark.process
def test_what_a_hostile_run_says_is_shown_as_text() -> None:
    text = page("hostile")
    assert "<img" not in text and text.count("</script>") == 1  # the page's own
    assert "{{ 7*7 }}" in text and "&lt;img src=x" in text
    assert "\x1b" not in text and "\u202e" not in text and "\x00" not in text


def test_every_rank_and_how_it_ended_is_named() -> None:
    words = " ".join(Page(page("killed")).words)
    assert "killed by SIGKILL after 5 steps" in words
    assert "RuntimeError: Connection closed by peer" in words
    assert "ended without a status before its first step" in words


def test_a_note_that_holds_nothing_names_no_holder() -> None:
    text = FORMATS["html"](*examples.of_a_dropped_work())
    assert text.count("<article ") == 1 and "seen 116 times" in text
    assert '<ol class="trace">' not in text and '<p class="cutbox' not in text and "<dt>freed by</dt>" not in text


def test_a_rank_that_hung_has_raised_nothing() -> None:
    page_of = Page(FORMATS["html"](*examples.failed_as(Ended(EndKind.HUNG, 124, 8, error="nothing happened for 8 s"))))
    words = " ".join(" ".join(page_of.words).split())
    assert "Rank 0 hung after 8 steps nothing happened for 8 s" in words and "raised" not in words


def test_ranks_that_did_the_same_have_one_line() -> None:
    run = examples.run(*(examples.rank(n, count=4) for n in range(20)))
    _, findings = examples.clean()
    text = FORMATS["html"](run, replace(findings, ranks={}))
    assert Page(text) and "of each step: rank 0, one of 20 alike" in text and text.count('class="line ') == 1


def test_a_rank_on_an_accelerator_shows_its_absolute_memory_and_peak() -> None:
    one = examples.rank(0)
    one = type(one)(**{**vars(one), "steps": examples.steps(12, examples.MIB, examples.MIB, peak=True)})
    _, findings = examples.clean()
    text = FORMATS["html"](examples.run(one, device="cuda"), findings)
    assert "</i>peak</li>" in text and "Allocated at the end of each step" in text and "Growth since" not in text


@pytest.mark.parametrize("name", ["hostile", "leaking"])
def test_a_real_browser_opens_the_page(name: str, pages: Pages) -> None:
    opened = pages.open(page(name))
    assert opened.title().startswith("leakscope: leaks")
    assert opened.locator("h2").count() > 0 and opened.locator("img").count() == 0
    assert [address.split(":")[0] for address in pages.requests] == ["file"]


BLOCKED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Refuse())
import leakscope.report
for name in ("matplotlib", "graphviz", "jinja2"):
    assert name not in sys.modules, name
from support import examples
for form in {forms!r}:
    assert leakscope.report.FORMATS[form](*examples.leaking())
"""


@pytest.mark.parametrize(
    ("blocked", "forms"),
    [
        (["torch"], ["text", "json", "html", "sarif", "junit"]),
        (["torch", "matplotlib", "graphviz", "jinja2"], ["text", "json", "sarif", "junit"]),
    ],
)
def test_rendering_needs_no_torch_and_imports_only_what_it_draws_with(
    blocked: list[str], forms: list[str], with_support: dict[str, str]
) -> None:
    code = BLOCKED.format(blocked=blocked, forms=forms)
    command = [sys.executable, "-c", code]
    answer = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, cwd=ROOT, env=with_support
    )
    assert answer.returncode == 0, answer.stderr
