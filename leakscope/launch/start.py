"""Starts the ranks of a run, each under a recorder, and waits for their end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from leakscope._version import __version__
from leakscope.errors import LaunchFailed
from leakscope.launch.as_started import interpreter_flags
from leakscope.launch.elastic import run_under_elastic
from leakscope.launch.oom_killer import processes_ended
from leakscope.launch.outcome import Outcome, collect_outcome
from leakscope.launch.outside import Outside
from leakscope.launch.signals import signals_kept
from leakscope.options import Options
from leakscope.record.folder import write_run
from leakscope.record.secrets import masked

_PEERS_TIMEOUT_S = 10.0
"""Seconds that rank 0 of an outside launcher waits for the other ranks to say how they ended; as long as the grace."""
_POLL_S = 0.1
"""Seconds between two looks at whether they have."""


def launch(options: Options, meanwhile: Callable[[], object] | None = None) -> Outcome:
    """Run the ranks to their end; the folder then says how each of them ended.

    `meanwhile` is called once a rank that is alone on its machine has started, and nobody is waited for.

    Raises LaunchFailed when the ranks could not be started.
    """
    options = replace(options, world=options.ranks * options.nnodes)
    _write_run(options)
    ended_before = processes_ended()
    if options.nnodes == 1:
        options.rank_state.unlink(missing_ok=True)
    if options.world == 1:
        codes = {0: _run_alone(options, meanwhile)}
    else:
        codes = run_under_elastic(options, rank_command(replace(options, under_elastic=True)))
    outcome = collect_outcome(options.folder, codes, oom_kills=processes_ended() - ended_before)
    if options.nnodes == 1:
        options.rank_state.unlink(missing_ok=True)
        shutil.rmtree(options.turns, ignore_errors=True)
    return outcome


def launch_inside(options: Options, outside: Outside) -> Outcome:
    """Run the one rank of another launcher's job that this process is; only its own folder is replaced."""
    options = replace(options, rank=outside.rank, world=outside.world)
    own = options.folder / f"rank_{options.rank:04d}"
    if own.exists():
        shutil.rmtree(own)
    _write_run(options)
    code = _run_alone(options)
    if options.rank == 0:
        _wait_for_peers(options)
    return collect_outcome(options.folder, {options.rank: code}, only=options.rank)


def _wait_for_peers(options: Options) -> None:
    deadline = time.monotonic() + _PEERS_TIMEOUT_S
    while time.monotonic() < deadline:
        if all((options.folder / f"rank_{rank:04d}" / "ended.json").exists() for rank in range(options.world)):
            return
        time.sleep(_POLL_S)


def _write_run(options: Options) -> None:
    write_run(
        options.folder,
        {
            "command": list(masked(options.command)),
            "ranks": options.world,
            "leakscope": __version__,
            "warmup": options.warmup,
            "min_bytes": options.min_bytes,
            "options": {
                "steps": options.steps,
                "budget": options.budget,
                "gc_diff": options.gc_diff,
                "step_function": options.step_function,
                "fail_on_avoidable": options.fail_on_avoidable,
                "ignore_library": options.ignore_library,
            },
        },
    )


def rank_command(options: Options) -> list[str]:
    """What starts the process of a rank; the folder is made absolute, for the script may change its directory."""
    options = replace(options, folder=options.folder.resolve())
    return [sys.executable, *interpreter_flags(), "-m", "leakscope.capture", *options.to_words()]


def _run_alone(options: Options, meanwhile: Callable[[], object] | None = None) -> int:
    """The status of a plain child, negative for a signal; Ctrl-C is the child's to answer, SIGTERM is passed on."""
    stdout = sys.stderr.fileno() if options.as_json else None
    command = rank_command(options)
    try:
        child = subprocess.Popen(command, stdout=stdout)
    except OSError as error:
        raise LaunchFailed(f"cannot start {command[0]}: {error.strerror}") from None
    with signals_kept():
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
        if meanwhile is not None:
            with suppress(Exception):  # the child is waited for whatever happens; what fails now fails again
                meanwhile()
        return child.wait()
