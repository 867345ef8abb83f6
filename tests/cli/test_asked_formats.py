"""`--as FORMAT[=FILE]` selects the outputs and is validated before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from leakscope_cli import main
from leakscope_cli.outputs import check_writable, parse_formats, stdout_format, write_files
from support import ROOT, examples

from leakscope.errors import LeakscopeError
from leakscope.options import Options

RUN = str(ROOT / "sample_runs/p2p_pipeline/none")


def places(*words: str, output: Path | None = None) -> list[tuple[str, str]]:
    return [(one.form.name, str(one.file or "stdout")) for one in parse_formats(words, output)]


def test_text_goes_to_stdout_unless_another_format_does(tmp_path: Path) -> None:
    assert places() == [("text", "stdout")]
    assert places("sarif=a.sarif", "html=b.html") == [("text", "stdout"), ("sarif", "a.sarif"), ("html", "b.html")]
    assert places("json", "html=b=c.html") == [("json", "stdout"), ("html", "b=c.html")]
    assert places("json=-") == places("json", "json") == [("json", "stdout")]
    assert places(f"junit={tmp_path}") == [("text", "stdout"), ("junit", f"{tmp_path}/findings.xml")]
    assert places("junit=later/") == [("text", "stdout"), ("junit", "later/findings.xml")]


def test_output_is_the_file_of_a_format_without_one() -> None:
    assert places(output=Path("o")) == [("text", "o")]
    assert places("html", output=Path("o")) == [("html", "o")]
    assert places("html", "json=j", output=Path("o")) == [("html", "o"), ("json", "j")]


@pytest.mark.parametrize("words", [["pdf"], ["=x"], ["json="], ["json", "html"], ["json=x", "html=x"]])
def test_wrong_formats_are_refused(words: list[str]) -> None:
    with pytest.raises(LeakscopeError):
        parse_formats(words)


def test_unwritable_files_are_refused_beforehand_and_none_is_created(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("kept")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    check_writable(parse_formats([f"json={there}", f"html={tmp_path / 'new.html'}", f"sarif={fifo}"]))
    assert there.read_text() == "kept" and sorted(os.listdir(tmp_path)) == ["fifo", "there.json"]
    nowhere = parse_formats([f"json={tmp_path / 'gone' / 'x.json'}"])
    with pytest.raises(LeakscopeError, match=r"x\.json: No such file or directory"):
        check_writable(nowhere)
    check_writable(nowhere, made_later=tmp_path / "gone")
    with pytest.raises(LeakscopeError, match=r"cannot write /proc/x\.json"):
        check_writable(parse_formats(["json=/proc/x.json"]))


def test_formats_on_stdout_are_reserved() -> None:
    assert not Options().needs_stdout and not Options(formats=("text", "json=x")).needs_stdout
    assert Options(as_json=True).needs_stdout
    assert Options(formats=("html=x", "json")).needs_stdout and Options(formats=("junit=-",)).needs_stdout
    assert not Options(formats=("text=-",)).needs_stdout


def test_files_are_written_and_failures_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, findings = examples.leaking()
    requested = parse_formats([f"json={tmp_path / 'f.json'}", f"sarif={tmp_path / 'gone' / 'x'}"])
    failed = write_files(requested, run, findings)
    assert failed == (f"cannot write {tmp_path / 'gone' / 'x'}: No such file or directory",)
    assert (tmp_path / "f.json").read_text().startswith("{")
    assert capsys.readouterr().err == f"leakscope: json: {tmp_path / 'f.json'}\n"
    form = stdout_format(requested)
    assert form is not None and form.name == "text"


@pytest.mark.process
def test_report_writes_several_at_once(tmp_path: Path) -> None:
    page, log = tmp_path / "page.html", tmp_path / "log.sarif"
    result = CliRunner().invoke(main, ["report", RUN, "--as", f"html={page}", "--as", f"sarif={log}", "--as", "junit"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("<?xml") and page.read_text().startswith("<!") and log.read_text().startswith("{")
    for words in (["--as", "pdf"], ["--as", f"json={tmp_path / 'gone' / 'x'}"], ["-o", str(tmp_path / "gone" / "x")]):
        wrong = CliRunner().invoke(main, ["report", "no_run", *words])
        assert wrong.exit_code == 2 and len(wrong.output.splitlines()) == 1 and "run.json" not in wrong.output
