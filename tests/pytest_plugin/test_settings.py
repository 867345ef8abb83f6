"""Options, keys of the ini file and markers agree, and invalid ones are refused before any test runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.examples import cycle_finding

from leakscope.findings.model import Finding
from leakscope.pytest_plugin.settings import (
    Ignored,
    PredicateRaised,
    Settings,
    ignored_by,
    peak_limit_of,
    settings_of,
    settings_of_test,
)

INI = """
[pytest]
leakscope = true
leakscope_allowance = 1 MB
leakscope_fixtures = true
leakscope_strict = true
leakscope_fail_on_inconclusive = true
leakscope_ignore =
    torch*
    ab12cd34
leakscope_baseline = known.json
leakscope_report = told
"""
ONE_TEST = "import pytest\n@pytest.mark.no_tensor_leaks{}\ndef test_it(): pass\n"


def test_every_option_has_a_key_in_the_ini_file(pytester: pytest.Pytester) -> None:
    assert settings_of(pytester.parseconfigure()) == Settings()
    pytester.makeini(INI)
    written = settings_of(pytester.parseconfigure())
    assert written == Settings(
        everywhere=True,
        allowance=1 << 20,
        fixtures=True,
        strict=True,
        fail_on_inconclusive=True,
        ignore=("torch*", "ab12cd34"),
        baseline=pytester.path / "known.json",
        report=pytester.path / "told",
    )


def test_options_go_before_keys_and_patterns_add_up(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    options = ("allowance=0", "ignore=x", "ignore=y", "baseline=other.json", "baseline-update")
    settings = settings_of(pytester.parseconfigure(*(f"--leakscope-{option}" for option in options)))
    assert settings.allowance == 0 and settings.ignore == ("torch*", "ab12cd34", "x", "y")
    assert settings.baseline == Path(pytester.path, "other.json") and settings.baseline_update


def test_a_folder_of_tests_is_no_size(pytester: pytest.Pytester) -> None:
    assert settings_of(pytester.parseconfigure("--leakscope", str(pytester.path))).everywhere


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--leakscope-allowance", "lots"], "--leakscope-allowance"),
        (["-o", "leakscope_allowance=-1"], "--leakscope-allowance"),
        (["--leakscope-baseline-update"], "--leakscope-baseline-update"),
        (["--leakscope-baseline=known.json"], "--leakscope-baseline"),
        (["--leakscope-ignore=*"], "--leakscope-ignore"),
        (["-o", "leakscope_ignore=torch\n*"], "leakscope_ignore, line 2"),
    ],
)
def test_an_invalid_option_is_a_usage_error_of_one_line(
    pytester: pytest.Pytester, options: list[str], named: str
) -> None:
    pytester.makefile(".json", known="{}")
    result = pytester.runpytest_inprocess(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = (line for line in result.errlines if line.strip())
    assert line.startswith(f"ERROR: {named}")


INVALID = {
    "no_tensor_leaks": (
        "'lots'", "repeats=2", "repeats='4'", "warmups=1", "repeats=3, warmups=-1", "ignore=3", "ignore=[3]",
        "ignore='*'", "strict=1", "allowed=3",
    ),
    "limit_tensor_peak": ("'lots'", "", "1, 2"),
}  # fmt: skip


def test_invalid_arguments_of_markers_are_refused(pytester: pytest.Pytester) -> None:
    marks = [f"pytest.mark.{marker}({arguments})" for marker, those in INVALID.items() for arguments in those]
    tests = (f"@{mark}\ndef test_{number}(): pass\n" for number, mark in enumerate(marks))
    for item in pytester.getitems(f"import pytest\n{''.join(tests)}"):
        read = peak_limit_of if item.get_closest_marker("limit_tensor_peak") else settings_of_test
        with pytest.raises((TypeError, ValueError)):
            read(item)
            print(marks[int(item.name.removeprefix("test_"))])


@pytest.mark.parametrize("marker", ["no_tensor_leaks", "limit_tensor_peak"])
def test_an_invalid_marker_is_a_usage_error_that_names_the_test(pytester: pytest.Pytester, marker: str) -> None:
    pytester.makepyfile(test_it=f"import pytest\n@pytest.mark.{marker}('lots')\ndef test_it(): pass")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"test_it.py::test_it: @pytest.mark.{marker}" in result.stdout.str() + result.stderr.str()


def test_a_marker_asks_for_more_than_the_session(pytester: pytest.Pytester) -> None:
    markers = ("", "('2 KiB', repeats=3, warmups=1, ignore='torch*')")
    bare, full = pytester.getitems("\n".join(ONE_TEST.format(m).replace("_it", f"_{k}") for k, m in enumerate(markers)))
    assert settings_of_test(bare) == Settings(allowance=0)
    assert settings_of_test(full) == Settings(allowance=2048, repeats=3, warmups=1, ignore=("torch*",))


CYCLE = replace(cycle_finding(), library="gpytorch")


def is_cycle(finding: Finding) -> bool:
    return finding.rule == "tensor-cycle"


@pytest.mark.parametrize(
    ("ignore", "by"),
    [
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
def test_patterns_are_those_of_suppress_and_functions_decide(ignore: list[Ignored], by: str) -> None:
    assert ignored_by(CYCLE, ignore) == by


def test_a_function_that_raises_names_itself_and_the_finding() -> None:
    with pytest.raises(PredicateRaised, match=r"^ignore=\S+ raised AttributeError for tensor-cycle \[b41c07e2\]"):
        ignored_by(CYCLE, [lambda finding: finding.nothing])  # type: ignore[attr-defined]
