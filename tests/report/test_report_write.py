"""Reports are written completely beside `run.json`, and installed packages can add formats."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from leakscope_cli.outputs import render_format
from support import examples

from leakscope.errors import LeakscopeError
from leakscope.report import FORMATS, write

NAMES = ["text", "json", "html", "markdown", "sarif", "junit", "trace"]


@pytest.mark.process
def test_the_page_and_the_findings_are_written_again_and_again_alike(tmp_path: Path) -> None:
    run, findings = examples.leaking()
    write(run, findings, tmp_path)
    write(run, findings, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["findings.json", "report.html"]
    assert json.loads((tmp_path / "findings.json").read_text()) == json.loads(FORMATS["json"](run, findings))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == FORMATS["html"](run, findings)
    with pytest.raises(OSError):
        write(run, findings, tmp_path / "nowhere")


TINY = """
class Tiny:
    name, suffix = "tiny", ".tiny"

    def render(self, run, findings):
        return f"{findings.verdict}, {len(run.ranks)} ranks"

TINY = Tiny()
"""


def test_an_installed_package_adds_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "tiny_format-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny_format\nVersion: 1.0\n")
    entries = "tiny = tiny_format:TINY\njson = tiny_format:TINY\ngone = tiny_format:GONE\n"
    (about / "entry_points.txt").write_text(f"[leakscope.formats]\n{entries}")
    (tmp_path / "tiny_format.py").write_text(TINY)
    monkeypatch.syspath_prepend(tmp_path)
    assert list(FORMATS) == [*NAMES, "gone", "tiny"]
    assert "tiny_format" not in sys.modules, "imported only when used"
    assert FORMATS["tiny"](*examples.leaking()) == "leaks, 2 ranks"
    assert FORMATS["json"](*examples.leaking()).startswith("{"), "own names are reserved"
    with pytest.raises(LeakscopeError, match="tiny_format:GONE"):
        FORMATS["gone"]
    with pytest.raises(KeyError):
        FORMATS["pdf"]


@pytest.mark.parametrize("returned", ["1 / 0", "b'not text'"])
def test_a_format_of_another_package_that_fails_is_one_error(returned: str) -> None:
    class Broken:
        name, suffix = "broken", ".broken"

        def render(self, run: object, findings: object) -> str:
            return eval(returned)  # type: ignore[no-any-return]

    with pytest.raises(LeakscopeError, match="broken"):
        render_format(Broken(), *examples.leaking())
