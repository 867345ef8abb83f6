"""All formats stay valid with arbitrary text in names, paths and messages of a run."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from importlib.resources import files

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples
from support.formats import junit_rules, markdown_rules, sarif_rules, trace_rules

from leakscope.findings.model import Findings
from leakscope.report import FORMATS
from leakscope.run.model import Run

_SCHEMA = jsonschema.Draft202012Validator(
    json.loads(files("leakscope.report.formats").joinpath("findings.schema.json").read_text())
)
CONTROL = "\x00\x1b[2J\u202e\ud800\ufffe"
NASTY = (
    examples.HOSTILE,
    "a b:3 c/train it.py",
    "=HYPERLINK(1)|@team #12 https://x.y www.x.y GH-3",
    "```\n</details>\n\n# h\n- [x](javascript:1) ![i](x)\n~~~",
    "</pre></code></td>\n|a|b|\n|-|-|",
    "\"\\\n\t{0} %s $$x$$ <!-- ]]> &amp; '",
    "../../etc/passwd",
    "file:///x",
    "//host/x",
    "\u200b@me \u00e9\u0301 \U0001f600",
    CONTROL,
    "`",
    "0",
    "- 1. x",
    "====",
    "# x",
    "",
    " ",
)
TEXT = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=30),
    st.lists(st.sampled_from([*"`|<>@#*_[]()!&;:/\\\n ~=+-\"'$w.", "www", "://", "</", "gh-1", "x"]), max_size=15).map(
        "".join
    ),
)


def all_problems(run: Run, findings: Findings) -> list[str]:
    reported = {name: FORMATS[name](run, findings) for name in ("text", "json", "sarif", "junit", "markdown", "trace")}
    for each in reported.values():
        assert "\x1b" not in each and "\x00" not in each and "\u202e" not in each
    return [
        *(str(error) for error in _SCHEMA.iter_errors(json.loads(reported["json"]))),
        *sarif_rules.problems(json.loads(reported["sarif"])),
        *junit_rules.problems(reported["junit"]),
        *markdown_rules.problems(reported["markdown"]),
        *trace_rules.problems(json.loads(reported["trace"])),
    ]


@pytest.mark.parametrize("name", examples.ALL)
def test_every_example_obeys_the_rules_of_each_format(name: str) -> None:
    assert all_problems(*examples.ALL[name]()) == []


def test_what_is_known_to_break_things() -> None:
    assert [(text, problem) for text in NASTY for problem in all_problems(*examples.hostile(text))] == []


class _Tags(HTMLParser):
    """Every tag of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)


def tags(text: str) -> set[str]:
    parser = _Tags()
    parser.feed(FORMATS["html"](*examples.hostile(text)))
    return parser.found


@pytest.mark.process
def test_a_page_has_no_tag_that_is_not_its_own() -> None:
    own = tags("plain")
    for text in (*NASTY[:6], CONTROL):
        assert tags(text) <= own, text


@settings(max_examples=20, deadline=None)
@given(TEXT)
def test_any_text(text: str) -> None:
    assert all_problems(*examples.hostile(text)) == []
