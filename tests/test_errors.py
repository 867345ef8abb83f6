"""With a Python or torch that is not supported, each entry point ends with one sentence."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from leakscope_cli import main
from support import ROOT

from leakscope.errors import LeakscopeError, check_python, check_torch, unsupported_python, unsupported_torch

BUILDS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "3.10": lambda patch: patch.setattr(sys, "version_info", (3, 10, 13, "final", 0)),
    "3.14": lambda patch: patch.setattr(sys, "version_info", (3, 14, 0, "final", 0)),
    "free-threaded": lambda patch: patch.setitem(sysconfig.get_config_vars(), "Py_GIL_DISABLED", 1),
    "pypy": lambda patch: patch.setattr(sys.implementation, "name", "pypy"),
}


@pytest.mark.parametrize("build", BUILDS)
def test_another_build_is_refused(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unsupported_python() == ""
    check_python()
    BUILDS[build](monkeypatch)
    why = unsupported_python()
    assert build in why and "\n" not in why
    with pytest.raises(LeakscopeError):
        check_python()


def test_what_pip_installs_is_what_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of `requires-python` are those of the check."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    served = []
    for minor in range(9, 17):
        monkeypatch.setattr(sys, "version_info", (3, minor, 0, "final", 0))
        if not unsupported_python():
            served.append(minor)
    assert required == f">=3.{served[0]},<3.{served[-1] + 1}"


def test_an_older_torch_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_torch()
    for version in ("2.10.0", "2.15.0a0+git1", "3.0", "unknown"):
        monkeypatch.setattr(torch, "__version__", version)
        assert unsupported_torch() == ""
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(LeakscopeError):
        check_torch()
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text("print('ran')")
    done = CliRunner().invoke(main, ["run", "-o", str(out), str(script)])
    assert done.exit_code == 2 and not out.exists()
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1 and "2.9.1" in done.stderr


def test_the_oldest_torch_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    (required,) = [need for need in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
                   if need.startswith("torch>=")]  # fmt: skip
    oldest = required.removeprefix("torch>=")
    monkeypatch.setattr(torch, "__version__", oldest)
    assert unsupported_torch() == ""
    monkeypatch.setattr(torch, "__version__", f"2.{int(oldest.partition('.')[2]) - 1}")
    assert unsupported_torch()


def test_commands_that_run_a_script_are_refused_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    BUILDS["free-threaded"](monkeypatch)
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text("print('ran')")
    for words in (["run", "-o", str(out), str(script)], ["demo", "-o", str(out)]):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 2 and not out.exists()
        assert done.stdout == "" and len(done.stderr.splitlines()) == 1 and "free-threaded" in done.stderr
    for words in (["--help"], ["report", "--help"], ["--version"]):
        assert CliRunner().invoke(main, words).exit_code == 0


USES = """
import sysconfig
import leakscope, torch
from leakscope.errors import LeakscopeError

sysconfig.get_config_vars()["Py_GIL_DISABLED"] = 1
for use in (
    leakscope.watch().__enter__, leakscope.Profiler().__enter__, lambda: leakscope.check(print), leakscope.holders,
    lambda: leakscope.draw([]),
):
    try:
        use()
    except LeakscopeError as error:
        print("free-threaded" in str(error))
"""


@pytest.mark.process
def test_each_entry_of_the_api_is_refused() -> None:
    """In a process of its own: whether the modules that inspect live objects can be imported is decided once."""
    done = subprocess.run([sys.executable, "-c", USES], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["True"] * 5, done.stderr


def test_the_plugin_is_refused_where_it_is_requested(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test_it(): pass")
    BUILDS["free-threaded"](monkeypatch)
    refused = pytester.runpytest_inprocess("-p", "no:asyncio", "--leakscope")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "free-threaded" in (output := refused.stdout.str() + refused.stderr.str()) and "Traceback" not in output
    assert pytester.runpytest_inprocess("-p", "no:asyncio").ret == pytest.ExitCode.OK
