"""`leakscope rule` lists the rules and explains each."""

from __future__ import annotations

import re
import sys

import pytest
from click.testing import CliRunner
from leakscope_cli import main

from leakscope.findings.facts import RuleName
from leakscope.findings.rules import RULES


def test_it_lists_each_rule_in_a_line() -> None:
    lines = CliRunner().invoke(main, ["rule"]).output.splitlines()
    assert [tuple(line.split(maxsplit=1)) for line in lines] == [(name, RULES[name].text) for name in RuleName]


def test_it_prints_a_rules_help_as_markdown() -> None:
    assert CliRunner().invoke(main, ["rule", "view-hold"]).output == RULES[RuleName.VIEW_HOLD].help


def test_on_a_terminal_the_help_is_set_in_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("NO_COLOR", "1")
    main(["rule", "view-hold"], standalone_mode=False)
    output = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "# view-hold" not in output and "```" not in output
    assert max(map(len, output.splitlines())) <= 70
    assert "summaries.append(hidden[0].clone())" in output


def test_an_unknown_name_is_one_sentence_with_those_that_are_close() -> None:
    refused = CliRunner().invoke(main, ["rule", "step-grwth"])
    assert refused.exit_code == 2 and refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1 and RuleName.STEP_GROWTH in refused.stderr
