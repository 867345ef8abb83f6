"""Options, ini keys and markers say the same, and what is wrong with them is said before any test runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.pytest_plugin.settings import Settings, settings_of, settings_of_test

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
    assert settings_of(pytester.parseconfigure()) == Settings(allowance=64 * 1024)
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
    said = settings_of(pytester.parseconfigure(*(f"--leakscope-{option}" for option in options)))
    assert said.allowance == 0 and said.ignore == ("torch*", "ab12cd34", "x", "y")
    assert said.baseline == Path(pytester.path, "other.json") and said.update_baseline


def test_a_folder_of_tests_is_no_size(pytester: pytest.Pytester) -> None:
    assert settings_of(pytester.parseconfigure("--leakscope", str(pytester.path))).everywhere


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--leakscope-allowance", "lots"], "--leakscope-allowance: cannot read 'lots' as a size"),
        (["--leakscope-baseline-update"], "--leakscope-baseline-update needs --leakscope-baseline FILE"),
        (["-o", "leakscope_allowance=-1"], "--leakscope-allowance: cannot read '-1' as a size"),
    ],
)
def test_a_wrong_option_is_a_usage_error_of_one_line(pytester: pytest.Pytester, options: list[str], said: str) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert next(line for line in result.errlines if line.strip()).startswith(f"ERROR: {said}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("('lots')", "write it like 4096"),
        ("(repeats=2)", "too few"),
        ("(repeats='4')", "no whole number"),
        ("(warmups=1)", "give repeats"),
        ("(repeats=3, warmups=-1)", "warmups=-1"),
        ("(ignore=3)", "neither"),
        ("(ignore=[3])", "neither"),
        ("(allowed=3)", "unexpected keyword argument 'allowed'"),
    ],
)
def test_a_wrong_marker_is_a_usage_error_that_names_the_test(
    pytester: pytest.Pytester, arguments: str, said: str
) -> None:
    pytester.makepyfile(test_it=ONE_TEST.format(arguments))
    result = pytester.runpytest_inprocess()
    told = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR and said in told
    assert "test_it.py::test_it: @pytest.mark.no_tensor_leaks" in told


def test_a_marker_asks_for_more_than_the_session(pytester: pytest.Pytester) -> None:
    markers = ("", "('2 KiB', repeats=3, warmups=1, ignore='torch*')")
    bare, full = pytester.getitems("\n".join(ONE_TEST.format(m).replace("_it", f"_{k}") for k, m in enumerate(markers)))
    assert settings_of_test(bare) == Settings(allowance=0)
    assert settings_of_test(full) == Settings(allowance=2048, repeats=3, warmups=1, ignore=("torch*",))
