"""With a Python or torch that is not supported, each entry point ends with one sentence."""

from __future__ import annotations

import os
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


AS_FREE_THREADED = "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; "


def _run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text("print('ran')\n")
    (folder / "test_it.py").write_text("def test_it(): print('ran')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-c", AS_FREE_THREADED + code],
        capture_output=True, text=True, timeout=120, check=False, cwd=folder, env=environment,
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("words", ["run -o out train.py", "demo -o out"])
def test_the_command_line_refuses_it(words: str, tmp_path: Path) -> None:
    done = _run(f"from leakscope_cli import main; main({words.split()})", tmp_path)
    assert done.returncode == 2
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1 and "free-threaded" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.process
@pytest.mark.parametrize("words", ["--help", "report --help", "--version"])
def test_what_looks_at_nothing_live_goes_on(words: str, tmp_path: Path) -> None:
    assert _run(f"from leakscope_cli import main; main({words.split()})", tmp_path).returncode == 0


@pytest.mark.process
@pytest.mark.parametrize(
    "use",
    ["leakscope.watch().__enter__()", "leakscope.Profiler().__enter__()", "leakscope.check(print)",
     "leakscope.holders()", "leakscope.draw([])"],
)  # fmt: skip
def test_the_api_refuses_it(use: str, tmp_path: Path) -> None:
    code = (
        "import leakscope, torch\n"
        f"try: {use}\n"
        "except leakscope.LeakscopeError as error: print('refused:', error)"
    )  # fmt: skip
    done = _run(code, tmp_path)
    assert done.stdout.startswith("refused: ") and "free-threaded" in done.stdout, (done.stdout, done.stderr)


@pytest.mark.process
def test_the_plugin_refuses_it(tmp_path: Path) -> None:
    plugin = ["-p", "no:cacheprovider", "-q"]
    refused = _run(f"import pytest, sys; sys.exit(pytest.main({[*plugin, '--leakscope']}))", tmp_path)
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "free-threaded" in refused.stdout + refused.stderr and "Traceback" not in refused.stdout + refused.stderr
    unasked = _run(f"import pytest, sys; sys.exit(pytest.main({plugin}))", tmp_path)
    assert unasked.returncode == 0
