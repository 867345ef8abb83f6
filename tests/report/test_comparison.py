"""Comparisons of two runs give each changed leak with its rate and line, in every format."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from support.examples import HOSTILE, growth_finding, rank, run

from leakscope.findings.comparison import Judged, RunComparison, compare
from leakscope.findings.facts import StaticText
from leakscope.findings.model import Cut, CutReference, Finding, Findings
from leakscope.report.compare import FORMATS, headline, line_of
from leakscope.verdict import Verdict

KIB = 1024


def judged(*findings: Finding, name: str = "train.py", verdict: Verdict | None = None, folder: str = "") -> Judged:
    message = verdict or (Verdict.LEAKS if findings else Verdict.CLEAN)
    return Judged(run(rank(0), rank(1), command=(name,), folder=folder), Findings(message, "why it is so", 0, findings))


def changed() -> RunComparison:
    """One leak of each kind."""
    grown = growth_finding()
    named = [replace(grown, fingerprint=name, bytes_per_step=256.0 * KIB) for name in ("new", "worse", "same", "gone")]
    new, worse, same, gone = named
    faster = replace(worse, bytes_per_step=1024.0 * KIB)
    return compare(judged(worse, same, gone, folder="before"), judged(new, faster, same, folder="after"))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_lists_each_leak_with_rate_and_line(name: str) -> None:
    text = FORMATS[name](changed())
    for fingerprint in ("new", "worse", "same", "gone"):
        assert re.search(rf'(\[|"|>|&#91;){fingerprint}(\]|"|<|&#93;)', text), fingerprint
    assert "train.py:12" in text and "leaks: 1 new, 1 worse, 1 persisting, 1 fixed" in text.lower()
    if name != "json":
        assert "256.00 KiB" in text and "1.00 MiB a step" in text


def test_json_has_a_number_and_what_is_unknown_is_null() -> None:
    data = json.loads(FORMATS["json"](changed()))
    assert (data["format"], data["exit_status"], data["could_be_judged"], data["are_related"]) == (1, 23, True, True)
    assert data["counts"] == {
        "new": 1, "worse": 1, "persisting": 1, "better": 0, "not_seen": 0, "suppressed": 0, "fixed": 1,
    }  # fmt: skip
    by_change = {leak["change"]: leak for leak in data["leaks"]}
    assert by_change["new"]["base_bytes_per_step"] is None and by_change["fixed"]["new_bytes_per_step"] is None
    assert (by_change["worse"]["base_bytes_per_step"], by_change["worse"]["new_bytes_per_step"]) == (262144, 1048576)


def test_the_headline_names_a_run_that_could_not_be_judged() -> None:
    found = compare(judged(growth_finding()), judged(verdict=Verdict.INCONCLUSIVE))
    assert not found.could_be_judged and "NEW" in headline(found) and "BASE" not in headline(found)
    both = compare(judged(verdict=Verdict.INCONCLUSIVE), judged(verdict=Verdict.INCONCLUSIVE))
    assert "BASE and NEW" in headline(both)


def test_the_line_is_that_of_what_adds_to_it() -> None:
    cut = Cut((CutReference(".losses", "train.py:12", added_at=("train.py:31",)),), 1)
    found = replace(growth_finding(), cut=cut, made_at=("my project/train.py:41 forward (aten::mm)",))
    assert line_of(found) == "train.py:31"
    assert (
        line_of(replace(found, cut=replace(cut, references=(CutReference(".losses", "train.py:12"),)))) == "train.py:12"
    )
    assert line_of(replace(found, cut=None)) == "my project/train.py:41"
    assert line_of(replace(found, cut=None, made_at=())) == ""


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_what_comes_from_a_run_is_text() -> None:
    evil = replace(growth_finding(), facts=StaticText(HOSTILE, HOSTILE), fingerprint="f|f", subject=HOSTILE)
    found = compare(judged(folder=HOSTILE), judged(evil, name=HOSTILE, folder=HOSTILE))
    page = _Tags()
    page.feed(FORMATS["html"](found))
    assert not {"img", "script"} & set(page.tags)
    text = FORMATS["markdown"](found)
    assert set(re.findall("<[^>]*>", text)) <= {"<code>", "</code>"}
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows and {row.count("|") for row in rows} == {5}, "a cell is one cell"
