"""A finding selected by fingerprint or location is drawn as DOT, SVG or PNG."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import graphviz
import pytest
from click.testing import CliRunner
from leakscope_cli import main
from support import SAMPLES, examples

from leakscope.errors import LeakscopeError
from leakscope.report import drawing
from leakscope.report.drawing import Picture, finding_dot, finding_named

SVG = "{http://www.w3.org/2000/svg}"
RUN = str(SAMPLES / "p2p_pipeline" / "stage-backward-cycle")
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz's dot is not installed")


def test_a_finding_is_named_by_its_fingerprint_or_its_place() -> None:
    _, findings = examples.leaking()
    cycle, growth = findings.findings[:2]
    assert finding_named(findings, cycle.fingerprint) is finding_named(findings, "b4") is finding_named(findings, "1")
    assert finding_named(findings, "2") is finding_named(findings, "0f3") is growth
    suppressed = replace(findings, findings=(), suppressed=(replace(growth, fingerprint="12345678"),))
    assert finding_named(suppressed, "12345678") is finding_named(suppressed, "123") is suppressed.suppressed[0]
    for name, sentence in (
        ("zz", "no finding is 'zz'; there are b41c07e2, 0f3a9c11"),
        ("", "no finding is ''"),
        ("0", "begins the fingerprints of"),
    ):
        both = replace(findings, findings=(*findings.findings, replace(growth, fingerprint="0f000000")))
        with pytest.raises(LeakscopeError, match=sentence):
            finding_named(both, name)
    with pytest.raises(LeakscopeError, match="the run has none"):
        finding_named(examples.clean()[1], "1")


@pytest.mark.process
@needs_dot
@pytest.mark.parametrize("text", [examples.HOSTILE, 'a"b\\\nc\\l', "<b>x</b>", "\\N \\G", "", "=;[]{}", "\x00\u202e é"])
def test_graphviz_reads_whatever_names_there_are(text: str) -> None:
    finding = examples.hostile(text)[1].findings[0]
    drawn = json.loads(graphviz.Source(finding_dot(finding)).pipe(format="json", encoding="utf-8"))
    assert len(drawn["objects"]) >= 2 and len(drawn["edges"]) >= 2
    assert drawing.rendered(finding_dot(finding), "png").startswith(b"\x89PNG\r\n")
    ElementTree.fromstring(drawing.rendered(finding_dot(finding), "svg"))


@pytest.mark.process
@needs_dot
def test_an_svg_stands_alone() -> None:
    text = drawing.rendered(finding_dot(examples.cycle_finding()), "svg").decode()
    assert ElementTree.fromstring(text).tag == f"{SVG}svg" and "✂ cut here" in text
    assert "var(--" not in text and "http" not in text.replace("http://www.w3.org/", "")


@pytest.mark.process
def test_without_dot_the_source_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    run, findings = examples.leaking()
    assert str(Picture("dot", "1").render(run, findings)).startswith("digraph")
    for name in ("svg", "png"):
        with pytest.raises(LeakscopeError, match="install graphviz"):
            Picture(name, "1").render(run, findings)


def test_a_finding_without_references_cannot_be_drawn() -> None:
    with pytest.raises(LeakscopeError):
        finding_dot(replace(examples.growth_finding(), trace=(), cycle=()))


@pytest.mark.process
@needs_dot
def test_report_draws_the_finding_that_is_named(tmp_path: Path) -> None:
    files = [f"{name}={tmp_path / name}" for name in ("dot", "svg", "png")]
    words = [word for file in files for word in ("--as", file)]
    told = CliRunner().invoke(main, ["report", RUN, *words, "--finding", "1"])
    assert told.exit_code == 0, told.output
    assert (tmp_path / "png").read_bytes().startswith(b"\x89PNG") and (tmp_path / "svg").read_text().startswith("<svg")
    alone = CliRunner().invoke(main, ["report", RUN, "--as", "dot", "--finding", "1"])
    assert alone.stdout == (tmp_path / "dot").read_text()
    for line, sentence in (
        (["--as", "svg"], "leakscope report RUN --as svg=FILE --finding ID"),
        (["--finding", "1"], "--finding requires --as"),
        (["--as", "svg", "--finding", "zz"], "no finding is 'zz'; there are "),
    ):
        wrong = CliRunner().invoke(main, ["report", RUN, *line])
        assert wrong.exit_code == 2 and sentence in wrong.output and len(wrong.output.splitlines()) == 1


def test_a_picture_is_asked_for_like_a_format() -> None:
    run, findings = examples.leaking()
    picture = Picture("dot", "2")
    assert picture.suffix == ".dot" and picture.render(run, findings) == finding_dot(findings.findings[1])
