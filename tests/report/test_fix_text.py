"""A verified fix is in every format with its diff and its proof; an edit that was not verified is in none."""

from __future__ import annotations

import json
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
from support import examples
from support.formats.sarif_rules import problems

from leakscope.findings.model import Suggestion
from leakscope.report import FORMATS, notebook
from leakscope.report.fix_text import growth_rows, hunks, proof_text, shown_hunks, verified_fix
from leakscope.report.text.page import render
from leakscope.report.verdict_text import next_text
from leakscope.run.fixes import Fix
from leakscope.run.model import Run
from leakscope.run.reader import read_run
from leakscope.run.rows import from_json, to_json
from leakscope.run.writer import prepare_folder, write_fix, write_run

TEXTS = (*(FORMATS[name] for name in ("text", "html", "markdown", "json", "sarif", "junit")), notebook.render)
ADDED = "self.losses.append(loss.item())"


def crlf(diff: str) -> str:
    """The diff of a file with carriage returns."""
    head = ("diff ", "--- ", "+++ ", "@@ ")
    return "".join(line if line.startswith(head) else f"{line[:-1]}\r\n" for line in diff.splitlines(keepends=True))


def with_diff(diff: str) -> Run:
    return replace(examples.fixed()[0], fix=examples.fix(diff))


@pytest.mark.process
def test_only_a_verified_edit_is_shown() -> None:
    run, findings = examples.fixed()
    edit = Suggestion("stage.py:40", "def extract(node):", "def unproved(node):")
    found = replace(findings, findings=tuple(replace(one, suggestion=edit) for one in findings.findings))
    for text in (render(run, found, verbose=True), *(form(run, found) for form in TEXTS)):
        assert "unproved" not in text and "nsuggest" not in text
    for form in (FORMATS["text"], FORMATS["html"], FORMATS["markdown"], FORMATS["json"], FORMATS["sarif"]):
        assert ADDED in form(run, found) and ADDED not in form(replace(run, fix=None), found)
    assert ADDED in notebook.render(run, found)


def test_a_diff_is_parsed_by_its_line_counts() -> None:
    first, second = hunks(examples.DIFF)
    assert (first.where, second.where) == ("train.py:12", "train.py:22")
    assert [(line.sign, line.number) for line in second.lines] == [(" ", 20), (" ", 21), ("+", 22)]
    odd = "--- a/x.py\n+++ b/x.py\n@@ -3 +3,2 @@\n--- a/removed\n+++ b/added\n+@@ -1 +1 @@\n"
    (only,) = hunks(odd)
    assert [line.text for line in only.lines] == ["-- a/removed", "++ b/added", "@@ -1 +1 @@"]
    assert hunks("") == hunks("@@ -1,3 +1,3 @@\nbroken") == hunks("no diff at all\n") == ()


def test_few_unchanged_lines_are_kept_and_no_carriage_return() -> None:
    near = "--- a/x.py\n+++ b/x.py\n@@ -1,7 +1,7 @@\n-a\n+b\n c\n d\n e\n f\n-g\n+h\n"
    parts = shown_hunks(near, around=1)
    assert [(part.where, "".join(line.sign + line.text for line in part.lines)) for part in parts] == [
        ("x.py:1", "-a+b c"),
        ("x.py:6", " f-g+h"),
    ]
    for returns in ("\r", "\\r"):  # as read, and as `cleaned` escapes it
        diff = crlf(near).replace("\r", returns)
        assert [part.lines for part in shown_hunks(diff, around=1)] == [part.lines for part in parts]


