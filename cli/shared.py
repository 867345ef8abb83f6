"""Shared by the commands: sizes, errors as sentences, and judging a run's folder."""

from __future__ import annotations

import errno
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from leakscope_cli.console import note

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.files import read_regular
from leakscope.options import Options
from leakscope.run.suppression import Suppression, suppressions_in
from leakscope.units import bytes_text, parse_bytes, parse_share

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.run.model import Run


_ROOM = 512 << 20
"""Bytes of address space. numpy and matplotlib load within 300 MB on two cores; OpenBLAS takes more with each core."""


class Impossible(click.ClickException):
    """leakscope could not do it: one sentence on stderr, exit status 2."""

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
        raise Impossible("there is not enough memory for it; try it where there is more") from None
    except ImportError as error:
        raise Impossible(f"what leakscope needs cannot be imported: {_last_line(error)}") from None
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        where = f" for {error.filename}" if error.filename else ""
        raise Impossible(f"the system refuses it{where}: {error.strerror or _last_line(error)}") from None


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
        raise LeakscopeError(f"there is no file {path}; --suppress names one with a fingerprint or rule a line")
    try:
        text = read_regular(path).decode()
    except (Unreadable, ValueError):
        raise LeakscopeError(f"cannot read the suppressions in {path}; write one fingerprint or rule a line") from None
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
