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


def test_a_finding_is_selected_by_fingerprint_or_number() -> None:
    _, findings = examples.leaking()
    cycle, growth = findings.findings[:2]
    assert finding_named(findings, cycle.fingerprint) is finding_named(findings, "b4") is finding_named(findings, "1")
    assert finding_named(findings, "2") is finding_named(findings, "0f3") is growth
    suppressed = replace(findings, findings=(), suppressed=(replace(growth, fingerprint="12345678"),))
    assert finding_named(suppressed, "12345678") is finding_named(suppressed, "123") is suppressed.suppressed[0]
    both = replace(findings, findings=(*findings.findings, replace(growth, fingerprint="0f000000")))
    for found, name in ((findings, "zz"), (findings, ""), (both, "0"), (examples.clean()[1], "1")):
        with pytest.raises(LeakscopeError):
            finding_named(found, name)


@pytest.mark.process
@needs_dot
@pytest.mark.parametrize("text", [examples.HOSTILE, 'a"b\\\nc\\l', "\\N \\G", "", "=;[]{}\x00\u202e é"])
def test_graphviz_reads_any_name(text: str) -> None:
    finding = examples.hostile(text)[1].findings[0]
    drawn = json.loads(graphviz.Source(finding_dot(finding)).pipe(format="json", encoding="utf-8"))
    assert len(drawn["objects"]) >= 2 and len(drawn["edges"]) >= 2
    assert drawing.rendered(finding_dot(finding), "png").startswith(b"\x89PNG\r\n")
    ElementTree.fromstring(drawing.rendered(finding_dot(finding), "svg"))


@pytest.mark.process
def test_without_dot_the_source_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    run, findings = examples.leaking()
    assert str(Picture("dot", "1").render(run, findings)).startswith("digraph")
    for name in ("svg", "png"):
        with pytest.raises(LeakscopeError, match="install graphviz"):
            Picture(name, "1").render(run, findings)


@pytest.mark.process
@needs_dot
def test_report_draws_the_selected_finding(tmp_path: Path) -> None:
    files = [f"{name}={tmp_path / name}" for name in ("dot", "svg", "png")]
    words = [word for file in files for word in ("--as", file)]
    result = CliRunner().invoke(main, ["report", RUN, *words, "--finding", "1"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "png").read_bytes().startswith(b"\x89PNG") and (tmp_path / "svg").read_text().startswith("<svg")
    alone = CliRunner().invoke(main, ["report", RUN, "--as", "dot", "--finding", "1"])
    assert alone.stdout == (tmp_path / "dot").read_text()
    assert "var(--" not in (tmp_path / "svg").read_text(), "no style of a page"
    for line in (["--as", "svg"], ["--finding", "1"], ["--as", "svg", "--finding", "zz"]):
        wrong = CliRunner().invoke(main, ["report", RUN, *line])
        assert wrong.exit_code == 2 and len(wrong.output.splitlines()) == 1
