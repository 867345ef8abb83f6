"""Shared by the commands: errors as sentences, checks of scripts and folders, and judging a run."""

from __future__ import annotations

import errno
import os
import resource
import shlex
import stat
import sys
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from pkgutil import get_importer
from typing import TYPE_CHECKING, Any

import click
from leakscope_cli.argv import near_script
from leakscope_cli.console import note

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.files import read_regular
from leakscope.options import Options
from leakscope.run.suppression import Suppression, suppressions_in
from leakscope.run.writer import make_private
from leakscope.units import bytes_text, parse_bytes, parse_share

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.run.model import Run


_ROOM = 512 << 20
"""Bytes of address space. numpy and matplotlib load within 300 MB on two cores; OpenBLAS takes more with each core."""


class Impossible(click.ClickException):
    """An error of leakscope: one sentence on stderr, exit status 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:  # noqa: ARG002 - click's signature
        """Print the sentence."""
        note(self.message)


@contextmanager
def usage_as_sentences(commands: click.Group) -> Iterator[None]:
    """Turn a wrong option or a missing argument into a sentence on stderr and exit status 2."""
    try:
        yield
    except click.NoSuchOption as error:
        from leakscope_cli.argv import for_unknown_option

        raise Impossible(for_unknown_option(error, commands)) from None
    except click.UsageError as error:
        from leakscope_cli.argv import for_wrong_usage

        raise Impossible(for_wrong_usage(error)) from None


@contextmanager
def errors_as_sentences(commands: click.Group) -> Iterator[None]:
    """Turn what leakscope tells its user into a sentence on stderr and exit status 2, a wrong option's as well."""
    try:
        with usage_as_sentences(commands):
            yield
    except LeakscopeError as error:
        raise Impossible(str(error)) from None
    except MemoryError:
        raise Impossible("out of memory") from None
    except ImportError as error:
        raise Impossible(f"cannot import a dependency: {_last_line(error)}") from None
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        where = f" for {error.filename}" if error.filename else ""
        raise Impossible(f"operating system error{where}: {error.strerror or _last_line(error)}") from None


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


MIN_BYTES = "Minimum growth per step to report as a leak, of any kind [default: as recorded]."
HORIZON = "Report growth of plain data as a leak if it would reach 1% of memory within N steps [default: as recorded]."


@dataclass(frozen=True)
class Policy:
    """What a command asks for when a run is judged; what it does not ask for is as the run was told."""

    suppress: Sequence[Suppression] | None = None
    """In place of what was kept with the run; None to keep that."""
    baseline: Sequence[Suppression] | None = None
    """In place of what was kept with the run; None to keep that."""
    leak_exit_code: int = Options.leak_exit_code
    ignore_library: bool = False
    fail_on_avoidable: int | None = None
    fail_on_inconclusive: bool = False
    min_bytes: int | None = None
    """In place of the run's; None to keep that."""
    horizon: int | None = None
    """In place of the run's; None to keep that."""

    def over(self, run: Run) -> Run:
        """The run with the thresholds that are asked for in place of its own."""
        min_bytes = run.min_bytes if self.min_bytes is None else self.min_bytes
        return replace(run, min_bytes=min_bytes, horizon=run.horizon if self.horizon is None else self.horizon)


def read_and_judge(folder: Path, policy: Policy = Policy()) -> tuple[Run, Findings]:
    """The run recorded in a folder, and what is wrong with it.

    Raises LeakscopeError where it is no run, or where there is no room to judge it.
    """
    check_room()
    from leakscope.findings import judge_rank, judge_together
    from leakscope.run.reader import open_run, read_each

    opened = open_run(folder, snapshots=True)
    run, ranks = read_each(replace(opened, run=policy.over(opened.run)), judge_rank)
    kept = [[one for one in run.suppressions if one.is_baseline is of_run] for of_run in (False, True)]
    asked = (policy.suppress, policy.baseline)
    known = [one for of_kind, own in zip(asked, kept, strict=True) for one in (own if of_kind is None else of_kind)]
    run = replace(run, suppressions=tuple(known))
    told = run.options.get("fail_on_avoidable")
    over = policy.fail_on_avoidable
    return run, judge_together(
        run,
        ranks,
        leak_exit_code=policy.leak_exit_code,
        ignore_library=policy.ignore_library or run.options.get("ignore_library") is True,
        fail_on_avoidable=told if over is None and type(told) is int else over,
        fail_on_inconclusive=policy.fail_on_inconclusive or run.options.get("fail_on_inconclusive") is True,
    )


