"""What is ignored or in the baseline fails no test; a baseline is read, written and kept up to date."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.examples import cycle_finding, growth_finding

from leakscope.findings.model import Finding
from leakscope.pytest_plugin.judging import Group, Left, State
from leakscope.pytest_plugin.settings import (
    Baseline,
    BaselineLeak,
    Ignored,
    PredicateRaised,
    baseline_after,
    baseline_text,
    fixed,
    ignored_by,
    patterns_in,
    read_baseline,
)
from leakscope.run.suppression import known_before

CYCLE = replace(cycle_finding(), library="gpytorch")
LEAK = BaselineLeak("aaaaaaaa", "a cycle", 2, ("a.py::one", "a.py::two"))


def is_cycle(finding: Finding) -> bool:
    return finding.rule == "tensor-cycle"


@pytest.mark.parametrize(
    ("ignore", "by"),
    [
        (["b41c07e2"], "b41c07e2"),
        (["b41c*"], "b41c*"),
        (["gpytorch"], "gpytorch"),
        (["tensor-cycle"], "tensor-cycle"),
        (["stage.py:4* until 2999-01-31 # my reason"], "stage.py:4*"),
        (["tensor-cycle until 2020-01-31"], ""),
        (["torch", "step-growth"], ""),
        ([is_cycle], "is_cycle()"),
        ([lambda finding: False, "nothing"], ""),
        ([], ""),
    ],
)
def test_patterns_are_those_of_suppress_and_functions_are_asked(ignore: list[Ignored], by: str) -> None:
    assert ignored_by(CYCLE, ignore) == by


def test_a_function_that_raises_is_told_in_one_sentence() -> None:
    with pytest.raises(
        PredicateRaised, match=r"ignore=.* raised AttributeError for tensor-cycle \[b41c07e2\]: .*; let"
    ):
        ignored_by(CYCLE, [lambda finding: finding.nothing])  # type: ignore[attr-defined]


def test_no_pattern_ignores_everything() -> None:
    with pytest.raises(ValueError, match=r"^leakscope_ignore, line 2: .*every leak"):
        patterns_in(["torch", "*"], "leakscope_ignore")


def group(fingerprint: str, *tests: str, states: tuple[State, ...] = (State.FAILS,)) -> Group:
    return Group(Left(fingerprint, "tensor-cycle", f"leak {fingerprint}", 8, states[0]), tests, 8 * len(tests), states)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    assert read_baseline(path) is None
    written = baseline_after(None, [group("bbbbbbbb", "b.py::x"), group("aaaaaaaa", *"1234")], frozenset())
    path.write_text(baseline_text(written))
    read = read_baseline(path)
    assert read is not None and read.fingerprints == {"aaaaaaaa", "bbbbbbbb"}
    assert read.leaks[0] == BaselineLeak("aaaaaaaa", "leak aaaaaaaa", 4, ("1", "2", "3"))
    assert baseline_text(read) == path.read_text()


def test_a_baseline_serves_the_command_line_and_its_findings_serve_as_one(tmp_path: Path) -> None:
    text = baseline_text(Baseline((LEAK,)))
    assert [one.pattern for one in known_before(json.loads(text), "known.json")] == ["aaaaaaaa"]
    path = tmp_path / "findings.json"
    told = [{"fingerprint": f.fingerprint, "severity": s} for f, s in ((CYCLE, "leak"), (growth_finding(), "note"))]
    path.write_text(json.dumps({"format": 2, "findings": told}))
    read = read_baseline(path)
    assert read is not None and read.fingerprints == {CYCLE.fingerprint}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"findings": [3]}', '{"findings": [{"fingerprint": 3}]}'])
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "known.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"known.json is no baseline: give"):
        read_baseline(path)


def test_only_what_failed_or_was_known_goes_into_a_baseline() -> None:
    groups = [
        group("11111111", "t", states=(State.FAILS, State.IGNORED)),
        group("22222222", "t", states=(State.KNOWN,)),
        group("33333333", "t", states=(State.OF_LIBRARY,)),
        group("44444444", "t", states=(State.IGNORED,)),
        group("55555555", "t", states=(State.ALLOWED,)),
    ]
    assert baseline_after(None, groups, frozenset({"t"})).fingerprints == {"11111111", "22222222"}


def test_an_update_keeps_what_no_test_of_this_session_could_show() -> None:
    before = Baseline((LEAK, BaselineLeak("cccccccc", "elsewhere", 1, ("c.py::other",))))
    after = baseline_after(before, [group("bbbbbbbb", "a.py::one")], frozenset({"a.py::one"}))
    assert after.fingerprints == {"bbbbbbbb", "cccccccc"}


def test_fixed_is_what_a_test_that_showed_it_shows_no_more() -> None:
    baseline = Baseline((LEAK,))
    assert fixed(baseline, [], frozenset({"a.py::two"})) == (LEAK,)
    assert fixed(baseline, [], frozenset({"b.py::three"})) == ()
    assert fixed(baseline, [group("aaaaaaaa", "b.py::three")], frozenset({"a.py::two", "b.py::three"})) == ()
