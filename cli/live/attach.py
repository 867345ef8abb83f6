"""`leakscope attach`: record a process that runs already, as CPython from 3.14 on lets itself be asked to."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click
from leakscope_cli.console import note, tell_or_fail
from leakscope_cli.shared import Size
from leakscope_cli.targets import RUNS

from leakscope import errors
from leakscope.errors import LeakscopeError, Unreadable, check_python
from leakscope.files import read_json
from leakscope.options import OFFERED, Options
from leakscope.run.descriptors import write_whole
from leakscope.run.secrets import masked
from leakscope.run.writer import prepare_folder, who_else_may_enter

_SCRIPT = """def _leakscope():
    import json, os, sys
    os.unlink({script!r})
    place, answer = {place!r}, {answer!r}
    try:
        sys.path.append(place)  # the last: what the process has itself comes first
        try:
            from leakscope.recorder.attached import attach
        finally:
            sys.path.remove(place)
        why = attach({options!r})
    except BaseException as error:
        why = type(error).__name__ + ": " + str(error)
    with open(answer + ".part", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        json.dump({{"why": why}}, file)
    os.replace(answer + ".part", answer)
_leakscope()
"""
"""What the process runs on its main thread; nothing of it stays."""
_POLL_S = 0.05
"""Seconds between two looks at whether it has."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("process", metavar="PID", type=click.IntRange(min=1))
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), metavar="DIR", help="The run's folder, made anew."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    metavar="SECONDS",
    help="How long to wait until it records (30).",
)
@click.option("--min-bytes", type=Size(), metavar="SIZE", help=OFFERED["min_bytes"].help)
@click.option("--horizon", type=click.IntRange(min=1), metavar="N", help=OFFERED["horizon"].help)
def attach(process: int, folder: Path | None, timeout: float, min_bytes: int | None, horizon: int | None) -> None:
    """Record the process with number PID from here on, without its having been started under leakscope.

    It takes CPython 3.14 here and there, the right to trace the process, and torch and leakscope's requirements
    there. The process is a run of one rank: what other ranks do, and who sends what to whom, is not seen. From then on
    `leakscope look` and `status` ask it, and `leakscope report` tells it once it has ended.
    """
    ask: Callable[[int, str], object] | None = getattr(sys, "remote_exec", None)
    if ask is None:
        raise LeakscopeError(
            f"attaching takes CPython 3.14 or later, and this is {platform.python_version()}; start the job under "
            "leakscope, as in `leakscope run train.py`: then `leakscope look` asks it while it runs"
        )
    check_python()
    words = _words_of(process)
    folder = (folder or RUNS / f"process_{process}_{datetime.now(UTC):%Y%m%d_%H%M%S}").absolute()
    prepare_folder(folder, force=False)
    others = who_else_may_enter(folder)
    if others:
        note(others)
    script, answer = folder / "attach.py", folder / "attached.json"
    script_word, *arguments = masked(words)
    told = {
        "folder": str(folder),
        "script": script_word,
        "arguments": list(arguments),
        "quiet": True,
        "min_bytes": min_bytes,
        "horizon": Options.horizon if horizon is None else horizon,
    }
    _write_run(Options.of(told))
    place = str(Path(errors.__file__).resolve().parent.parent)
    text = _SCRIPT.format(script=str(script), place=place, answer=str(answer), options=told)
    write_whole(script, text.encode())
    try:
        ask(process, str(script))
    except (RuntimeError, OSError, ValueError, NotImplementedError) as error:
        raise LeakscopeError(f"process {process} cannot be asked to record itself: {error}") from None
    why = _answered(answer, timeout)
    if why:
        raise LeakscopeError(f"process {process} does not record itself: {why}")
    tell_or_fail(
        f"process {process} records into {folder}; `leakscope look {folder}` asks it, `leakscope status {folder}` "
        "shows where it is"
    )


def _words_of(process: int) -> list[str]:
    """What the process was started as, without the interpreter. Raises LeakscopeError where there is none."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        raise LeakscopeError(f"there is no process {process}") from None
    scripts = [place for place, word in enumerate(words) if place and not word.startswith("-")]
    return words[scripts[0] :] if scripts else words or [str(process)]


def _write_run(options: Options) -> None:
    from leakscope.launch.start import about_run
    from leakscope.run.writer import write_run

    write_run(options.folder, about_run(options))


def _answered(answer: Path, timeout: float) -> str:
    """What the process has said; why it does not record."""
    deadline = time.monotonic() + timeout
    while not answer.exists():
        if time.monotonic() > deadline:
            return (
                f"its main thread has run no Python for {timeout:g} s, as where it waits in native code; it begins as "
                "soon as it does"
            )
        time.sleep(_POLL_S)
    try:
        return str(read_json(answer)["why"])
    except (Unreadable, KeyError, TypeError) as error:
        return f"its answer cannot be read ({error})"