def check_room() -> None:
    """Raises LeakscopeError where numpy and matplotlib cannot be loaded; OpenBLAS would end the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or "matplotlib" in sys.modules:
        return
    try:
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        used = 0
    if limit - used < _ROOM:
        raise LeakscopeError(
            f"judging a run takes {bytes_text(_ROOM)} of address space, and the limit (ulimit -v) leaves "
            f"{bytes_text(max(limit - used, 0))}; judge it with `leakscope report` where there is more"
        )


def baseline_of(path: Path | None) -> tuple[Suppression, ...]:
    """Read `findings.json`, or the one in the folder of a run. Raises LeakscopeError."""
    if path is None:
        return ()
    from leakscope.report.formats.as_json import read_baseline

    return read_baseline(path)[1]


def suppressions_of(path: Path | None) -> tuple[Suppression, ...]:
    """What a file of suppressions names, one a line: `PATTERN [until 2027-01-31] [# reason]`; nothing for no path.

    Raises LeakscopeError when the file cannot be read, or a line of it not taken.
    """
    if path is None:
        return ()
    if not path.exists():
        raise LeakscopeError(f"suppressions file not found: {path}")
    try:
        text = read_regular(path).decode()
    except (Unreadable, ValueError):
        raise LeakscopeError(f"cannot read the suppressions in {path}; expected one pattern per line") from None
    return suppressions_in(text, str(path))


class Size(click.ParamType):  # type: ignore[type-arg]
    """`64KiB`, `1 MB` or a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The count of bytes."""
        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Share(click.ParamType):  # type: ignore[type-arg]
    """`2%` or `0.02`, as a share between 0 and 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share."""
        try:
            return parse_share(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


RUNS = Path("leakscope_runs")
"""The folder in which a run's folder is made where none is named."""


def newest_run() -> Path:
    """The folder of the run that was begun last. Raises LeakscopeError where there is none."""
    begun: dict[Path, float] = {}
    for file in RUNS.glob("*/run.json"):
        with suppress(OSError):  # about to be replaced
            begun[file.parent] = file.stat().st_mtime
    if not begun:
        raise LeakscopeError(f"no run found in {RUNS}; name the folder of one, as in leakscope report FOLDER")
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
            raise LeakscopeError(f"{path} is not a regular file; save the script to a file that each rank can read")
        elif not _is_bytecode(path):
            _check_source(path)
        elif needs_source:
            raise LeakscopeError(f"--step-function needs the source, and {path} is bytecode")
    except FileNotFoundError:
        instead = "; save stdin to a file" if path == "-" else near_script(path)
        raise LeakscopeError(f"script not found: {path}{instead}") from None
    except OSError as error:
        raise LeakscopeError(f"cannot read the script {path}: {error.strerror}") from None
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise LeakscopeError(f"{path} is not a Python script: {error.msg}{place}") from None
    except ValueError as error:
        raise LeakscopeError(f"{path} is not a Python script: {error}") from None
    except (RecursionError, MemoryError):
        raise LeakscopeError(f"{path} is not a Python script: nested too deeply to compile") from None


def _check_kind(path: str) -> None:
    """Raises LeakscopeError for what is often named in place of a script."""
    if path.endswith(".ipynb"):
        script = f"{path.removesuffix('.ipynb')}.py"
        raise LeakscopeError(
            f"{path} is a notebook; run `jupyter nbconvert --to script {shlex.quote(path)}` and then "
            f"`leakscope run {shlex.quote(script)}`, or use leakscope.check in its cells"
        )
    if path.endswith((".sh", ".bash", ".sbatch", ".slurm")):
        raise LeakscopeError(f"{path} is a shell script; use `leakscope run train.py` in it instead of python")
    if os.path.isfile(os.path.join(path, "run.json")):
        raise LeakscopeError(f"{path} is the folder of a run; run `leakscope report {shlex.quote(path)}`")


def _check_source(path: str) -> None:
    with tokenize.open(path) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compiled again in the rank, which reports errors
        compile(stream.read(), path, "exec", dont_inherit=True)


def _is_bytecode(path: str) -> bool:
    """Whether python takes it for bytecode. Raises LeakscopeError where another Python has made it."""
    with open(path, "rb") as stream:
        start = stream.read(len(MAGIC_NUMBER))
    if start == MAGIC_NUMBER:
        return True
    if path.endswith(".pyc") or start.startswith(MAGIC_NUMBER[:2]):
        raise LeakscopeError(f"{path} is bytecode of another Python; use the source")
    return False


def _check_main_in(path: str) -> None:
    if PathFinder.find_spec("__main__", [path]) is None:
        scripts = sorted(Path(path).glob("*.py")) if os.path.isdir(path) else []
        named = [script for script in scripts if len(scripts) == 1 or script.stem in ("train", "main", "run")]
        such = f", as in `leakscope run {shlex.quote(str(named[0]))}`" if named else ""
        raise LeakscopeError(f"no __main__.py in {path}; name the script to run{such}")


def check_module(name: str) -> str:
    """The file of the module's source, "" where it has none; imports nothing.

    Raises LeakscopeError unless the module can be found.
    """
    places: Sequence[str] | None = [*_working_directory(), *sys.path]
    for part in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:part]), places)
        if spec is None:
            instead = f"; did you mean -m {name[: -len('.py')]}?" if name.endswith(".py") else ""
            raise LeakscopeError(f"module not found: {name}{instead}")
        places = spec.submodule_search_locations or ()
    if places:
        spec = PathFinder.find_spec(f"{name}.__main__", places)
        if spec is None:
            raise LeakscopeError(f"{name} is a package without __main__; name a module to run")
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
        raise LeakscopeError(f"cannot write to {folder}: {error.strerror}; choose another --output") from None
    if any(folder.iterdir()) and not ((folder / "run.json").exists() or options.rank_state.exists()):
        raise LeakscopeError(f"{folder} exists and holds no leakscope run; choose another --output")