def sarif_fixes(run: Run) -> list[dict[str, Any]]:
    log = json.loads(FORMATS["sarif"](run, examples.leaking()[1]))
    assert list(problems(log)) == []
    results = log["runs"][0]["results"]
    assert [result["partialFingerprints"]["leakscope/v1"] for result in results if "fixes" in result] in (
        [],
        ["0f3a9c11"],
    )
    return [fix for result in results for fix in result.get("fixes", [])]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["a", "b", "c", "d", "e"], ["a", "B", "c", "d", "e"]),
        (["a", "b", "c", "d", "e"], ["a", "new", "b", "c", "d", "e", "end"]),
        (["a", "b", "c", "d", "e"], ["b", "c", "d"]),
        (["a", "b", "c", "d", "e"], ["first", "a", "c", "D", "more"]),
        (["a"], ["x", "a"]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_replacements_of_sarif_make_the_new_file(before: list[str], after: list[str], end: str) -> None:
    lines = ([f"{line}{end}" for line in each] for each in (before, after))
    (fix,) = sarif_fixes(with_diff("".join(unified_diff(*lines, "a/train.py", "b/train.py", lineterm="\n"))))
    (change,) = fix["artifactChanges"]
    assert change["artifactLocation"] == {"uri": "train.py", "uriBaseId": "SRCROOT"}
    new = list(before)
    for one in reversed(change["replacements"]):
        region = one["deletedRegion"]
        new[region["startLine"] - 1 : region["endLine"]] = one["insertedContent"]["text"].split(end)
    assert new == after


def test_a_fix_that_sarif_cannot_hold_is_left_out() -> None:
    assert sarif_fixes(with_diff(examples.DIFF.replace("train.py", "../train.py"))) == []
    assert sarif_fixes(with_diff(examples.DIFF.replace("loss.item()", "'\udce9'"))) == []
    assert sarif_fixes(with_diff("damaged")) == []


def test_figures_are_of_common_steps_and_the_proof_names_what_was_compared() -> None:
    run, fix = examples.fixed()[0], examples.fix()
    assert growth_rows(fix)[1:] == (
        ("without the fix", "4.00 MiB", "7.00 MiB"),
        ("with the fix", "4.00 MiB", "4.00 MiB"),
    )
    assert growth_rows(replace(fix, after=())) == ()
    assert "bit" in proof_text(run, fix) and "42 steps" in proof_text(run, fix)
    other = replace(fix, is_deterministic=False, steps=None)
    assert "distribution" in proof_text(run, other) and "12 steps" in proof_text(run, other)


def test_json_has_the_result_of_each_leak() -> None:
    data = json.loads(FORMATS["json"](*examples.fixed()))
    assert [finding["fix"] and finding["fix"]["status"] for finding in data["findings"]] == [
        "none",
        "verified",
        None,
        None,
    ]
    assert data["findings"][1]["fix"]["diff"] == examples.DIFF == data["fix"]["patch"]
    assert [leak["status"] for leak in data["fix"]["leaks"]] == ["none", "verified"]
    assert data["fix"]["tries"][0]["refused"] and not data["fix"]["complete"]


def test_the_next_step_names_the_command_once() -> None:
    run, findings = examples.leaking()
    for folder, command in (("leakscope_runs/a b", "`leakscope fix`"), ("runs/a b", "`leakscope fix 'runs/a b'`")):
        repeated = replace(run, folder=folder, can_repeat=True)
        assert (
            next_text(repeated, findings).count(command) == 1 == FORMATS["text"](repeated, findings).count("cope fix")
        )
    assert "leakscope fix" not in next_text(run, findings), "how it was started was not recorded"
    assert "leakscope fix" not in next_text(replace(repeated, sources={}), findings)
    assert "leakscope fix" not in next_text(repeated, replace(findings, findings=()))
    fixed = examples.fixed()[0]
    assert "git apply leakscope_runs/train/fix.patch" in next_text(replace(fixed, can_repeat=True), findings)
    none = replace(fixed, fix=replace(examples.fix(), patch=""))
    assert "fix" not in next_text(none, findings)


def test_the_result_is_read_and_a_damaged_one_is_a_note(tmp_path: Path) -> None:
    write_run(tmp_path, {"command": ["train.py"], "ranks": 1, "launch": {"options": {"nnodes": 1}}})
    write_fix(tmp_path, examples.fix())
    run = read_run(tmp_path)
    assert run.fix == examples.fix() == from_json(Fix, to_json(examples.fix())) and run.can_repeat
    assert (tmp_path / "fix.patch").read_text() == examples.DIFF
    assert verified_fix(run, examples.growth_finding()) == examples.fix().leaks[1]
    assert verified_fix(run, examples.cycle_finding()) is None
    for content in ("{", "[]", '{"leaks": 3}'):
        (tmp_path / "fix.json").write_text(content)
        damaged = read_run(tmp_path)
        assert damaged.fix is None and any("fix.json" in note for note in damaged.notes)
    (tmp_path / "fix" / "try_01").mkdir(parents=True)
    prepare_folder(tmp_path, force=True)
    assert list(tmp_path.iterdir()) == [], "nothing of the fix of an earlier recording is left"
