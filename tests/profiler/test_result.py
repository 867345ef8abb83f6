"""Results print, display in notebooks, convert to every format and rejudge recorded runs."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support import examples

from leakscope.errors import LeakscopeError
from leakscope.profiler.result import Result, judge
from leakscope.report import FORMATS
from leakscope.run.reader import read_run
from leakscope.run.rows import MadeBy
from leakscope.verdict import Returned


def result(name: str) -> Result:
    return Result.of(*examples.ALL[name]())


class Seen(HTMLParser):
    """Elements, their attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", examples.ALL)
def test_its_repr_is_one_line_and_its_str_the_report(name: str) -> None:
    found = result(name)
    plain = examples.ALL[name]()[1]
    for value in (found, plain, found.run, *found.findings):
        assert "\n" not in repr(value) and len(repr(value)) < 250
    assert repr(found).startswith("<Result: ") and repr(plain).startswith("<Findings: ")
    assert str(found) == FORMATS["text"](found.run, replace(plain, returned=Returned.NOT))
    assert json.loads(found.to_json()) == json.loads(FORMATS["json"](found.run, plain))


@pytest.mark.parametrize("name", examples.ALL)
def test_a_notebook_gets_whole_elements_that_load_and_run_nothing(name: str) -> None:
    shown = Seen(result(name)._repr_html_())
    assert shown.open == []
    assert shown.tags <= {"div", "p", "b", "span", "pre", "code", "details", "summary", "ul", "li", "wbr"}
    assert shown.attributes.keys() <= {"style", "class", "open"}
    assert not any("url(" in style for style in shown.attributes["style"])


@pytest.mark.process
def test_a_result_that_no_command_recorded_names_no_exit_status_and_no_command() -> None:
    run, findings = examples.leaking()
    changed = Result.of(examples.run(*run.ranks, made_by=MadeBy.CHECK), findings)
    for text in (str(changed), changed._repr_html_(), FORMATS["html"](changed.run, changed)):
        assert "xit status" not in text and "same command" not in text


@pytest.mark.process
def test_the_suffix_names_the_format_and_a_folder_gets_the_page(tmp_path: Path) -> None:
    found = result("leaking")
    for name, form in (("a.html", "html"), ("b.txt", "text"), ("c.JSON", "json"), ("d.trace.json", "trace")):
        assert found.report(tmp_path / name) == tmp_path / name
        assert (tmp_path / name).read_text(encoding="utf-8") == FORMATS[form](found.run, found)
    for folder in (tmp_path / "new" / "folder", tmp_path):
        assert found.report(str(folder)) == folder
        assert {"findings.json", "report.html"} <= {path.name for path in folder.iterdir()}
    found.report(f"{tmp_path}/run.2026/")
    assert (tmp_path / "run.2026" / "report.html").exists()


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    found = result("clean")
    with pytest.raises(LeakscopeError, match=r"leaks\.pdf"):
        found.report(tmp_path / "leaks.pdf")
    with pytest.raises(LeakscopeError, match="No such file or directory"):
        found.report(tmp_path / "nowhere" / "leaks.txt")
    (tmp_path / "file").touch()
    with pytest.raises(LeakscopeError, match="cannot write"):
        found.report(tmp_path / "file" / "folder")


def test_a_recorded_run_is_judged_to_a_result() -> None:
    run = read_run(Path(__file__).parents[2] / "sample_runs/p2p_pipeline/none")
    found = judge(run)
    assert found.run is run and str(found) == FORMATS["text"](run, found)
