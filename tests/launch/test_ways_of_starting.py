"""A script sees the same startup state as under Python, however it is named."""

from __future__ import annotations

import json
import subprocess
import sys
import zipapp
from collections.abc import Mapping
from pathlib import Path

import pytest
from leakscope_cli.script import check_module, check_script

from leakscope.launch.start import interpreter_flags, rank_command
from leakscope.options import Options

pytestmark = pytest.mark.process

DESCRIBE = """
import sys
import importlib.util, json, os, multiprocessing.spawn
def found(name):
    spec = importlib.util.find_spec(name)
    return spec and spec.origin
started = dict(
    found={name: found(name) for name in {shadowed}}, same=sys.modules["__main__"].found is found,
    executable=sys.executable, environment=dict(os.environ),
    prepared=os.path.exists(".") and {
        key: repr(value) for key, value in multiprocessing.spawn.get_preparation_data("x").items() if key != "authkey"
    },
    names=sorted(vars(sys.modules["__main__"])), argv=sys.argv, orig_argv=sys.orig_argv, path=sys.path,
    flags=str(sys.flags), file=__file__, package=__package__, cached=globals().get("__cached__", "none"),
    spec=__spec__ and [__spec__.name, __spec__.origin, __spec__.parent], loader=type(__loader__).__name__,
    builtins=type(__builtins__).__name__, doc=__doc__, annotations=globals().get("__annotations__", "none"),
    code=sys._getframe().f_code.co_filename, warnoptions=sys.warnoptions, xoptions=sys._xoptions,
    unbuffered=sys.stdout.write_through, name=__name__, orig=sys.orig_argv, cwd=os.getcwd(),
)
print(json.dumps(started))
"""
SHADOWED = (
    "click", "copy", "dataclasses", "inspect", "leakscope_cli", "numpy", "resource", "statistics", "token", "tokenize",
    "torch", "traceback", "typing",
)  # fmt: skip
"""Modules of the script's folder, which is the working directory: leakscope imports others of these names."""
DESCRIBE = DESCRIBE.replace("{shadowed}", repr(SHADOWED))
WAYS: Mapping[str, str] = {
    "//{folder}/a.py": "",
    "linked/l.py": "",
    "./app.pyz": "",
    "-m sub.a": "",
    "/dev/stdin": "",
    "./a.py ": "-O -X dev -W error -u -B -b",
    "sub/a.py": "-P",
    "-m a ": "-E -s -OO -q -X utf8 -W ignore::DeprecationWarning",
}
"""What follows `python` and these flags; those that only differ by a space are the same with other flags."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ways")
    for name in ("sub", "linked", "app"):
        (folder / name).mkdir()
    for name in ("a.py", "sub/a.py", "sub/__init__.py", "app/__main__.py", "no_ending"):
        (folder / name).write_text(DESCRIBE)
    (folder / "sub/__init__.py").write_text("")
    (folder / "linked/l.py").symlink_to("../sub/a.py")
    for name in SHADOWED:
        (folder / f"{name}.py").write_text("")
    (folder / "leakscope").mkdir()
    (folder / "leakscope" / "__init__.py").write_text("raise ImportError('another leakscope')")
    zipapp.create_archive(folder / "app", folder / "app.pyz")
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_a_script_is_started_as_python_starts_it(
    way: str, scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, words = WAYS[way].split(), way.format(folder=scripts).split()
    monkeypatch.chdir(scripts)
    started(monkeypatch, flags)
    module = words[1] if words[0] == "-m" else None
    check_module(module) if module else check_script(words[0] if words[0] != "/dev/stdin" else "a.py")
    options = Options(module=module, script="" if module else words[0], arguments=("x", "two\nlines"), folder=tmp_path)
    plain = described([sys.executable, *flags, *options.command], scripts)
    assert described(rank_command(options), scripts) == plain
    assert plain["argv"][1:] == ["x", "two\nlines"]


@pytest.mark.parametrize(("text", "status"), [("raise ValueError('no')", 1), ("import sys; sys.exit()", 0)])
def test_an_error_of_a_package_ends_the_script(
    text: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text(text)
    (tmp_path / "pack" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    command = rank_command(Options(module="pack.train", folder=tmp_path / "run"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    plain = subprocess.run([sys.executable, "-m", "pack.train"], capture_output=True, text=True, check=False)
    assert done.returncode == plain.returncode == status
    assert done.stderr.splitlines()[-2:] == plain.stderr.splitlines()[-2:] and "leakscope" not in done.stderr
    end = json.loads((tmp_path / "run" / "rank_0000" / "ended.json").read_text())
    assert (end["how"], end["status"]) == ({0: "finished", 1: "raised"}[status], status)


@pytest.mark.parametrize(
    ("started_with", "flags"),
    [
        (["python", "-O", "-X", "dev", "-m", "leakscope", "run", "a.py"], ["-O", "-X", "dev"]),
        (["/venv/bin/python", "-I", "/venv/bin/leakscope", "run", "a.py"], ["-I"]),
        (["python", "-Om", "leakscope", "run", "a.py"], None),
        (["python", "other.py"], None),
    ],
)
def test_the_flags_of_python_are_known(
    started_with: list[str], flags: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "/venv/bin/leakscope" if "/venv/bin/leakscope" in started_with else "/somewhere/leakscope/__main__.py"
    monkeypatch.setattr(sys, "orig_argv", started_with)
    monkeypatch.setattr(sys, "argv", [own, "run", "a.py"])
    assert interpreter_flags() == (subprocess._args_from_interpreter_flags() if flags is None else flags)  # type: ignore[attr-defined]


def started(monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    """As if this were `python FLAGS -m leakscope run`."""
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *flags, "-m", "leakscope", "run"])
    monkeypatch.setattr(sys, "argv", ["leakscope", "run"])


def described(command: list[str], folder: Path) -> dict[str, object]:
    with open(folder / "a.py") as stdin:
        done = subprocess.run(command, cwd=folder, stdin=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "leakscope: " not in done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]
