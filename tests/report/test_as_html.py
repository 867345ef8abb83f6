"""The HTML report is one offline, deterministic file that escapes everything taken from the run."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from support import ROOT, examples

from leakscope.report import FORMATS
from leakscope.report.html.page import script

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


BLOCKED = """
import sys
blocked = {"torch", "matplotlib", "graphviz", "jinja2"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Refuse())
import leakscope.report
from support import examples
for form in ("text", "json", "sarif", "junit"):
    assert leakscope.report.FORMATS[form](*examples.leaking())
blocked = {"torch"}
assert leakscope.report.FORMATS["html"](*examples.leaking())
"""


def test_rendering_needs_no_torch_and_only_the_page_needs_drawing_libraries(with_support: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED],
        check=False, capture_output=True, text=True, timeout=120, cwd=ROOT, env=with_support,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
