"""Checks the script or module to run, and the folder of the run."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import tokenize
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from pkgutil import get_importer

from leakscope_cli.argv import near_script

from leakscope.errors import LeakscopeError
from leakscope.options import Options
from leakscope.run.writer import make_private

RUNS = Path("leakscope_runs")
"""The folder in which a run's folder is made where none is named."""


def newest_run() -> Path:
    """The folder of the run that was begun last. Raises LeakscopeError where there is none."""
    begun: dict[Path, float] = {}
    for file in RUNS.glob("*/run.json"):
        with suppress(OSError):  # it is being replaced
            begun[file.parent] = file.stat().st_mtime
    if not begun:
        raise LeakscopeError(f"there is no run below {RUNS}; name the folder of one, as in leakscope report FOLDER")
    return max(begun, key=lambda folder: (begun[folder], folder))


def check_script(path: str, needs_source: bool = False) -> None:
    """Raises LeakscopeError unless python could run it: source, bytecode, or a folder or zip file with a __main__.

    `needs_source` where the steps are ended by a function, which is found in the source.
    """
    try:
        _check_kind(path)
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind) or get_importer(path) is not None:
            _check_main_in(path)
        elif not stat.S_ISREG(kind):
            raise LeakscopeError(
                f"{path} is no file that each rank can read for itself; write the script to a file and name that"
            )
        elif not _is_bytecode(path):
            _check_source(path)
        elif needs_source:
            raise LeakscopeError(f"--step-function is looked for in source, and {path} is bytecode; name the source")
    except FileNotFoundError:
        instead = "; write what comes on stdin to a file and name that" if path == "-" else near_script(path)
        raise LeakscopeError(f"there is no script {path}{instead}") from None
    except OSError as error:
        raise LeakscopeError(f"cannot read the script {path}: {error.strerror}") from None
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise LeakscopeError(f"{path} is not a Python script: {error.msg}{place}") from None
    except ValueError as error:
        raise LeakscopeError(f"{path} is not a Python script: {error}") from None
    except (RecursionError, MemoryError):
        raise LeakscopeError(f"{path} is not a Python script: it is nested too deeply to be compiled") from None


def _check_kind(path: str) -> None:
    """Raises LeakscopeError for what is often named in place of a script."""
    if path.endswith(".ipynb"):
        script = f"{path.removesuffix('.ipynb')}.py"
        raise LeakscopeError(
            f"{path} is a notebook; write `jupyter nbconvert --to script {shlex.quote(path)}` and then "
            f"`leakscope run {shlex.quote(script)}`, or use leakscope.check in its cells"
        )
    if path.endswith((".sh", ".bash", ".sbatch", ".slurm")):
        raise LeakscopeError(
            f"{path} is a shell script; write leakscope where it starts python: `leakscope run train.py`"
        )
    if os.path.isfile(os.path.join(path, "run.json")):
        raise LeakscopeError(f"{path} is the folder of a run; write `leakscope report {shlex.quote(path)}`")


def _check_source(path: str) -> None:
    with tokenize.open(path) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rank compiles it again, and says what there is to say
        compile(stream.read(), path, "exec", dont_inherit=True)


def _is_bytecode(path: str) -> bool:
    """Whether python takes it for bytecode. Raises LeakscopeError where another Python has made it."""
    with open(path, "rb") as stream:
        start = stream.read(len(MAGIC_NUMBER))
    if start == MAGIC_NUMBER:
        return True
    if path.endswith(".pyc") or start.startswith(MAGIC_NUMBER[:2]):
        raise LeakscopeError(f"{path} is no bytecode of this Python; compile it anew, or name the source")
    return False


def _check_main_in(path: str) -> None:
    if PathFinder.find_spec("__main__", [path]) is None:
        scripts = sorted(Path(path).glob("*.py")) if os.path.isdir(path) else []
        named = [script for script in scripts if len(scripts) == 1 or script.stem in ("train", "main", "run")]
        such = f", as in `leakscope run {shlex.quote(str(named[0]))}`" if named else ""
        raise LeakscopeError(f"there is no __main__.py in {path}; name the script to run{such}")


def check_module(name: str) -> str:
    """The file of the module's source, "" where it has none; imports nothing.

    Raises LeakscopeError unless the module can be found.
    """
    places: Sequence[str] | None = [*_working_directory(), *sys.path]
    for part in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:part]), places)
        if spec is None:
            instead = f"; write -m {name[: -len('.py')]}" if name.endswith(".py") else ""
            raise LeakscopeError(f"there is no module {name}{instead}")
        places = spec.submodule_search_locations or ()
    if places:
        spec = PathFinder.find_spec(f"{name}.__main__", places)
        if spec is None:
            raise LeakscopeError(f"{name} is a package without __main__; name the module to run")
    return spec.origin if spec is not None and spec.origin and spec.origin.endswith(".py") else ""


def _working_directory() -> list[str]:
    """Where `python -m` looks first: nowhere, where python has been told so or where the folder is gone."""
    try:
        return [] if getattr(sys.flags, "safe_path", False) else [os.getcwd()]
    except OSError:
        return []


def join_folder(options: Options) -> None:
    """Make the folder that several launchers share. Raises LeakscopeError where it holds something else than a run."""
    folder = options.folder
    try:
        make_private(folder)
    except OSError as error:
        raise LeakscopeError(f"cannot write to {folder}: {error.strerror}; give another --output") from None
    if any(folder.iterdir()) and not ((folder / "run.json").exists() or options.rank_state.exists()):
        raise LeakscopeError(f"{folder} exists and holds no leakscope run; give another --output")
