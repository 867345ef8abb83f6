"""Reports are written completely beside `run.json`, and installed packages can add formats."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import examples

from leakscope.errors import LeakscopeError
from leakscope.findings.facts import StaticText
from leakscope.findings.model import Finding, Hop
from leakscope.report import FORMATS, write
from leakscope.report.excerpt import source_line
from leakscope.report.finding_text import suspects
from leakscope.report.rendering import cleaned

NAMES = ["text", "json", "html", "markdown", "sarif", "junit", "trace"]


@pytest.mark.process
def test_write_leaves_both_files_and_nothing_else(tmp_path: Path) -> None:
    run, findings = examples.leaking()
    write(run, findings, tmp_path)
    write(run, findings, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["findings.json", "report.html"]
    told = json.loads((tmp_path / "findings.json").read_text(encoding="utf-8"))
    assert told == json.loads(FORMATS["json"](run, findings))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == FORMATS["html"](run, findings)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        write(*examples.clean(), tmp_path / "nowhere")


def test_formats_are_named_and_an_unknown_one_is_a_key_error() -> None:
    assert list(FORMATS) == NAMES
    with pytest.raises(KeyError):
        FORMATS["pdf"]


TINY = """
class Tiny:
    name, suffix = "tiny", ".tiny"

    def render(self, run, findings):
        return f"{findings.verdict}, {len(run.ranks)} ranks"

TINY = Tiny()
"""


def install_formats(folder: Path, entries: str) -> None:
    """A package `tiny_format` with these entry points, as an installer leaves it."""
    about = folder / "tiny_format-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny_format\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[leakscope.formats]\n{entries}")
    (folder / "tiny_format.py").write_text(TINY)


def test_an_installed_package_adds_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_formats(tmp_path, "tiny = tiny_format:TINY\njson = tiny_format:TINY\ngone = tiny_format:GONE\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(FORMATS) == [*NAMES, "gone", "tiny"]
    assert "tiny_format" not in sys.modules, "a format is imported when it is asked for"
    assert FORMATS["tiny"](*examples.leaking()) == "leaks, 2 ranks"
    assert FORMATS["json"](*examples.leaking()).startswith("{"), "leakscope's own names are not to be had"
    with pytest.raises(LeakscopeError, match=r"the format gone \(tiny_format:GONE\) cannot be imported"):
        FORMATS["gone"]


@pytest.mark.process
@pytest.mark.parametrize("form", NAMES)
@pytest.mark.parametrize("name", examples.ALL)
def test_every_format_tells_every_example_the_same_way_twice(form: str, name: str) -> None:
    assert FORMATS[form](*examples.ALL[name]()) == FORMATS[form](*examples.ALL[name]())


def test_cleaning_leaves_no_character_that_moves_the_cursor() -> None:
    assert cleaned(("a\x1b[31m", {"\u202e": "ok\n\ttab é ✂"})) == ("a\\x1b[31m", {"\\u202e": "ok\n\ttab é ✂"})
    assert cleaned("\udc80\x00\x9b") == "\\udc80\\x00\\x9b"


def finding(*hops: tuple[str, str]) -> Finding:
    trace = tuple(Hop("object", "t", "instance", "", status, reference) for status, reference in hops)
    return Finding("step-growth", StaticText("", ""), "00000000", "leak", "program", 0, 0.0, trace, None)


def test_suspects_lie_between_the_last_expected_and_the_first_leaked_object() -> None:
    told = finding(("expected", ".a"), ("expected", ".b"), ("unknown", ".c"), ("leaked", ".d"), ("leaked", ""))
    assert suspects(told) == {1, 2}


def test_a_trace_leaked_all_round_suspects_the_cut() -> None:
    told = examples.cycle_finding()
    assert told.cut_position == 0 and suspects(told) == {0}


def test_source_lines_are_found_by_the_end_of_their_path() -> None:
    run = examples.run(sources={"/home/me/train.py": ("first", "  second  ")})
    assert source_line(run, "train.py:2 main (aten::mul)") == "second"
    spaced = examples.run(sources={"my project/train it.py": ("first", "second")})
    assert source_line(spaced, "my project/train it.py:2 main (aten::mul)") == "second"
    assert source_line(run, "train.py:9") == "" and source_line(run, "") == "" and source_line(run, "other.py:1") == ""
